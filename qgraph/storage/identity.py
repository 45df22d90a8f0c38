"""Which files a model was read from, and whether they have changed since."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.graph.tensors import slots

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Origin:
    """A model file as it was when it was read.

    Attributes:
        place: the absolute path of the file.
        data: the data files in the order in which the model mentions them, each with its inode,
            size and time of change.
        content: SHA-256 of the model file, to be continued with the data files.
    """

    place: Path
    data: tuple[tuple[Path, tuple[int, int, int]], ...]
    content: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, path: Path, content: bytes, model: ir.Model) -> Origin:
        """Return the origin of a model that was read from ``content``, the bytes of ``path``."""
        data = _data_files(slot.tensor for slot in slots(model))
        return cls(
            Path(os.path.abspath(path)),
            tuple((file, _state(file)) for file in data),
            hashlib.sha256(content),
        )

    def sha256(self) -> str | None:
        """Return the hash of the model file and its data files; None if the data have changed.

        The model file is not read again.
        """
        digest = self.content.copy()
        try:
            for file, _ in self.data:
                with file.open("rb") as stream:
                    while chunk := stream.read(_CHUNK_BYTES):
                        digest.update(chunk)
        except OSError:
            return None
        return str(digest.hexdigest()) if self.has_same_data() else None

    def has_same_data(self) -> bool:
        """Return whether the data files are as they were."""
        try:
            return all(_state(file) == state for file, state in self.data)
        except OSError:
            return False


def _data_files(tensors: Iterable[ir.TensorProtocol]) -> list[Path]:
    """Return the data files of tensors, each once, in the order of the tensors."""
    external = (t for t in tensors if isinstance(t, ir.ExternalTensor) and t.size)
    return list(dict.fromkeys(Path(os.path.abspath(t.path)) for t in external))


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns

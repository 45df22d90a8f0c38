"""What was written into data files, and whether the files hold it."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.tensors.streaming import FileRange

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Run:
    """Bytes that were written one after the other.

    Attributes:
        path: of the file.
        offset: of the first byte.
        length: in bytes.
        checksum: CRC-32, computed from the bytes in memory when they were written.
    """

    path: str
    offset: int
    length: int
    checksum: int


class Recorder:
    """A sink that writes into a file, and records what."""

    def __init__(self, place: FileRange) -> None:
        self._place = place
        self.runs: list[Run] = []

    def write(self, at: int, data: npt.NDArray[Any]) -> None:
        """Put the bytes of the contiguous array ``data`` at place ``at``."""
        content = data.reshape(-1).view(np.uint8).data
        if not content:
            return
        self._place.write(at, data)
        offset = self._place.offset + at
        last = self.runs[-1] if self.runs else None
        if last is not None and last.offset + last.length == offset:
            checksum = zlib.crc32(content, last.checksum)
            self.runs[-1] = Run(last.path, last.offset, last.length + len(content), checksum)
        else:
            self.runs.append(Run(self._place.path, offset, len(content), zlib.crc32(content)))


def expect_written(path: str | os.PathLike[str], size: int, runs: Iterable[Run]) -> str:
    """Read a file back, compare it with what was written, and return its SHA-256.

    Args:
        path: of the file.
        size: in bytes.
        runs: all that was written into it; together they have to fill the file.

    Raises:
        ModelError: the file has another size, a place that was not written, or other bytes.
        OSError: it cannot be read.
    """
    digest, at = hashlib.sha256(), 0
    with open(path, "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise _fault(path, f"has {found} bytes, expected {size}")
        for run in _sorted(runs):
            if run.offset != at:
                raise _fault(path, f"was written up to byte {at} and from {run.offset} on")
            checksum, left = 0, run.length
            while left:
                content = file.read(min(left, _PIECE_BYTES))
                if not content:
                    raise _fault(path, f"ends {left} bytes early")
                digest.update(content)
                checksum = zlib.crc32(content, checksum)
                left -= len(content)
            if checksum != run.checksum:
                raise _fault(path, f"has other bytes from {at} on than were written")
            at += run.length
    if at != size:
        raise _fault(path, f"was written up to byte {at} of {size}")
    return digest.hexdigest()


def _sorted(runs: Iterable[Run]) -> Sequence[Run]:
    return sorted(runs, key=lambda run: run.offset)


def _fault(path: str | os.PathLike[str], what: str) -> ModelError:
    return ModelError(
        f"{path}: a new data file {what}; nothing was replaced. Look for a damaged disk, or choose "
        "another place."
    )

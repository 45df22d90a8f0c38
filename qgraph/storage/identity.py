"""Identity of a model: the files that it was read from, and its hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import FileRange, stream_of
from qgraph.graph.tensors import slots, stored_bytes
from qgraph.records import dataclass, field
from qgraph.storage.reading import message, written_ir_version


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
        tensors = (slot.tensor for slot in slots(model))
        external = (t for t in tensors if isinstance(t, ir.ExternalTensor) and t.size)
        files = dict.fromkeys(Path(os.path.abspath(t.path)) for t in external)
        data = tuple((file, _state(file)) for file in files)
        return cls(Path(os.path.abspath(path)), data, hashlib.sha256(content))

    def sha256(self) -> str | None:
        """Return the hash of the model file and its data files; None if the data have changed.

        The model file is not read again.
        """
        digest = self.content.copy()
        try:
            for file, _ in self.data:
                with file.open("rb") as stream:
                    hashlib.file_digest(stream, lambda: digest)
        except OSError:
            return None
        return str(digest.hexdigest()) if self.has_same_data() else None

    def has_same_data(self) -> bool:
        """Return whether the data files are as they were."""
        try:
            return all(_state(file) == state for file, state in self.data)
        except OSError:
            return False


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_same_model(model: ir.Model, other: ir.Model) -> bool:
    """Return whether two models are equal, weights included.

    Weights that both read from one place of a data file are not compared.
    """
    ours, theirs = ([slot.tensor for slot in slots(each)] for each in (model, other))
    if len(ours) != len(theirs) or not all(map(_is_same, ours, theirs)):
        return False
    return _frame(model, set(map(id, ours))) == _frame(other, set(map(id, theirs)))


def hash_in_memory(model: ir.Model) -> str:
    """Return the hash of a model as it is serialised.

    It is the SHA-256 of ``Model.to_proto()``, and of the file that the model is saved as, if all
    weights lie in the model. Weights that lie in data files, or are computed when the model is
    saved, are left out of the message; type, shape and bytes of each follow it. The same goes for
    all weights of a model that is too large for one message.
    """
    tensors = {id(slot.tensor): slot.tensor for slot in slots(model)}
    outside: dict[int, ir.TensorProtocol] = {
        key: tensor
        for key, tensor in tensors.items()
        if isinstance(tensor, ir.ExternalTensor | DeferredTensor)
    }
    if not outside and sum(map(stored_bytes, tensors.values())) >= onnx.checker.MAXIMUM_PROTOBUF:
        outside = tensors
    if not outside:
        return hashlib.sha256(message(model, {}).SerializeToString()).hexdigest()
    digest = hashlib.sha256(_frame(model, outside))
    for tensor in outside.values():
        digest.update(f"{tensor.dtype.name}{list(tensor.shape.numpy())}".encode())
        _add_bytes(digest, tensor)
    return digest.hexdigest()


def _add_bytes(digest: hashlib._Hash, tensor: ir.TensorProtocol) -> None:
    place = stream_of(tensor).stored if isinstance(tensor, ir.ExternalTensor) else None
    if not isinstance(place, FileRange):
        digest.update(_bytes(tensor))
        return
    for _, part in place.pieces():
        digest.update(part.data)


def _frame(model: ir.Model, left_out: Container[int]) -> bytes:
    """Return a model without the tensors of some ids, serialised."""
    image = model.clone()
    for slot in slots(image):
        if id(slot.tensor) in left_out:
            slot.fill(ir.Tensor(np.zeros(0, np.uint8), name=slot.tensor.name))
    image.ir_version = written_ir_version(model)
    return bytes(ir.to_proto(image).SerializeToString())


def _is_same(first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
    if (first.dtype, first.shape, first.name) != (second.dtype, second.shape, second.name):
        return False
    if isinstance(first, ir.ExternalTensor) and isinstance(second, ir.ExternalTensor):
        starts = {(os.path.abspath(t.path), t.offset or 0) for t in (first, second)}
        if len(starts) == 1:
            return True
    return _bytes(first) == _bytes(second)


def _bytes(tensor: ir.TensorProtocol) -> bytes:
    """Return the elements as a file stores them; of strings, the message."""
    if tensor.dtype is ir.DataType.STRING:
        return bytes(ir.to_proto(tensor).SerializeToString())
    return bytes(tensor.tobytes())

"""Whether a model in memory is still that of its file, and the hash of one that is not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import FileRange, stream_of
from qgraph.graph.tensors import slots, stored_bytes
from qgraph.storage import files
from qgraph.storage.reading import written_ir_version

_CHUNK_BYTES = 1 << 20


def hash_in_file(model: ir.Model, path: Path) -> str | None:
    """Return the hash of a model file and its data files; None if ``model`` is not what it holds.

    Weights that both read from one place of a data file are not compared.
    """
    try:
        there, origin = files.read(path)
    except ModelError:
        return None
    ours, theirs = ([slot.tensor for slot in slots(each)] for each in (model, there))
    if len(ours) != len(theirs) or not all(map(_is_same, ours, theirs)):
        return None
    if _frame(model, set(map(id, ours))) != _frame(there, set(map(id, theirs))):
        return None
    return origin.sha256()


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
        return hashlib.sha256(files.to_proto(model).SerializeToString()).hexdigest()
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
    for start in range(0, place.length, _CHUNK_BYTES):
        part = np.empty(min(_CHUNK_BYTES, place.length - start), np.uint8)
        place.read_into(start, part)
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
        places = {(os.path.abspath(t.path), t.offset or 0) for t in (first, second)}
        if len(places) == 1:
            return True
    return _bytes(first) == _bytes(second)


def _bytes(tensor: ir.TensorProtocol) -> bytes:
    """Return the elements as a file stores them; of strings, the message."""
    if tensor.dtype is ir.DataType.STRING:
        return bytes(ir.to_proto(tensor).SerializeToString())
    return bytes(tensor.tobytes())

"""A model as the content of one file, written and read back."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from qgraph.errors import ModelError
from qgraph.graph.tensors import slots
from qgraph.opsets.versions import minimum_ir_version
from qgraph.storage.reading import DATA_FILES
from qgraph.tensors.deferred import DeferredTensor
from qgraph.tensors.streaming import FileRange

Tensors = Mapping[int, ir.TensorProtocol]
"""For the ``id`` of a tensor the one that takes its place."""


def inlined(
    model: ir.Model, outside: Tensors, computed: Mapping[int, FileRange], *, lazy: bool
) -> dict[int, ir.TensorProtocol]:
    """Return copies, in memory, of the tensors that lie in data files and are to stay in no file.

    So do those of ``computed``, which lie in a file that will vanish.

    The bytes are copied as they are: a tensor of narrow elements is never unpacked.
    """
    kinds = (ir.ExternalTensor, DeferredTensor, *((ir.LazyTensor,) if lazy else ()))
    copies: dict[int, ir.TensorProtocol] = {}
    for slot in slots(model):
        tensor = slot.tensor
        if not isinstance(tensor, kinds) or id(tensor) in outside or id(tensor) in copies:
            continue
        content = io.BytesIO()
        if id(tensor) in computed:
            place = computed[id(tensor)]
            data = np.empty(place.length, np.uint8)
            place.read_into(0, data)
            content.write(data.data)
        elif tensor.size:
            tensor.tofile(content)
        proto = onnx.TensorProto(
            name=tensor.name or "",
            data_type=tensor.dtype.value,
            dims=tensor.shape.numpy(),
            raw_data=content.getvalue(),
            doc_string=tensor.doc_string,
        )
        copies[id(tensor)] = ir.serde.deserialize_tensor(proto)
        copies[id(tensor)].metadata_props.update(tensor.metadata_props)
    return copies


def write_model(
    model: ir.Model, tensors: Tensors, path: Path, data_files: Mapping[str, str]
) -> None:
    """Write a model file, and compare what the file holds with what was written.

    Args:
        model: what to write; it stays as it is.
        tensors: what takes the place of its tensors.
        path: the file.
        data_files: SHA-256 of the data files that belong to it, by name.

    Raises:
        ModelError: the model is too large for a file, or the file holds something else.
        OSError: the file cannot be written.
    """
    try:
        content = message(model, tensors, data_files).SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"The model does not fit into one protobuf message ({error}), expected less than "
            "2 GiB. Save with external data."
        ) from error
    path.write_bytes(content)
    _expect_content(path, len(content), hashlib.sha256(content).digest())


def message(
    model: ir.Model, tensors: Tensors, data_files: Mapping[str, str] = MappingProxyType({})
) -> onnx.ModelProto:
    """Return the message of a model in which ``tensors`` take the place of its own."""
    image = model.clone()
    image.metadata_props.pop(DATA_FILES, None)
    if data_files:
        image.metadata_props[DATA_FILES] = json.dumps(dict(data_files))
    for slot in slots(image):
        if id(slot.tensor) in tensors:
            slot.fill(tensors[id(slot.tensor)])
    image.ir_version = written_ir_version(image)
    try:
        proto = ir.to_proto(image)
    except ir.serde.SerdeError as error:
        # What a weight that is computed now has raised is wrapped at each level.
        cause: BaseException = error
        while isinstance(cause, ir.serde.SerdeError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from cause.__cause__
    proto.graph.SetInParent()  # also where it has no node, no name and nothing else
    return proto


def written_ir_version(model: ir.Model) -> int:
    """Return the version of the file format that ``model`` is written in."""
    return max(model.ir_version or 0, minimum_ir_version(model))


def _expect_content(path: Path, size: int, digest: bytes) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").digest()
    if path.stat().st_size != size or found != digest:
        raise ModelError(
            f"{path}: a new model file has other bytes than were written; nothing was replaced. "
            "Look for a damaged disk, or choose another place."
        )

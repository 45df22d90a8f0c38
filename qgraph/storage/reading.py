"""Read and write model files, before they become models.

A model as the content of one file, written and read back.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from qgraph.errors import ModelError, plain_message
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.opset.versions import minimum_ir_version
from qgraph.graph.streaming import FileRange
from qgraph.graph.tensors import Slot, shape_fault, slots, stored_bytes
from qgraph.storage.places import bounded

DATA_FILES = "qgraph.data_files"
"""Metadata of a model file: a JSON object with name and SHA-256 of the data files that were written
with it. A copy of the model has it too; models of other programs do not."""


def parsed(path: Path) -> onnx.ModelProto:
    """Return the content of a model file.

    Raises:
        ModelError: there is no such file, or it is no model.
    """
    return parse(content_of(path))


def content_of(path: Path) -> bytes:
    """Return the bytes of a model file.

    Raises:
        ModelError: there is no such file, or it is empty or a pointer of Git LFS.
    """
    most: int = onnx.checker.MAXIMUM_PROTOBUF
    try:
        content = bounded(path, most)
    except FileNotFoundError as error:
        raise ModelError("there is no such file, expected a model. Correct the path.") from error
    except IsADirectoryError as error:
        raise ModelError("is a folder, expected a model. Name the .onnx file in it.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise ModelError(
                f"{error.strerror}, expected a model of less than {most}. Name the model file, not "
                "one that holds its weights."
            ) from error
        raise ModelError(
            f"cannot be read ({plain_message(error)}), expected a model. Correct this."
        ) from error
    if not content:
        raise ModelError("is empty, expected an ONNX model. Export or download it again.")
    if content.startswith(b"version https://git-lfs"):
        raise ModelError("is a Git LFS pointer, expected a model. Run 'git lfs pull'.")
    return content


def parse(content: bytes) -> onnx.ModelProto:
    """Return the message in the bytes of a model file.

    Raises:
        ModelError: there is none.
    """
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise ModelError(
            f"these {len(content)} bytes are not an ONNX model, or one that is cut short. "
            "Export or download it again."
        ) from error
    return proto


def data_names(proto: onnx.ModelProto) -> set[str]:
    """Return the locations of external data that the tensors of a model state."""
    return {
        entry.value
        for tensor in _tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def mentions(path: Path) -> set[str]:
    """Return the locations of external data in a model file; none if there is no such model."""
    if not path.is_file():  # what is read from a pipe is gone
        return set()
    try:
        content = content_of(path)
        return data_names(parse(content)) if b"location" in content else set()
    except ModelError:
        return set()


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return a model file and the data files that it names; they need not exist."""
    path = Path(path)
    names = sorted(name for name in mentions(path) if name and "\0" not in name)
    return [path, *(path.parent / name for name in names)]


def recorded(proto: onnx.ModelProto) -> dict[str, str]:
    """Return name and SHA-256 of the data files that a model records."""
    for entry in proto.metadata_props:
        if entry.key == DATA_FILES:
            try:
                known = json.loads(entry.value)
            except (ValueError, RecursionError):
                return {}
            return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}
    return {}


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _attribute_tensors(function.attribute_proto)
        for node in function.node:
            yield from _attribute_tensors(node.attribute)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _graph_tensors(graph)


def has_only_texts(content: bytes) -> bool:
    """Return whether all texts in the bytes of a model file are UTF-8.

    Protobuf checks this only for messages of proto3; those of ONNX are of proto2.
    """
    try:
        _checked_model().FromString(content)
    except DecodeError:
        return False
    return True


@functools.cache
def _checked_model() -> type[Message]:
    """Return the class of the messages of models, declared in proto3."""
    pool = DescriptorPool()
    # Of a field that occurs twice, the last one counts: here the field syntax.
    pool.AddSerializedFile(onnx.ModelProto.DESCRIPTOR.file.serialized_pb + b"b\x06proto3")
    checked: type[Message] = GetMessageClass(
        pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name)
    )
    return checked


def text_fault(message: Message) -> str | None:
    """Return what is not UTF-8 in a message, and where; protobuf gives such a text as bytes."""
    for field, content in message.ListFields():
        if field.type == _MESSAGE:
            for part in (content,) if isinstance(content, Message) else content:
                if fault := text_fault(part):
                    return fault
        elif field.type == _TEXT:
            for text in (content,) if isinstance(content, str | bytes) else content:
                if type(text) is bytes:
                    return f"{field.name} of a {message.DESCRIPTOR.name} is {text!r}"
    return None


_TEXT, _MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE


_MATERIALISE = "Replace it by a copy of the file (cp --dereference)"
_COMPLETE = "Fetch the data file that belongs to the model again"


def external_fault(tensor: ir.ExternalTensor) -> str | None:
    """Return the fault of the data of ``tensor``, and what to do; None if there is none.

    Looks at the file's size, kind and place, never at its content. onnx_ir refuses links that
    could be a way out of the folder when a tensor is first read; here the refusal comes early
    and says what to do.
    """
    location = os.fspath(tensor.location)
    fault = shape_fault(tensor)
    if fault is None and tensor.dtype is ir.DataType.STRING:
        fault = "it holds strings, which cannot be external data"
    if fault:
        return f"{fault}. Export the model again"
    needed = stored_bytes(tensor)
    if needed == 0:
        return None
    there = f"its data are in {location!r}"
    file_fault, size = _look(location, Path(os.path.abspath(tensor.base_dir)))
    if file_fault:
        return f"{there}, {file_fault}"
    start = tensor.offset or 0
    if tensor.length is not None and tensor.length != needed:
        return (
            f"{there}, where they take {tensor.length} bytes, but {tensor.dtype.name}"
            f"{list(tensor.shape.numpy())} takes {needed}. Export the model again"
        )
    if start < 0 or start + needed > size:
        return f"{there}, bytes {start} to {start + needed}, but the file has {size}. {_COMPLETE}"
    return None


def _look(location: str, folder: Path) -> tuple[str, int]:
    """Return the fault of a file as text, empty if there is none, and its size in bytes."""
    if not location or os.path.isabs(location):
        return "expected a path relative to the model's folder. Export the model again", 0
    path = Path(os.path.normpath(folder / location))
    if not path.is_relative_to(folder):
        return "outside the model's folder. Put it beside the model and export again", 0
    try:
        real = path.resolve()
        if not real.is_relative_to(folder.resolve()):
            return f"a link that leaves the model's folder, to {str(real)!r}. {_MATERIALISE}", 0
        status = real.stat()
    except FileNotFoundError:
        return f"but there is no such file. {_COMPLETE}", 0
    except (OSError, ValueError, RuntimeError) as error:
        return f"but it cannot be read ({error}). {_COMPLETE}", 0
    if not stat.S_ISREG(status.st_mode):
        return f"but that is not a regular file. {_COMPLETE}", 0
    if status.st_nlink > 1:
        return f"a file with {status.st_nlink} hard links, so maybe any file. {_MATERIALISE}", 0
    return "", status.st_size


Tensors = Mapping[int, ir.TensorProtocol]
"""For the ``id`` of a tensor the one that takes its place."""


def inlined(
    places: Iterable[Slot], outside: Tensors, computed: Mapping[int, FileRange], *, lazy: bool
) -> dict[int, ir.TensorProtocol]:
    """Return copies, in memory, of the tensors that lie in data files and are to stay in no file.

    So do those of ``computed``, which lie in a file that will vanish.

    The bytes are copied as they are: a tensor of narrow elements is never unpacked.
    """
    kinds = (ir.ExternalTensor, DeferredTensor, *((ir.LazyTensor,) if lazy else ()))
    copies: dict[int, ir.TensorProtocol] = {}
    for slot in places:
        tensor = slot.tensor
        if not isinstance(tensor, kinds) or id(tensor) in outside or id(tensor) in copies:
            continue
        content = io.BytesIO()
        if id(tensor) in computed:
            content.write(computed[id(tensor)].read().data)
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

    ``tensors`` take the place of those of the model, which stays as it is. ``data_files`` has the
    SHA-256 of the data files that belong to it, by name.

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
    version, image = written_ir_version(model), model
    if tensors or version != model.ir_version:
        image = model.clone()
        image.ir_version = version
        for slot in slots(image):
            if id(slot.tensor) in tensors:
                slot.fill(tensors[id(slot.tensor)])
    try:
        proto = ir.to_proto(image)
    except ir.serde.SerdeError as error:
        # What a weight that is computed now has raised is wrapped at each level.
        cause: BaseException = error
        while isinstance(cause, ir.serde.SerdeError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from cause.__cause__
    proto.graph.SetInParent()  # also where it has no node, no name and nothing else
    kept = [entry for entry in proto.metadata_props if entry.key != DATA_FILES]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    if data_files:
        proto.metadata_props.add(key=DATA_FILES, value=json.dumps(dict(data_files)))
    return proto


def written_ir_version(model: ir.Model) -> int:
    """Return the version of the file format that ``model`` is written in."""
    return max(model.ir_version or 0, minimum_ir_version(model))


def _expect_content(path: Path, size: int, digest: bytes) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").digest()
    if path.stat().st_size != size or actual != digest:
        raise ModelError(
            f"{path}: a new model file has other bytes than were written; nothing was replaced. "
            "Look for a damaged disk, or choose another place."
        )

"""Model files: load without reading the weights, save without ever leaving half a file."""

from __future__ import annotations

import functools
import glob
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError, Message

from qgraph.errors import ModelError, OptionError
from qgraph.graph.scopes import check_names, owners
from qgraph.graph.tensors import inline_fault, slots, stored_bytes
from qgraph.opsets.versions import minimum_ir_version
from qgraph.storage import datafiles
from qgraph.storage.external import external_fault
from qgraph.storage.identity import Origin
from qgraph.tensors.deferred import DeferredTensor
from qgraph.tensors.streaming import FileRange

Tensors = Mapping[int, ir.TensorProtocol]
"""For the ``id`` of a tensor the one that takes its place."""


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read a model file; external data stay on disk, and are mapped when first touched.

    Nodes that are out of order are sorted.

    Raises:
        ModelError: there is no usable model: no such file, not ONNX, cut short, inconsistent, or
            its external data are missing, too short or outside the folder.
    """
    return read(path)[0]


def read(path: str | os.PathLike[str]) -> tuple[ir.Model, Origin]:
    """Read a model file as :func:`load` does; return the model, and what the file was like.

    Raises:
        ModelError: as for :func:`load`.
    """
    path = Path(path)
    try:
        content = _content(path)
        model = from_proto(_parsed(content), Path(os.path.abspath(path.parent)))
        return model, Origin.of(path, content, model)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelError(
            f"{path}: its data files cannot be read ({error}), expected that they stay as they "
            "are. Load the model again when nothing else writes them."
        ) from error


def from_proto(proto: onnx.ModelProto, folder: Path | None = None) -> ir.Model:
    """Return the model that ``proto`` describes, and keep its tensors.

    Args:
        proto: what a model file holds.
        folder: where its external data lie, as an absolute path. None: the current folder.

    Raises:
        ModelError: as for :func:`load`.
    """
    again = "Export or download the model again."
    if (fault := _text_fault(proto)) is not None:
        raise ModelError(
            f"{fault}, expected UTF-8, as every text of an ONNX model is. Rename it where the "
            "model is made, and export that again."
        )
    if not proto.HasField("graph"):
        raise ModelError(f"there is no graph in it, so this is no ONNX model. {again}")
    if not proto.opset_import:
        raise ModelError(f"it imports no operator set, expected one; it is cut short. {again}")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise ModelError(f"initializer {name!r} is sparse, expected dense. Make it dense.")
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        # Any bytes at all may be given to us; onnx_ir meets nonsense with many kinds of errors.
        raise ModelError(f"the graph cannot be read ({_innermost(error)}). {again}") from error
    for slot in slots(model):
        if isinstance(slot.tensor, ir.ExternalTensor):
            slot.tensor.base_dir = folder or Path.cwd()
        elif isinstance(slot.tensor, ir.serde.TensorProtoTensor):
            # onnx_ir writes what it has read of them and the message too, so they would double.
            del slot.tensor.raw.metadata_props[:]
    _check_tensors(model)
    check_names(model)
    sort_nodes(model)
    return model


def sort_nodes(model: ir.Model) -> None:
    """Put the nodes of each graph and function behind those whose results they use, in place.

    Nodes that are in order stay where they are.

    Raises:
        ModelError: there is no such order.
    """
    try:
        for owner in owners(model):
            owner.sort()
    except ValueError as error:
        raise ModelError(
            "the nodes form a cycle, expected none: a node uses what is made of its own result. "
            "Export or download the model again, or correct what edited it."
        ) from error


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    shard_bytes: int | None = None,
    safetensors: bool = False,
    size_threshold: int = datafiles.THRESHOLD,
    executor: Executor | None = None,
    progress: datafiles.Progress | None = None,
) -> None:
    """Write a model file, and its external data beside it; on failure nothing has changed.

    Data go to files with new names, then the model file replaces an old one in one step: at any
    time there is the old model or the new one, each with its own data. Afterwards the data files
    of the old one are removed. Tensors of ``model`` that read from those are bound to the new
    files first; otherwise ``model`` stays as it is. A symbolic link at ``path`` is replaced, not
    what it points to. All a killed process leaves is a folder whose name begins with a dot, or a
    data file that no model mentions.

    Args:
        model: what to save.
        path: the model file; its folder must exist.
        external_data: whether weights go to files of their own, named after ``path``. None: if
            some lie in such files now, or if they are too many for a model file.
        shard_bytes: upper limit of one data file; a larger tensor gets a file of its own.
        safetensors: make the data files such that readers of safetensors can read them, too.
        size_threshold: tensors of fewer bytes stay in the model file.
        executor: runs the work on big weights, in parts that can be pickled: processes, or machines
            that see the same files. None: threads of this process.
        progress: is told how many bytes of weights have been read, and of how many.

    Raises:
        ModelError: the file cannot be written, or the model is inconsistent or too large.
        OptionError: ``shard_bytes`` is not positive, or an option contradicts ``external_data``.
    """
    path = Path(path)
    if safetensors and external_data is False:
        raise OptionError(
            "safetensors=True with external_data=False; expected one of them. A safetensors file "
            "is external data: leave external_data out."
        )
    if shard_bytes is not None and (shard_bytes <= 0 or external_data is False):
        raise OptionError(
            f"shard_bytes is {shard_bytes} with external_data={external_data}; expected a positive "
            "number, and external data. Give a size, or leave shard_bytes out."
        )
    check_target(path)
    _check_tensors(model)
    _check_not_read(path, model)
    check_names(model)
    chosen = datafiles.choose(
        model,
        wanted=True if shard_bytes or safetensors else external_data,
        threshold=size_threshold,
    )
    _check_size(model, {id(slot.tensor) for slot in chosen})
    old_data = _old_data(path)
    published: list[Path] = []
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as name:
            scratch = Path(name)
            outside = {id(slot.tensor) for slot in chosen}
            inside = [
                slot.tensor
                for slot in slots(model)
                if isinstance(slot.tensor, DeferredTensor) and id(slot.tensor) not in outside
            ]
            layout, computed = datafiles.write(
                chosen,
                inside,
                scratch,
                shard_bytes,
                safetensors=safetensors,
                executor=executor,
                progress=progress,
            )
            fresh = datafiles.publish(layout, path, published, safetensors=safetensors)
            fresh |= _inlined(model, fresh, computed, lazy=bool(old_data))
            _write_model(model, fresh, scratch / path.name)
            if path.exists():
                shutil.copymode(path, scratch / path.name)
            os.replace(scratch / path.name, path)
    except BaseException as error:
        for file in published:
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelError(
                f"{path}: cannot be written ({error}); what was there before is untouched. "
                "Free some space, mend the permissions, or choose another place."
            ) from error
        raise
    _retire(old_data, model, fresh)


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a model: of the file, followed by its external data if it has any.

    Data files count in the order in which the model first mentions them, each once and whole.

    Raises:
        ModelError: as for :func:`load`, or a data file changes meanwhile.
    """
    digest = read(path)[1].sha256()
    if digest is None:
        raise ModelError(
            f"{path}: its data files changed while they were read, expected that they stay as "
            "they are. Try again when nothing else writes them."
        )
    return digest


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return a message that holds all of ``model``, also weights that lie in data files.

    Raises:
        ModelError: it would be larger than a message may be.
    """
    _check_size(model, set())
    return _message(model, _inlined(model, {}, {}, lazy=False))


def written_ir_version(model: ir.Model) -> int:
    """Return the version of the file format that ``model`` is written in."""
    return max(model.ir_version or 0, minimum_ir_version(model))


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers and tensors of Constant nodes, as a file stores them.

    Subgraphs and functions count. No tensor is read or computed.
    """
    return sum(stored_bytes(slot.tensor) for slot in slots(model) if slot.is_weight)


def check_target(path: Path) -> None:
    """Look whether a model can be saved as ``path``, before any work is done for it.

    Raises:
        ModelError: there is no such folder, or something else than a file is there.
    """
    if not path.parent.is_dir():
        raise ModelError(
            f"{path}: cannot be written, {str(path.parent)!r} is not a folder. Create it first."
        )
    if path.exists() and not path.is_file():
        raise ModelError(f"{path}: is there and not a regular file. Choose another name.")


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError("there is no such file, expected a model. Correct the path.") from error
    except IsADirectoryError as error:
        raise ModelError("is a folder, expected a model. Name the .onnx file in it.") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read ({error}), expected a model. Mend that.") from error
    if not content:
        raise ModelError("is empty, expected an ONNX model. Export or download it again.")
    if content.startswith(b"version https://git-lfs"):
        raise ModelError("is a Git LFS pointer, expected a model. Run 'git lfs pull'.")
    return content


def _parsed(content: bytes) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise ModelError(
            f"these {len(content)} bytes are not an ONNX model, or one that is cut short. "
            "Export or download it again."
        ) from error
    return proto


@functools.cache
def _fields(kind: Callable[[], Message]) -> tuple[Sequence[str], ...]:
    """Return the texts, lists of texts, parts and lists of parts that a message may have."""
    empty = kind()
    found: tuple[list[str], ...] = ([], [], [], [])
    for field in empty.DESCRIPTOR.fields:
        one = isinstance(getattr(empty, field.name), str | Message)
        if field.type == field.TYPE_STRING:
            found[0 if one else 1].append(field.name)
        elif field.type == field.TYPE_MESSAGE:
            found[2 if one else 3].append(field.name)
    return found


def _text_fault(message: Message) -> str | None:
    """Return what is not UTF-8 in a message, and where; protobuf gives such a text as bytes."""
    kind: Callable[[], Message] = type(message)
    one_text, texts, one_part, parts = _fields(kind)
    for name in one_text:
        if type(text := getattr(message, name)) is bytes:
            return f"{name} of a {message.DESCRIPTOR.name} is {text!r}"
    for name in texts:
        for text in getattr(message, name):
            if type(text) is bytes:
                return f"{name} of a {message.DESCRIPTOR.name} is {text!r}"
    for name in one_part:
        if message.HasField(name) and (fault := _text_fault(getattr(message, name))):
            return fault
    for name in parts:
        for part in getattr(message, name):
            if fault := _text_fault(part):
                return fault
    return None


def _innermost(error: BaseException) -> str:
    # onnx_ir wraps each level, and where it fails to, the cause is only the context.
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_tensors(model: ir.Model) -> None:
    for slot in slots(model):
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor):
            fault = external_fault(tensor)
        else:
            fault = inline_fault(tensor)
        if fault:
            raise ModelError(f"{slot}: {fault}.")


def _check_not_read(path: Path, model: ir.Model) -> None:
    if not path.exists():
        return
    for slot in slots(model):
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor) and tensor.size and path.samefile(tensor.path):
            raise ModelError(
                f"{path}: holds the data of {slot} of this very model. Choose another name."
            )


def _check_size(model: ir.Model, outside: set[int]) -> None:
    tensors = [slot.tensor for slot in slots(model)]
    inline = sum(stored_bytes(tensor) for tensor in tensors if id(tensor) not in outside)
    if inline >= onnx.checker.MAXIMUM_PROTOBUF:
        raise ModelError(
            f"The model file would hold {inline} bytes of weights, expected less than 2 GiB, where "
            "protobuf ends. Save with external data."
        )


def _old_data(path: Path) -> set[Path]:
    """Return the data files of the model that ``path`` holds now."""
    endings = (datafiles.DATA, datafiles.SAFETENSORS)
    if not any(any(path.parent.glob(f"{glob.escape(path.name)}*{end}")) for end in endings):
        return set()
    try:
        return datafiles.belonging_to(path, ir.from_proto(_parsed(_content(path))))
    except Exception:
        # What is about to be replaced need not be a model.
        return set()


def _inlined(
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


def _write_model(model: ir.Model, tensors: Tensors, path: Path) -> None:
    try:
        content = _message(model, tensors).SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"The model does not fit into one protobuf message ({error}), expected less than "
            "2 GiB. Save with external data."
        ) from error
    path.write_bytes(content)


def _message(model: ir.Model, tensors: Tensors) -> onnx.ModelProto:
    """Return the message for a model in which some tensors are replaced."""
    image = model.clone()
    for slot in slots(image):
        if id(slot.tensor) in tensors:
            slot.fill(tensors[id(slot.tensor)])
    image.ir_version = written_ir_version(image)
    try:
        return ir.to_proto(image)
    except ir.serde.SerdeError as error:
        # What a weight that is computed now has raised is wrapped at each level.
        cause: BaseException = error
        while isinstance(cause, ir.serde.SerdeError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from cause.__cause__


def _retire(old_data: set[Path], model: ir.Model, fresh: Tensors) -> None:
    """Remove data files that nothing reads any more, after ``model`` has let go of them."""
    if not old_data:
        return
    for slot in slots(model):
        tensor = slot.tensor
        reads = isinstance(tensor, ir.LazyTensor | DeferredTensor) or (
            isinstance(tensor, ir.ExternalTensor)
            and any(os.path.exists(p) and os.path.samefile(tensor.path, p) for p in old_data)
        )
        if reads:
            slot.fill(fresh[id(tensor)])
    for file in old_data:
        with suppress(OSError):
            file.unlink()

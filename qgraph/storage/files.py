"""Load model files without reading weights, and save them completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from qgraph.errors import ModelError, OptionError, QGraphError
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.scopes import check_names, is_sorted, owners
from qgraph.graph.structure import check_structure, forget_negative_sizes
from qgraph.graph.tensors import FileTensor, Slot, inline_fault, slots, stored_bytes
from qgraph.storage import datafiles
from qgraph.storage.forms import keep_one_of_each_form
from qgraph.storage.origin import Origin, Retirement, is_same_model
from qgraph.storage.outputs import Outputs, joined
from qgraph.storage.places import expect_place
from qgraph.storage.reading import (
    DATA_FILES,
    content_of,
    external_fault,
    has_only_texts,
    inlined,
    message,
    parse,
    parsed,
    text_fault,
    write_model,
)


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read a model file; external data stay on disk, and are read when they are used.

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
        content = content_of(path)
        read_proto = _from_texts if has_only_texts(content) else from_proto
        model = read_proto(parse(content), Path(os.path.abspath(path.parent)))
        return model, Origin.of(path, content, model)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelError(
            f"{path}: its data files cannot be read ({error}), expected unchanged files. Load the "
            f"model again when nothing else writes them."
        ) from error


def from_proto(proto: onnx.ModelProto, folder: Path | None = None) -> ir.Model:
    """Return the model that ``proto`` describes, and keep its tensors.

    External data lie in ``folder``, an absolute path; None for the current folder.

    Raises:
        ModelError: as for :func:`load`.
    """
    if (fault := text_fault(proto)) is not None:
        raise ModelError(
            f"{fault}, expected UTF-8, as every text of an ONNX model is. Rename it where the "
            "model is made, and export that again."
        )
    return _from_texts(proto, folder)


def _from_texts(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    """Return the model that ``proto`` describes, whose texts are known to be texts."""
    again = "Export or download the model again."
    if not proto.HasField("graph"):
        raise ModelError(f"there is no graph in it, so it is not an ONNX model. {again}")
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
    model.metadata_props.pop(DATA_FILES, None)
    places = list(slots(model))
    for index, slot in enumerate(places):
        if isinstance(slot.tensor, ir.ExternalTensor):
            slot.tensor.base_dir = folder or Path.cwd()
            places[index] = replace(slot, tensor=FileTensor.of(slot.tensor))
            slot.fill(places[index].tensor)
        elif isinstance(slot.tensor, ir.serde.TensorProtoTensor):
            # onnx_ir writes what it has read of them and the message too, so they would double.
            del slot.tensor.raw.metadata_props[:]
    _check_tensors(places)
    check_structure(model)
    forget_negative_sizes(model)
    check_names(model)
    sort_nodes(model)
    return model


def sort_nodes(model: ir.Model) -> None:
    """Put the nodes of each graph and function after those whose results they use, in place.

    Nodes that are in order stay where they are.

    Raises:
        ModelError: there is no such order.
    """
    try:
        for owner in owners(model):
            if not is_sorted(owner):
                owner.sort()
    except ValueError as error:
        raise ModelError(
            "the nodes form a cycle, expected none: a node depends on its own result. "
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
    executor: futures.Executor | None = None,
    progress: datafiles.Progress | None = None,
    outputs: Outputs | None = None,
) -> None:
    """Write a model file, and its external data beside it; on failure nothing has changed.

    Data go to files with new names, then the model file replaces an old one in one step: at any
    time there is the old model or the new one, each with its own data. What was written is read
    back before that. Afterwards data files of the old model are removed as
    :mod:`qgraph.storage.origin` says; tensors of ``model`` that read from those are bound to the
    new files first. Otherwise ``model`` stays as it is. A symbolic link at ``path`` is replaced,
    not what it points to. A killed process leaves at most a folder and a lock file, whose names
    begin with a dot, or a data file that no model mentions.

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
        progress: called with the number of bytes of weights read, and the total.
        outputs: the outputs with which the model appears. None: it appears alone, now.

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
    places = list(slots(model))
    _check_tensors(places)
    _check_not_read(path, places)
    check_names(model)
    chosen = datafiles.choose(
        places,
        wanted=True if shard_bytes or safetensors else external_data,
        threshold=size_threshold,
    )
    _check_size(places, {id(slot.tensor) for slot in chosen})
    with (
        joined(outputs) as together,
        together.staging(path, follow_links=False, failure=ModelError) as output,
    ):
        retirement = Retirement(output.target, together)
        outside = {id(slot.tensor) for slot in chosen}
        inside = [
            slot.tensor
            for slot in places
            if isinstance(slot.tensor, DeferredTensor) and id(slot.tensor) not in outside
        ]
        fresh, hashes, computed = datafiles.write(
            chosen,
            inside,
            output,
            shard_bytes,
            path.parent,
            safetensors=safetensors,
            executor=executor,
            progress=progress,
        )
        fresh |= inlined(places, fresh, computed, lazy=bool(retirement.candidates))
        write_model(model, fresh, output.file, hashes)
        _expect_readable(output.file)
        output.afterwards(lambda: retirement.carry_out(model, fresh))


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a model: of the file, followed by its external data if it has any.

    Data files count in the order in which the model first mentions them, each once and whole.

    Raises:
        ModelError: as for :func:`load`, or a data file changes meanwhile.
    """
    digest = read(path)[1].sha256()
    if digest is None:
        raise ModelError(
            f"{path}: its data files changed while they were read, expected unchanged files. Try "
            f"again when nothing else writes them."
        )
    return digest


def hash_in_file(model: ir.Model, path: Path) -> str | None:
    """Return the hash of a model file and its data files; None if ``model`` is not what it holds.

    Weights that both read from one place of a data file are not compared.
    """
    try:
        there, origin = read(path)
    except ModelError:
        return None
    return origin.sha256() if is_same_model(model, there) else None


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return a message that holds all of ``model``, also weights that lie in data files.

    Raises:
        ModelError: it would be larger than a message may be.
    """
    places = list(slots(model))
    _check_size(places, set())
    return message(model, inlined(places, {}, {}, lazy=False))


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers and tensors of Constant nodes, as a file stores them.

    Subgraphs and functions count. No tensor is read or computed.
    """
    return sum(stored_bytes(slot.tensor) for slot in slots(model) if slot.is_weight)


def check_target(path: Path) -> None:
    """Check that a model can be saved as ``path``, before any work is done for it.

    Raises:
        ModelError: there is no such folder, or something else than a file is there.
        OptionError: the name stands for a stream of this process.
    """
    try:
        expect_place(path, follow_links=False)
    except OptionError:
        raise
    except QGraphError as error:
        raise ModelError(str(error)) from error


def _expect_readable(path: Path) -> None:
    """Check that a new model file can be loaded; its texts are in UTF-8.

    Of nodes of one form, one is loaded. If that fails, all are.
    """
    folder = Path(os.path.abspath(path.parent))
    part = parsed(path)
    if keep_one_of_each_form(part):
        with suppress(ModelError):
            _from_texts(part, folder)
            return
    try:
        _from_texts(parsed(path), folder)
    except ModelError as error:
        raise ModelError(
            f"The model would be written as a file that cannot be read ({error}); nothing was "
            "replaced. Correct the model, or what edited it."
        ) from error


def _innermost(error: BaseException) -> str:
    # onnx_ir wraps each level, and where it fails to, the cause is only the context.
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_tensors(places: Iterable[Slot]) -> None:
    for slot in places:
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor):
            fault = external_fault(tensor)
        else:
            fault = inline_fault(tensor)
            fault = fault and f"{fault}. Export or download the model again"
        if fault:
            raise ModelError(f"{slot}: {fault}.")


def _check_not_read(path: Path, places: Iterable[Slot]) -> None:
    if not path.exists():
        return
    for slot in places:
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor) and tensor.size and path.samefile(tensor.path):
            raise ModelError(
                f"{path}: holds the data of {slot} of this very model. Choose another name."
            )


def _check_size(places: Iterable[Slot], outside: set[int]) -> None:
    tensors = [slot.tensor for slot in places]
    inline = sum(stored_bytes(tensor) for tensor in tensors if id(tensor) not in outside)
    if inline >= onnx.checker.MAXIMUM_PROTOBUF:
        raise ModelError(
            f"The model file would hold {inline} bytes of weights, expected less than 2 GiB, where "
            "protobuf ends. Save with external data."
        )

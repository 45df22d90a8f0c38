"""Data files of a model: choose their weights and names, and write them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.deferred import (
    MOST_TENSORS,
    PART_BYTES,
    DeferredTensor,
    Job,
    NoSink,
    Part,
    ReadBack,
    Recorder,
    WrittenRun,
    carry_out,
)
from qgraph.graph.scopes import unused
from qgraph.graph.streaming import FileRange, Sink, stream_of
from qgraph.graph.tensors import FileTensor, Slot, stored_bytes
from qgraph.numerics.chunks import available_cores
from qgraph.records import dataclass
from qgraph.storage.outputs import Output
from qgraph.storage.reading import mentions

INLINE_LIMIT = 1_500_000_000
"""Bytes of weights above which they go to a file of their own; protobuf ends at 2 GiB."""

THRESHOLD = 1024
"""Tensors of fewer bytes stay in the model file."""

_LITTLE_BYTES = 1 << 20
"""Tensors of data files are copied in pieces of this size, larger ones without being loaded."""

DATA, SAFETENSORS = ".data", ".safetensors"
"""Suffixes of data files."""

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that have been read so far, and of all that are to be."""


def choose(places: Sequence[Slot], *, wanted: bool | None, threshold: int) -> list[Slot]:
    """Choose the tensors that go to data files, of at least ``threshold`` bytes.

    Tensors in attributes go there only if they came from there, or do not fit otherwise: not every
    reader of models expects them. ``wanted`` is None for: if some tensors lie in data files now, or
    all exceed INLINE_LIMIT.
    """
    if wanted is None:
        outside = any(isinstance(s.tensor, ir.ExternalTensor) and s.tensor.size for s in places)
        wanted = outside or sum(stored_bytes(s.tensor) for s in places) > INLINE_LIMIT
    if not wanted:
        return []
    large = [
        slot
        for slot in places
        if slot.tensor.dtype is not ir.DataType.STRING
        and stored_bytes(slot.tensor) >= max(threshold, 1)
    ]
    in_attributes = sum(stored_bytes(slot.tensor) for slot in large if slot.attribute)
    return [
        slot
        for slot in large
        if not slot.attribute
        or in_attributes > INLINE_LIMIT
        or isinstance(slot.tensor, ir.ExternalTensor)
    ]


def write(
    chosen: Sequence[Slot],
    deferred: Sequence[DeferredTensor],
    output: Output,
    shard_bytes: int | None,
    folder: Path,
    *,
    safetensors: bool = False,
    executor: futures.Executor | None = None,
    progress: Progress | None = None,
) -> tuple[dict[int, ir.TensorProtocol], dict[str, str], dict[int, FileRange]]:
    """Write data files into the scratch folder of a model, read them back, and reserve names.

    Weights that are still to be computed are computed here, piece by piece.

    Args:
        chosen: the places whose tensors go to data files.
        deferred: tensors that are to be computed and go to no data file.
        output: the model file.
        shard_bytes: upper limit of one file; a larger tensor gets a file of its own.
        folder: where the data files will be, beside the model file.
        safetensors: let each file begin with the head of that format.
        executor: runs the parts of big tensors; threads of this process if None.
        progress: called with the number of bytes read, and the total.

    Returns:
        For the ``id`` of each tensor in a data file the one that reads it from there, the SHA-256
        of each data file by name, and for each tensor of ``deferred`` where its bytes are.

    Raises:
        ModelError: a file does not hold what was written.
    """
    if not (chosen or deferred):
        return {}, {}, {}
    groups = _shards(chosen, shard_bytes)
    layout = {output.folder / f"{i}.part": group for i, group in enumerate(groups)}
    heads = {path: _head(group) if safetensors else b"" for path, group in layout.items()}
    runs: list[WrittenRun] = []
    places: dict[int, FileRange] = {}
    for path, tensors in layout.items():
        places |= _lay_out(path, tensors, heads[path], runs)
    inline = output.folder / "inline.part"
    kept = _lay_out(inline, {id(tensor): tensor for tensor in deferred}.values(), b"", runs)
    here: list[tuple[Job, Sequence[Sink]]] = []
    away: list[tuple[Job, Sequence[Sink]]] = []
    jobs: dict[int, tuple[Job, dict[int, Sink]]] = {}
    for tensor in [*(t for group in layout.values() for t in group), *deferred]:
        sink = places.get(id(tensor)) or kept[id(tensor)]
        if isinstance(tensor, DeferredTensor):
            jobs.setdefault(id(tensor.job), (tensor.job, {}))[1][tensor.place] = sink
        elif isinstance(tensor, ir.ExternalTensor) and sink.length > _LITTLE_BYTES:
            (away if sink.length > PART_BYTES else here).append((_copying(tensor), [sink]))
        else:
            here.append((_storing(tensor), [sink]))
    for job, sinks in jobs.values():
        # A tensor of the job may have left the model.
        away.append((job, [sinks.get(i, NoSink()) for i in range(MOST_TENSORS)]))
    total = sum(part.reads for job, _ in (*here, *away) for part in job.parts())
    done = 0

    def tell(count: int, written: Sequence[WrittenRun]) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)
        back.take(written)

    sizes = {
        os.path.abspath(path): len(heads.get(path, b"")) + sum(map(stored_bytes, held))
        for path, group in (*layout.items(), (inline, deferred))
        if (held := {id(tensor): tensor for tensor in group}.values())
    }
    with (
        ReadBack(sizes) as back,
        futures.ThreadPoolExecutor(available_cores(), thread_name_prefix="qgraph-save") as threads,
    ):
        back.take(runs)
        carry_out(here if executor else [*here, *away], threads, tell)
        if executor is not None:
            carry_out(away, executor, tell)
        sums = back.digests()
    names = _reserve(output, list(layout), SAFETENSORS if safetensors else DATA)
    fresh: dict[int, ir.TensorProtocol] = {}
    for (path, tensors), name in zip(layout.items(), names, strict=True):
        if safetensors:
            _expect_head(path.with_name(name))
        fresh |= {id(each): _external(each, folder, name, places[id(each)]) for each in tensors}
    hashes = (sums[os.path.abspath(path)] for path in layout)
    return fresh, dict(zip(names, hashes, strict=True)), kept


def _external(
    tensor: ir.TensorProtocol, folder: Path, name: str, place: FileRange
) -> ir.TensorProtocol:
    """Return the tensor that reads what ``tensor`` is from a data file."""
    return FileTensor(
        name,
        place.offset,
        place.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=Path(os.path.abspath(folder)),
    )


def _lay_out(
    path: Path, tensors: Iterable[ir.TensorProtocol], first: bytes, runs: list[WrittenRun]
) -> dict[int, FileRange]:
    """Create a file with ``first`` and space for ``tensors``; return the position of each.

    What is written is added to ``runs``.
    """
    ranges, offset = {}, len(first)
    for tensor in tensors:
        size = stored_bytes(tensor)
        ranges[id(tensor)] = FileRange(os.path.abspath(path), offset, size)
        offset += size
    if ranges:
        with path.open("xb") as file:
            file.truncate(offset)
        start = Recorder(FileRange(os.path.abspath(path), 0, len(first)))
        start.write(0, np.frombuffer(first, np.uint8))
        runs += start.runs
    return ranges


@dataclass(frozen=True, eq=False)
class _Plain:
    """A job of which nothing is checked or added up when its parts are done."""

    work: Sequence[Part]

    def parts(self) -> Sequence[Part]:
        return self.work

    def conclude(self, results: Sequence[Any]) -> None:
        pass


def _copying(tensor: ir.ExternalTensor) -> Job:
    """Return a job that copies a tensor from another data file, in parts."""
    source = stream_of(tensor).stored
    if not isinstance(source, FileRange):
        raise TypeError(f"{tensor.name} is in no file")
    spans = [
        (at, min(PART_BYTES, source.length - at)) for at in range(0, source.length, PART_BYTES)
    ]
    return _Plain([Part(partial(_copy, source), span, span[1]) for span in spans])


def _copy(source: FileRange, span: tuple[int, int], sinks: Sequence[Sink]) -> None:
    source.copy(*span, sinks[0])


def _storing(tensor: ir.TensorProtocol) -> Job:
    """Return a job that writes a tensor in memory as a whole."""

    def write(_: None, sinks: Sequence[Sink]) -> None:
        sinks[0].write(0, _stored(tensor))

    return _Plain([Part(write, None, stored_bytes(tensor))])


def _stored(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """Return the bytes of a tensor as a file has them, without a copy where that is possible."""
    if not isinstance(tensor, ir.LazyTensor) and tensor.dtype.bitwidth >= 8:
        array = tensor.numpy()
        # Files are little-endian.
        if array.flags.c_contiguous and sys.byteorder == "little" and array.dtype.byteorder != ">":
            return array.reshape(-1).view(np.uint8)
    return np.frombuffer(tensor.tobytes(), np.uint8)


def _shards(chosen: Sequence[Slot], shard_bytes: int | None) -> list[list[ir.TensorProtocol]]:
    shards: list[list[ir.TensorProtocol]] = []
    filled = 0
    # A tensor that several initializers share is stored once.
    for tensor in {id(slot.tensor): slot.tensor for slot in chosen}.values():
        size = stored_bytes(tensor)
        if not shards or (shard_bytes is not None and filled + size > shard_bytes):
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size
    return shards


def _reserve(output: Output, files: Sequence[Path], suffix: str) -> list[str]:
    """Give each file its name in the scratch folder, and reserve that beside the model file.

    The names are the first ones of which all are free. A name that the old model file mentions is
    not free, even if that data file is missing: the old model must not read new data.
    """
    mentioned = mentions(output.target)
    attempt = 0
    while True:
        names = _names(output.target.name, attempt, len(files), suffix)
        attempt += 1
        if not mentioned.isdisjoint(names):
            continue
        try:
            for file, name in zip(files, names, strict=True):
                output.reserve(file.with_name(name), name)
        except FileExistsError:
            output.give_back()
        else:
            break
    for file, name in zip(files, names, strict=True):
        os.replace(file, file.with_name(name))
    return names


def _names(stem: str, attempt: int, count: int, suffix: str) -> list[str]:
    base = f"{stem}-{attempt}" if attempt else stem
    if count == 1:
        return [f"{base}{suffix}"]
    return [f"{base}-{i + 1:05d}-of-{count:05d}{suffix}" for i in range(count)]


_TYPES = {
    ir.DataType.BOOL: "BOOL",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT8: "U8",
    ir.DataType.INT16: "I16",
    ir.DataType.UINT16: "U16",
    ir.DataType.INT32: "I32",
    ir.DataType.UINT32: "U32",
    ir.DataType.INT64: "I64",
    ir.DataType.UINT64: "U64",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.FLOAT: "F32",
    ir.DataType.DOUBLE: "F64",
    ir.DataType.FLOAT8E4M3FN: "F8_E4M3",
    ir.DataType.FLOAT8E5M2: "F8_E5M2",
    ir.DataType.FLOAT8E8M0: "F8_E8M0",
}

_ALIGNMENT = 8


def _head(tensors: Iterable[ir.TensorProtocol]) -> bytes:
    """Return what precedes the data of ``tensors``, which follow each other without gaps.

    Types that the format lacks, and those of less than 8 bits, are bytes there; what they are is
    stated in its metadata, as ``INT4[4096,4096]``.
    """
    remarks = {"format": "onnx"}
    entries: dict[str, object] = {"__metadata__": remarks}
    offset = 0
    for tensor in tensors:
        name = unused(tensor.name or "tensor", entries)
        size = stored_bytes(tensor)
        shape = [int(n) for n in tensor.shape.numpy()]
        dtype = _TYPES.get(tensor.dtype)
        if dtype is None:
            remarks[name] = f"{tensor.dtype.name}[{','.join(map(str, shape))}]"
            dtype, shape = "U8", [size]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _expect_head(path: Path) -> None:
    """Read the head of a file, and compare its offsets with the size of the file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        size = os.fstat(file.fileno()).st_size - 8 - length
    offsets = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
    starts, ends = zip(*offsets, strict=True)
    if (0, *ends) != (*starts, size):
        raise ModelError(
            f"{path}: a new safetensors file has {size} bytes of data, its head says "
            f"{ends[-1]}, without gaps; nothing was replaced. Choose another place."
        )

"""The files beside a model file that hold its weights: what goes there, under which names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.cores import available_cores
from qgraph.graph.tensors import Slot, slots, stored_bytes
from qgraph.storage.safetensors import head
from qgraph.tensors.deferred import (
    MOST_TENSORS,
    PART_BYTES,
    DeferredTensor,
    Job,
    NoSink,
    Part,
    Sink,
    carry_out,
)
from qgraph.tensors.streaming import FileRange, stream_of

INLINE_LIMIT = 1_500_000_000
"""Bytes of weights above which they go to a file of their own; protobuf ends at 2 GiB."""

THRESHOLD = 1024
"""Tensors of fewer bytes stay in the model file."""

DATA, SAFETENSORS = ".data", ".safetensors"
"""How the names of data files end."""

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that have been read so far, and of all that are to be."""

Layout = Mapping[Path, Sequence[ir.TensorProtocol]]
"""Data files, and the tensors that each holds, densely packed in this order."""


def choose(model: ir.Model, *, wanted: bool | None, threshold: int) -> list[Slot]:
    """Choose the tensors that go to data files.

    Tensors in attributes go there only if they came from there, or do not fit otherwise: not
    every reader of models expects them.

    Args:
        model: what is to be saved.
        wanted: None for: if some tensors lie in data files now, or all exceed INLINE_LIMIT.
        threshold: smaller tensors, in bytes, stay.
    """
    everything = list(slots(model))
    if wanted is None:
        outside = any(isinstance(s.tensor, ir.ExternalTensor) and s.tensor.size for s in everything)
        wanted = outside or sum(stored_bytes(s.tensor) for s in everything) > INLINE_LIMIT
    if not wanted:
        return []
    large = [
        slot
        for slot in everything
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
    folder: Path,
    shard_bytes: int | None,
    *,
    safetensors: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> tuple[Layout, dict[int, FileRange]]:
    """Write data files under provisional names into ``folder``.

    Weights that are still to be computed are computed here, piece by piece.

    Args:
        chosen: the places whose tensors go to data files.
        deferred: tensors that are to be computed and go to no data file.
        folder: where the files go.
        shard_bytes: upper limit of one file; a larger tensor gets a file of its own.
        safetensors: let each file begin with the head of that format.
        executor: runs the parts of big tensors; threads of this process if None.
        progress: is told how many bytes have been read, and of how many.

    Returns:
        The data files, and for the ``id`` of each tensor of ``deferred`` where its bytes are.
    """
    layout = {folder / str(i): group for i, group in enumerate(_shards(chosen, shard_bytes))}
    places: dict[int, FileRange] = {}
    for path, tensors in layout.items():
        places |= _lay_out(path, tensors, head(tensors) if safetensors else b"")
    kept = _lay_out(folder / "inline", {id(tensor): tensor for tensor in deferred}.values())
    here: list[tuple[Job, Sequence[Sink]]] = []
    away: list[tuple[Job, Sequence[Sink]]] = []
    jobs: dict[int, tuple[Job, dict[int, Sink]]] = {}
    for tensor in [*(t for group in layout.values() for t in group), *deferred]:
        sink = places.get(id(tensor)) or kept[id(tensor)]
        if isinstance(tensor, DeferredTensor):
            jobs.setdefault(id(tensor.job), (tensor.job, {}))[1][tensor.place] = sink
        elif isinstance(tensor, ir.ExternalTensor) and sink.length > PART_BYTES:
            away.append((_Copy(tensor), [sink]))
        else:
            here.append((_Single(tensor), [sink]))
    for job, sinks in jobs.values():
        # A tensor of the job may have left the model.
        away.append((job, [sinks.get(i, NoSink()) for i in range(MOST_TENSORS)]))
    total = sum(part.reads for job, _ in (*here, *away) for part in job.parts())
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    with ThreadPoolExecutor(available_cores(), thread_name_prefix="qgraph-save") as threads:
        carry_out(here if executor else [*here, *away], threads, tell)
        if executor is not None:
            carry_out(away, executor, tell)
    return layout, kept


def publish(
    layout: Layout, path: Path, published: list[Path], *, safetensors: bool = False
) -> dict[int, ir.TensorProtocol]:
    """Move data files beside the model file ``path``, under names that nothing has there.

    Args:
        layout: what ``write`` returned.
        path: the model file, which lends its name.
        published: is filled with the files that have appeared, also when an error occurs.
        safetensors: as given to ``write``.

    Returns:
        For the ``id`` of each tensor the one that reads from the published file.
    """
    suffix = SAFETENSORS if safetensors else DATA
    targets = _reserve(path, len(layout), suffix, published)
    fresh: dict[int, ir.TensorProtocol] = {}
    for (source, tensors), target in zip(layout.items(), targets, strict=True):
        os.replace(source, target)
        offset = len(head(tensors)) if safetensors else 0
        for tensor in tensors:
            size = stored_bytes(tensor)
            fresh[id(tensor)] = ir.ExternalTensor(
                target.name,
                offset,
                size,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=tensor.name or "",
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
                base_dir=Path(os.path.abspath(path.parent)),
            )
            offset += size
    return fresh


def belonging_to(path: Path, model: ir.Model) -> set[Path]:
    """Return the data files that ``model``, as saved in ``path``, reads and that bear its name."""
    pattern = re.compile(
        rf"{re.escape(path.name)}(-\d+)?(-\d{{5}}-of-\d{{5}})?\.(data|safetensors)"
    )
    locations = {
        os.fspath(slot.tensor.location)
        for slot in slots(model)
        if isinstance(slot.tensor, ir.ExternalTensor)
    }
    return {path.parent / name for name in locations if pattern.fullmatch(name)}


def _lay_out(
    path: Path, tensors: Iterable[ir.TensorProtocol], first: bytes = b""
) -> dict[int, FileRange]:
    """Create a file of ``first`` and room for ``tensors`` in a row; return where each goes."""
    places, offset = {}, len(first)
    for tensor in tensors:
        size = stored_bytes(tensor)
        places[id(tensor)] = FileRange(os.path.abspath(path), offset, size)
        offset += size
    if places:
        with path.open("xb") as file:
            file.write(first)
            file.truncate(offset)
    return places


@dataclass(frozen=True)
class _Copy:
    """Takes a big tensor over from another data file, by the kernel of the system."""

    tensor: ir.ExternalTensor

    def parts(self) -> Sequence[Part]:
        source = stream_of(self.tensor).stored
        if not isinstance(source, FileRange):
            raise TypeError(f"{self.tensor.name} is in no file")
        starts = range(0, source.length, PART_BYTES)
        return [_CopyPart(source, at, min(PART_BYTES, source.length - at)) for at in starts]

    def conclude(self, results: Sequence[Any]) -> None:
        pass


@dataclass(frozen=True)
class _CopyPart:
    source: FileRange
    at: int
    reads: int

    def __call__(self, sinks: Sequence[Sink]) -> None:
        target = sinks[0]
        if not isinstance(target, FileRange):
            raise TypeError("a data file is copied to another file only")
        self.source.copy(self.at, self.reads, target)


@dataclass(frozen=True)
class _Single:
    """Writes a tensor of this process at one go."""

    tensor: Any

    @property
    def reads(self) -> int:
        return stored_bytes(self.tensor)

    def parts(self) -> Sequence[Part]:
        return [self]

    def conclude(self, results: Sequence[Any]) -> None:
        pass

    def __call__(self, sinks: Sequence[Sink]) -> None:
        (target,) = sinks
        if isinstance(target, FileRange):
            with open(target.path, "r+b") as file:
                file.seek(target.offset)
                self.tensor.tofile(file)


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


def _reserve(path: Path, count: int, suffix: str, reserved: list[Path]) -> list[Path]:
    """Create ``count`` empty files under the first names that are all free."""
    attempt = 0
    while True:
        targets = [path.parent / name for name in _names(path.name, attempt, count, suffix)]
        try:
            for target in targets:
                # Exclusive creation also keeps another process from taking the name.
                target.open("xb").close()
                reserved.append(target)
        except FileExistsError:
            while reserved:
                reserved.pop().unlink()
            attempt += 1
        else:
            return targets


def _names(stem: str, attempt: int, count: int, suffix: str) -> list[str]:
    base = f"{stem}-{attempt}" if attempt else stem
    if count == 1:
        return [f"{base}{suffix}"]
    return [f"{base}-{i + 1:05d}-of-{count:05d}{suffix}" for i in range(count)]

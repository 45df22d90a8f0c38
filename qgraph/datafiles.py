"""The files beside a model file that hold its weights: what goes there, under which names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from qgraph.tensors import Slot, slots, stored_bytes

INLINE_LIMIT = 1_500_000_000
"""Bytes of weights above which they go to a file of their own; protobuf ends at 2 GiB."""

_WORKERS = 2
_IN_FLIGHT_BYTES = 1 << 28

Progress = Callable[[int, int], None]
"""Called with the number of tensors written so far, and of all that are to be written."""

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
    chosen: Sequence[Slot], folder: Path, shard_bytes: int | None, progress: Progress | None
) -> Layout:
    """Write data files under provisional names into ``folder``.

    Weights that are still to be computed are computed here, a few at a time.
    """
    shards = _shards(chosen, shard_bytes)
    total = sum(len(tensors) for tensors in shards)
    written = 0

    def count(_tensor: ir.TensorProtocol, _info: ir.external_data.CallbackInfo) -> None:
        nonlocal written
        written += 1
        if progress is not None:
            progress(written, total)

    layout = {}
    for number, tensors in enumerate(shards):
        # Two threads help where weights are computed; copies are made by the kernel.
        computed = any(isinstance(tensor, ir.LazyTensor) for tensor in tensors)
        ir.external_data.convert_tensors_to_external(
            tensors,
            base_dir=folder,
            relative_path=str(number),
            callback=count,
            max_workers=_WORKERS if computed else None,
            max_in_flight_bytes=_IN_FLIGHT_BYTES,
        )
        layout[folder / str(number)] = tensors
    return layout


def publish(layout: Layout, path: Path, published: list[Path]) -> dict[int, ir.TensorProtocol]:
    """Move data files beside the model file ``path``, under names that nothing has there.

    Args:
        layout: what ``write`` returned.
        path: the model file, which lends its name.
        published: is filled with the files that have appeared, also when an error occurs.

    Returns:
        For the ``id`` of each tensor the one that reads from the published file.
    """
    targets = _reserve(path, len(layout), published)
    fresh: dict[int, ir.TensorProtocol] = {}
    for (source, tensors), target in zip(layout.items(), targets, strict=True):
        os.replace(source, target)
        offset = 0
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
    pattern = re.compile(rf"{re.escape(path.name)}(-\d+)?(-\d{{5}}-of-\d{{5}})?\.data")
    locations = {
        os.fspath(slot.tensor.location)
        for slot in slots(model)
        if isinstance(slot.tensor, ir.ExternalTensor)
    }
    return {path.parent / name for name in locations if pattern.fullmatch(name)}


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


def _reserve(path: Path, count: int, reserved: list[Path]) -> list[Path]:
    """Create ``count`` empty files under the first names that are all free."""
    attempt = 0
    while True:
        targets = [path.parent / name for name in _names(path.name, attempt, count)]
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


def _names(stem: str, attempt: int, count: int) -> list[str]:
    base = f"{stem}-{attempt}" if attempt else stem
    if count == 1:
        return [f"{base}.data"]
    return [f"{base}-{i + 1:05d}-of-{count:05d}.data" for i in range(count)]

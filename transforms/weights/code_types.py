"""In which types stored codes fit, and over how much one scale reaches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.minifloat import MINIFLOATS, cast
from qgraph.opsets.versions import QDQ_SINCE
from qgraph.transforms.weights.stored_codes import Stored
from qgraph.weights.repack_job import Range, Shift

Array = npt.NDArray[Any]
Whole = npt.NDArray[np.int32]

_NARROWER = {
    "signed": ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32"),
    "unsigned": ("UINT2", "INT2", "UINT4", "INT4", "UINT8", "INT8", "UINT16", "INT16", "INT32"),
    "float": ("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"),
}
"""Types by width; of one width, the kind that codes have now goes first."""

_EXPONENTS = range(-8, 25)


@dataclass(frozen=True, eq=False)
class Recoding:
    """Another way to store codes: ``(number - shift) * factor`` in ``kind``.

    Attributes:
        kind: ONNX type.
        shift: the zero points, or one number for all; None for 0.
        factor: a power of two.
        scale: as it will be stored; None if it stays as it is.
        zero_point: likewise; None for 0.
        axis: as DequantizeLinear will have it; None per tensor.
        block_size: likewise.
        is_merged: whether scales that agree became one.
    """

    kind: str
    shift: Shift | None
    factor: float
    scale: Array | None
    zero_point: Whole | None
    axis: int | None
    block_size: int
    is_merged: bool = False


def recodings(found: Stored, span: Range, kinds: Sequence[str] | None) -> Iterator[Recoding]:
    """Yield the ways in which the codes fit, the best first.

    Args:
        found: the codes.
        span: which of them occur.
        kinds: types to try; None for all from the narrowest up to the type that they have.
    """
    now = FORMATS[found.stream.kind]
    if kinds is None:
        family = "float"
        if isinstance(now, IntFormat):
            family = "signed" if now.signed else "unsigned"
        narrower = [kind for kind in _NARROWER[family] if FORMATS[kind].bits < now.bits]
        kinds = [*narrower, found.stream.kind]
    for _, alike in itertools.groupby(kinds, key=lambda kind: FORMATS[kind].bits):
        offers = [
            recoding
            for kind in alike
            for shift, factor in _moves(found, span, kind)
            if (recoding := _laid(found, kind, shift, factor)) is not None
        ]
        # Of one width, what needs no zero points is smaller.
        yield from sorted(offers, key=lambda recoding: recoding.zero_point is not None)


def merged(found: Stored, recoding: Recoding) -> Recoding:
    """Return ``recoding`` with scales merged that agree: in blocks, in channels, or all."""
    scale = _scale_of(found, recoding.factor)
    if scale is None or scale.size == 1:
        return recoding
    point = np.broadcast_to(_moved_point(found, recoding.shift), scale.shape)
    rank, axis, size = len(found.shape), recoding.axis or 0, recoding.block_size
    # Whole tensor, then one entry for each index of an axis, then larger blocks.
    for kept in (None, *range(rank)):
        if kept is not None and scale.shape[kept] != found.shape[kept]:
            continue
        others = tuple(i for i in range(rank) if i != kept)
        if all(scale.shape[i] == 1 for i in others):
            continue
        if _agree(scale, others) and _agree(point, others):
            place = tuple(0 if i in others else slice(None) for i in range(rank))
            return _with(recoding, scale[place], point[place], kept, 0)
    factor = 1
    while size and size * factor * 2 < 2 * found.shape[axis]:
        if not all(_agree_in_groups(each, axis, factor * 2) for each in (scale, point)):
            break
        factor *= 2
    if factor == 1:
        return recoding
    place = (*(slice(None),) * axis, slice(None, None, factor))
    return _with(recoding, scale[place], point[place], axis, size * factor)


def needed_opset(found: Stored, recoding: Recoding, *, rows: bool) -> int:
    """Return the opset since which DequantizeLinear has all that ``recoding`` takes.

    Args:
        found: the codes.
        recoding: how they are stored.
        rows: whether blocks become rows.
    """
    scale = found.decode.inputs[1]
    kind = scale.dtype.name if scale is not None and scale.dtype is not None else "FLOAT"
    needed = [QDQ_SINCE[recoding.kind]]
    if recoding.axis is not None:
        needed.append(21 if recoding.block_size and not rows else 13)
    if kind != "FLOAT":
        needed.append(24 if kind == "FLOAT8E8M0" else 19)
    if found.decode.attributes.get_int("output_dtype", 0):
        needed.append(23)
    return max(needed)


def _moves(found: Stored, span: Range, kind: str) -> Iterator[tuple[Shift | None, float]]:
    """Yield what may be subtracted, and by which power of two numbers may be multiplied."""
    now, form = FORMATS[found.stream.kind], FORMATS[kind]
    if isinstance(now, IntFormat) and isinstance(form, IntFormat):
        yield from _integer_moves(found, span, kind)
    elif isinstance(now, IntFormat):
        grid = MINIFLOATS[kind]
        reach = min(2.0 ** (grid.mantissa_bits + 1), grid.max_value)
        if -reach <= span.low_centred and span.high_centred <= reach:
            yield found.shift, 1.0
    elif isinstance(form, IntFormat):
        used = np.array(sorted(span.used), np.float64)
        for exponent in _EXPONENTS:
            numbers = used * 2.0**exponent
            if (numbers == np.rint(numbers)).all():
                if form.lo <= numbers.min() and numbers.max() <= form.hi:
                    yield None, 2.0**exponent
                break
    else:
        used32 = np.array(sorted(span.used), np.float32)
        if kind == found.stream.kind or (cast(used32, kind) == used32).all():
            yield None, 1.0


def _integer_moves(found: Stored, span: Range, kind: str) -> Iterator[tuple[Shift | None, float]]:
    now, form = FORMATS[found.stream.kind], FORMATS[kind]
    point = found.zero_point
    # Zero points move with the codes, also those that are 0, and have to fit as well.
    lowest, highest = (0, 0) if point is None else (int(point.min()), int(point.max()))
    low, high = min(span.low, lowest), max(span.high, highest)
    as_it_is = form.lo <= low and high <= form.hi
    if kind == found.stream.kind:
        yield None, 1.0
        return
    if point is not None and form.lo <= span.low_centred and span.high_centred <= form.hi:
        yield found.shift, 1.0
    if as_it_is:
        yield None, 1.0
    # Signed codes are counted from the middle of an unsigned type, others from the lowest code.
    middle = -(1 << (form.bits - 1)) if now.lo < 0 <= form.lo else int(low - form.lo)
    for shift in dict.fromkeys((middle, int(low - form.lo))):
        if form.lo <= low - shift and high - shift <= form.hi:
            yield Shift(np.full((1,) * len(found.shape), shift, np.int32)), 1.0


def _laid(found: Stored, kind: str, shift: Shift | None, factor: float) -> Recoding | None:
    """Return the recoding with its parameters as they are stored; None where they cannot be."""
    whole = found.scale is not None and found.scale.size > 1
    axis = found.axis if whole or (found.scale is None and found.block_size) else None
    size = found.block_size if axis is not None else 0
    plain = Recoding(kind, shift, factor, None, None, axis, size)
    point = _moved_point(found, shift)
    if factor == 1 and not point.any():
        return plain
    scale = _scale_of(found, factor)
    if scale is None:
        return None
    if point.any() and not isinstance(FORMATS[kind], IntFormat):
        return None
    return _with(plain, scale, np.broadcast_to(point, scale.shape), axis, size, is_merged=False)


def _with(
    recoding: Recoding,
    scale: Array,
    point: Whole,
    axis: int | None,
    size: int,
    *,
    is_merged: bool = True,
) -> Recoding:
    shape: tuple[int, ...] = scale.shape if size else () if axis is None else (-1,)
    return replace(
        recoding,
        scale=np.asarray(scale, order="C").reshape(shape),
        zero_point=np.asarray(point, order="C").reshape(shape) if point.any() else None,
        axis=axis,
        block_size=size,
        is_merged=is_merged,
    )


def _scale_of(found: Stored, factor: float) -> Array | None:
    """Return the scales divided by ``factor``; None where they are computed, or that is inexact."""
    scale = found.scale
    if scale is None or factor == 1:
        return scale
    with np.errstate(all="ignore"):
        wanted = scale.astype(np.float32) / np.float32(factor)
        found_ = wanted.astype(scale.dtype)
        again = found_.astype(np.float32) * np.float32(factor)
    normal = np.abs(wanted) >= np.finfo(np.float32).smallest_normal
    same = again == scale.astype(np.float32)
    return found_ if bool((same & normal).all()) else None


def _moved_point(found: Stored, shift: Shift | None) -> Whole:
    """Return the zero points after the shift."""
    point = found.zero_point
    if point is None:
        point = np.zeros((1,) * len(found.shape), np.int32)
    return point if shift is None else point - shift.numbers


def _agree(parameter: Array, axes: tuple[int, ...]) -> bool:
    numbers = parameter.astype(np.float32)
    first = numbers[tuple(slice(0, 1) if i in axes else slice(None) for i in range(numbers.ndim))]
    return bool((numbers == first).all())


def _agree_in_groups(parameter: Array, axis: int, size: int) -> bool:
    numbers = np.moveaxis(parameter.astype(np.float32), axis, 0)
    first = np.repeat(numbers[::size], size, axis=0)[: len(numbers)]
    return bool((numbers == first).all())

"""Uniform quantizers of two ranges, as chains of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.rounding import Rounding
from qgraph.quantizer import Decoding, Ranged
from qgraph.recognition.sides import (
    HIGHEST,
    LOWEST,
    ONE,
    SAME_SCALE,
    ZERO,
    Inward,
    Outward,
    both,
    close,
    float32,
    is_bounded,
    is_step,
    number,
    same,
)
from qgraph.recognition.spelling import Spelling
from qgraph.recognition.steps import Arithmetic, Bound, End, Rounded, Step

Array = npt.NDArray[Any]

_SAME_STEP = 1e-3


def ranged(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], spelling: Spelling
) -> Ranged | None:
    """Read ``(x - low) / width * top``, rounded."""
    steps, outer = _with_width(list(inner), list(outer))
    places = [i for i, step in enumerate(steps) if is_step(step, "Div")]
    if len(places) != 1 or rounding != Rounded(Rounding.ROUND):
        return None
    (place,) = places
    width, times = steps[place], steps[place + 1 : place + 2]
    if times and is_step(times[0], "Mul"):
        top = times[0].value  # type: ignore[union-attr]
        rest = steps[place + 2 :]
    else:
        # Of two levels: products and quotients with 1 were left out.
        top, rest = ONE, steps[place + 1 :]
        multiplied = [i for i, step in enumerate(outer) if is_step(step, "Mul")]
        outer.insert(multiplied[0] if multiplied else len(outer), Arithmetic("Div", ONE))
    before = Inward.of(steps[:place])
    tail, after = Inward.of([Arithmetic("Div", ONE), *rest]), Outward.of(outer)
    if before is None or tail is None or after is None or tail.offset.any() or tail.ends:
        return None
    if is_bounded(after.real):
        return None
    levels = number(top)
    if levels is None or levels < 1 or (after.top is not None and not same(after.top, top)):
        return None
    low, span = -before.offset, width.value  # type: ignore[union-attr]
    codes = both(tail.codes, after.codes)
    clamped = same(codes[0], ZERO) and same(codes[1], top)
    if is_bounded(before.codes) or (is_bounded(before.real) and (before.ends or clamped)):
        return None
    ends = before.range if before.ends else before.real
    return _range_of(low, span, ends, before.ends, after, int(levels) + 1, spelling, clamped)


def _with_width(inner: list[Step], outer: list[Step]) -> tuple[list[Step], list[Step]]:
    """Put in the division by a width of 1, or the product with 1, that were left out."""
    divided = [i for i, step in enumerate(outer) if is_step(step, "Div")]
    if any(is_step(step, "Div") for step in inner) or not divided:
        return inner, outer
    if not any(is_step(step, "Mul") for step in outer):
        outer = [*outer[: divided[0] + 1], Arithmetic("Mul", ONE), *outer[divided[0] + 1 :]]
    times = [i for i, step in enumerate(inner) if is_step(step, "Mul")]
    if times:
        return [*inner[: times[0]], Arithmetic("Div", ONE), *inner[times[0] :]], outer
    top = outer[divided[0]].value  # type: ignore[union-attr]
    starts = [i for i, step in enumerate(inner) if isinstance(step, Bound)]
    place = starts[0] if starts else len(inner)
    width = [Arithmetic("Div", top), Arithmetic("Mul", top)]
    return [*inner[:place], *width, *inner[place:]], outer


def _range_of(
    low: Array,
    width: Array,
    ends: list[Array],
    marks: Sequence[End],
    after: Outward,
    levels: int,
    spelling: Spelling,
    clamped: bool,
) -> Ranged | None:
    bounded = [np.isfinite(end).all() for end in ends]
    if not clamped and not all(bounded):
        return None
    if all(bounded):
        high = np.where(low == ends[0], ends[1], ends[0])
        if not close(np.asarray(high - low), width, SAME_SCALE):
            return None
    elif bounded[1]:
        high = ends[1]
    else:
        high = summand(low, width)
    top = np.float32(levels - 1)
    decoding = None
    if after.top is not None or (after.scale is None and not after.taken.any()):
        span = after.scale if after.scale is not None else top
        out_low = after.low if after.top is not None else after.added
        marked = [mark.value for mark in marks if mark.above]
        out_high = marked[0] if marked else summand(out_low, np.asarray(span))
    else:
        scale, zero_point = ONE if after.scale is None else after.scale, after.taken - after.added
        step = np.abs(width / top)
        if spelling.dialect == "openvino" and not close(np.abs(scale), step, _SAME_STEP):
            return None
        decoding = Decoding(float32(scale), float32(zero_point))
        out_low, out_high = -zero_point * scale, (top - zero_point) * scale
    return Ranged(
        float32(low), float32(high), float32(out_low), float32(out_high), levels, decoding
    )


def summand(low: Array, width: Array) -> Array:
    """Return ``high`` of which ``high - low`` is ``width``, as near to ``low + width`` as it is."""
    high = np.asarray(low + width, np.float32)
    for other in (np.nextafter(high, HIGHEST), np.nextafter(high, LOWEST)):
        high = np.where((high - low != width) & (other - low == width), other, high)
    return high

"""Uniform quantizers of a scale and a zero point, as chains of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.quantizer import Affine, Decoding, Recipe
from qgraph.recognition.sides import (
    ONE,
    SAME_SCALE,
    ZERO,
    Inward,
    Outward,
    both,
    close,
    float32,
    is_bounded,
    same,
)
from qgraph.recognition.spelling import Spelling
from qgraph.recognition.steps import End, Rounded, Step

Array = npt.NDArray[Any]

_NEAR_WHOLE = 1e-3
"""A clamp at the value of a code misses the code's number by less."""


def affine(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], spelling: Spelling
) -> Affine | None:
    """Read ``clamp(x / scale + zero_point)``, rounded, minus the zero point, times the scale."""
    before, after = Inward.of(inner), Outward.of(outer)
    if before is None or after is None or after.top is not None:
        return None
    if not isinstance(rounding, Rounded):
        return None
    scale, out_scale = before.scale, ONE if after.scale is None else after.scale
    scale = ONE if scale is None else scale
    if before.is_reciprocal and close(scale, out_scale, SAME_SCALE):
        scale = out_scale
    offset_first = bool(before.offset.any())
    # A sum after the rounding is where codes are counted from, unless that is settled already.
    zero_point = before.offset if offset_first else after.added
    decoded = after.taken - after.added if offset_first else after.taken
    shift = ZERO if offset_first else after.added
    codes = both(before.codes, after.codes)
    limits = _limits(before, scale, codes)
    if limits is not None and is_bounded(after.real):
        # A clamp of the result that narrows the codes is read like one of the data.
        result = Inward(offset=after.taken - after.added, real=after.real)
        limits = _limits(result, out_scale, limits)
    if limits is None:
        return None
    lo, hi = (np.asarray(end + shift, np.float32) for end in limits)
    recipe = Recipe.OFFSET_FIRST
    if not offset_first and spelling.dialect == "qdq":
        recipe = Recipe.ROUND_FIRST
    decoding = None
    if not (same(scale, out_scale) and same(zero_point, decoded)):
        if not spelling.is_pair:
            return None
        decoding = Decoding(float32(out_scale), float32(decoded))
    found = Affine(float32(scale), float32(zero_point), lo, hi, rounding.mode, recipe, decoding)
    return found if _ends_fit(before.ends, found) else None


def _limits(before: Inward, scale: Array, codes: list[Array]) -> list[Array] | None:
    """Return the smallest and largest rounded number; a clamp of the data counts if it narrows."""
    lo, hi = codes
    for bounds, needed in ((before.range, bool(before.ends)), (before.real, False)):
        if not is_bounded(bounds):
            continue
        if not all(np.isfinite(end).all() for end in bounds):
            return None
        ends = [end / scale + before.offset for end in bounds]
        low, high = np.minimum(*ends), np.maximum(*ends)
        if not needed and (low <= lo).all() and (high >= hi).all():
            return None
        lo, hi = np.maximum(lo, low), np.minimum(hi, high)
    whole = [np.rint(end) for end in (lo, hi)]
    for end, near in zip((lo, hi), whole, strict=True):
        if not np.isfinite(end).all():
            return None
        if (np.abs(end - near) > _NEAR_WHOLE * np.maximum(1, np.abs(near) * 2.0**-12)).any():
            return None
    return whole if (whole[0] <= whole[1]).all() else None


def _ends_fit(ends: Sequence[End], found: Affine) -> bool:
    """Return whether what is put in the place of large numbers is the value of the last code."""
    for end in ends:
        code = found.hi if end.above == (found.scale > 0).all() else found.lo
        value = (code - found.zero_point) * found.scale
        if not close(value, end.value, SAME_SCALE):
            return False
    return True

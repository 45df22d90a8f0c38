"""Quantizers that drop low bits of codes, as chains of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.rounding import Rounding
from qgraph.quantizer import Truncating
from qgraph.recognition.sides import (
    ONE,
    ZERO,
    Inward,
    Outward,
    both,
    float32,
    is_bounded,
    is_step,
    same,
)
from qgraph.recognition.steps import Arithmetic, Rounded, Step

Array = npt.NDArray[Any]


def truncating(plain: Sequence[Step], first: int, second: int) -> Truncating | None:
    """Read ``round(clamp(round(x / scale + zero_point) / ratio))``."""
    start, last = plain[first], plain[second]
    middle = list(plain[first + 1 : second])
    moved = ZERO
    if middle and isinstance(middle[0], Arithmetic) and middle[0].name in ("Add", "Sub"):
        moved = middle[0].value if middle[0].name == "Sub" else -middle[0].value
        middle = middle[1:]
    if start != Rounded(Rounding.ROUND) or not middle or not isinstance(last, Rounded):
        return None
    ratio = middle[0]
    if not (is_step(ratio, "Div") or is_step(ratio, "Mul")):
        return None
    divisor = ratio.value if ratio.name == "Div" else ONE / ratio.value  # type: ignore[union-attr]
    if (np.frexp(divisor)[0] != 0.5).any():
        return None
    before, after = Inward.of(plain[:first]), Outward.of(plain[second + 1 :])
    if before is None or after is None or is_bounded(after.real):
        return None
    rest = Inward.of([Arithmetic("Div", ONE), *middle[1:]])
    if rest is None or rest.offset.any():
        return None
    bounds = [*before.real, *before.codes]
    if after.top is not None or before.ends or rest.ends or is_bounded(bounds):
        return None
    mode = _mode_of_shift(moved, divisor, last.mode)
    if mode is None:
        return None
    lo, hi = both(rest.codes, after.codes)
    zero_point, taken = before.offset, after.taken - after.added
    scales = [ONE if scale is None else scale for scale in (before.scale, after.scale)]
    return Truncating(
        float32(scales[0]),
        float32(zero_point),
        float32(divisor),
        float32(lo),
        float32(hi),
        mode,
        float32(scales[1]),
        float32(taken),
    )


def regridded(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], steps: Sequence[Step]
) -> Truncating | None:
    """Read a truncation that drops nothing and clamps nothing: rounding to a grid, twice."""
    if sum(isinstance(step, Rounded) for step in steps) < 2 or not isinstance(rounding, Rounded):
        return None
    nothing = Arithmetic("Div", ONE)
    doubled = [*inner, rounding, nothing, rounding, *outer]
    return truncating(doubled, len(inner), len(inner) + 2)


def _mode_of_shift(moved: Array, ratio: Array, mode: Rounding) -> Rounding | None:
    """Return the rounding that subtracting ``moved`` and rounding to nearest amounts to."""
    if not moved.any():
        return mode
    if mode is not Rounding.ROUND:
        return None
    half = ratio / np.float32(2) - np.float32(0.5)
    if same(moved, half):
        return Rounding.FLOOR
    return Rounding.CEIL if same(moved, -half) else None

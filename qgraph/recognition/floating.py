"""Quantizers to minifloat grids, as chains of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.formats import Minifloat
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.rounding import Rounding
from qgraph.quantizer import Floating
from qgraph.recognition.sides import (
    HIGHEST,
    LOWEST,
    ONE,
    SAME_SCALE,
    Inward,
    close,
    float32,
    is_bounded,
    is_step,
    narrow,
    number,
    same,
)
from qgraph.recognition.steps import Bound, Encoded, Overflow, Snapped, Step

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def floating(plain: Sequence[Step]) -> Floating | None:
    """Read ``x / scale`` snapped to the grid of a minifloat, times the scale."""
    (place, *others) = [i for i, s in enumerate(plain) if isinstance(s, Snapped | Encoded)]
    before = Inward.of(plain[:place])
    if others or before is None or before.offset.any() or before.ends:
        return None
    core, outer = plain[place], list(plain[place + 1 :])
    scale = ONE if before.scale is None else before.scale
    limit = _symmetric(before.codes)
    if is_bounded(before.real):
        if not same(before.real[0], -before.real[1]):
            return None
        limit = np.minimum(limit, _symmetric(before.real) / np.abs(scale))
    saturates = True
    ends = [LOWEST, HIGHEST]
    while outer and isinstance(outer[0], Bound | Overflow):
        match outer.pop(0):
            case Bound(name, value):
                narrow(ends, name, value)
            case Overflow(value):
                saturates, limit = False, np.minimum(limit, value)
    if not same(ends[0], -ends[1]):
        return None
    limit = np.minimum(limit, ends[1])
    if len(outer) > 1 or not all(is_step(step, "Mul") for step in outer):
        return None
    out_scale = outer[0].value if outer else ONE  # type: ignore[union-attr]
    if before.is_reciprocal and close(scale, out_scale, SAME_SCALE):
        scale = out_scale
    if not same(scale, out_scale):
        return None
    if isinstance(core, Encoded):
        return _cast(core, float32(scale), limit)
    top = number(limit)
    if top is None or not np.isfinite(top) or not isinstance(core, Snapped):
        return None
    return Floating(float32(scale), _format(core, top), core.mode, saturates)


def _cast(core: Encoded, scale: Float32, limit: Array) -> Floating | None:
    kind = core.kind
    if np.isfinite(limit).any():
        # Bounds of the data are multiples of the scale up to a rounding error.
        near = float(kind.snap(limit.reshape(-1)[0]))
        if not close(limit, np.asarray(near), SAME_SCALE):
            return None
        if near != kind.max_value:
            kind = Minifloat(kind.exponent_bits, kind.mantissa_bits, kind.bias, near)
    return Floating(scale, kind, Rounding.ROUND, core.saturates)


def _format(core: Snapped, top: float) -> Minifloat:
    """Return a format with the grid of ``core`` and the largest value ``top``."""
    mantissa, bias = core.mantissa_bits, 1 - core.min_exponent
    for known in MINIFLOATS.values():
        if (known.mantissa_bits, known.bias, known.max_value) == (mantissa, bias, top):
            return known
    exponent = 1
    while (2.0 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias) < top and exponent < 8:
        exponent += 1
    return Minifloat(exponent, mantissa, bias, top)


def _symmetric(ends: list[Array]) -> Array:
    return np.asarray(np.maximum(np.abs(ends[0]), np.abs(ends[1])))

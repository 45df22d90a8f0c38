"""Read quantizers to minifloats from step chains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qgraph.numerics import Array, Float32
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.quantizer import Floating
from qgraph.quantizers.recognition.steps import (
    HIGHEST,
    LOWEST,
    ONE,
    SAME_SCALE,
    ArithmeticStep,
    Encoded,
    Limited,
    NoMatch,
    Overflow,
    Snapped,
    Step,
    require,
    same,
)
from qgraph.quantizers.recognition.taken import (
    BeforeRounding,
    close,
    float32,
    is_bounded,
    narrow,
    number,
    scale_of,
)


def floating(plain: Sequence[Step]) -> Floating:
    """Read ``x / scale`` snapped to the grid of a minifloat, times the scale."""
    (index, *others) = [i for i, s in enumerate(plain) if isinstance(s, Snapped | Encoded)]
    before, core, outer = BeforeRounding.of(plain[:index]), plain[index], plain[index + 1 :]
    require(not others and not before.offset.any() and not before.ends)
    limit = _symmetric(before.codes)
    if is_bounded(before.real):
        require(same(before.real[0], -before.real[1]))
        limit = np.minimum(limit, _symmetric(before.real) / np.abs(before.divisor))
    saturates, ends = True, [LOWEST, HIGHEST]
    out_scale: Array | None = None
    for step in outer:
        match step:
            case Limited(name, value) if out_scale is None:
                narrow(ends, name, value)
            case Overflow(value) if out_scale is None:
                saturates, limit = False, np.minimum(limit, value)
            case ArithmeticStep("Mul", value) if out_scale is None:
                out_scale = value
            case _:
                raise NoMatch
    require(same(ends[0], -ends[1]))
    limit = np.minimum(limit, ends[1])
    out_scale = ONE if out_scale is None else out_scale
    scale = scale_of(before, out_scale)
    require(same(scale, out_scale))
    if isinstance(core, Encoded):
        form = _clamped(core.kind, limit)
        return Floating(float32(scale), form, Rounding.ROUND, core.saturates)
    top = number(limit)
    if top is None or not np.isfinite(top) or not isinstance(core, Snapped):
        raise NoMatch
    return Floating(float32(scale), _format(core, top), core.mode, saturates)


def _clamped(form: Minifloat, limit: Array) -> Minifloat:
    """Return a format whose largest value is at most ``limit``, which lies on its grid."""
    if not np.isfinite(limit).any():
        return form
    # Bounds of the data are multiples of the scale up to a rounding error.
    near = float(form.snap(limit.reshape(-1)[0]))
    require(close(limit, np.asarray(near), SAME_SCALE))
    if near == form.max_value:
        return form
    return Minifloat(form.exponent_bits, form.mantissa_bits, form.bias, near)


def _format(core: Snapped, top: float) -> Minifloat:
    """Return a format with the grid of ``core`` and the largest value ``top``."""
    mantissa, bias = core.mantissa_bits, 1 - core.min_exponent
    for minifloat in MINIFLOATS.values():
        if (minifloat.mantissa_bits, minifloat.bias, minifloat.max_value) == (mantissa, bias, top):
            return minifloat
    exponent = 1
    while (2.0 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias) < top and exponent < 8:
        exponent += 1
    return Minifloat(exponent, mantissa, bias, top)


def _symmetric(ends: list[Array]) -> Float32:
    return float32(np.maximum(np.abs(ends[0]), np.abs(ends[1])))

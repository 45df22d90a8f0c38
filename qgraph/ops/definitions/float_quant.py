"""FloatQuant: rounding to a minifloat of any exponent and mantissa width."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.schema import QONNX_DOMAINS, Attribute, OpSchema
from qgraph.numerics import Array, minifloat
from qgraph.numerics.primitives import power_of_two
from qgraph.numerics.rounding import Rounding
from qgraph.ops import steps
from qgraph.ops.operator import operator
from qgraph.records import dataclass

SCHEMA = OpSchema(
    name="FloatQuant",
    domains=QONNX_DOMAINS,
    inputs=("x", "scale", "exponent_bits", "mantissa_bits", "exponent_bias", "max_value"),
    attributes=(
        Attribute("has_inf", 0, also=("has_infinity",), parse=bool),
        Attribute("has_nan", 0, parse=bool),
        Attribute("has_subnormal", 1, parse=bool),
        Attribute("saturation", 1, parse=bool),
        Attribute("rounding_mode", "ROUND", parse=Rounding.parse, kind=ir.AttributeType.STRING),
    ),
)

# No float32 lies between multiples of 2**-149, so a finer grid needs no rounding.
_FINEST_EXPONENT = -149.0

_MOST_MANTISSA_BITS = 5
"""Number of mantissa bits up to which levels change only at numbers whose lower half is zero."""

_FINEST_STEP = -120
"""The same applies if the smallest step is a normal number; twice that step is used below."""


def define(
    op: Any,
    x: Any,
    scale: Any,
    exponent_bits: Any,
    mantissa_bits: Any,
    exponent_bias: Any,
    max_value: Any,
    *,
    has_inf: bool,
    has_nan: bool,
    has_subnormal: bool,
    saturation: bool,
    rounding_mode: Rounding,
) -> Any:
    """Write FloatQuant in primitives; see :func:`float_quant`."""
    _check_overflow(saturation, has_inf, has_nan)
    v = op.Div(x, scale)
    ulp = op.Pow(2.0, op.Sub(0.0, mantissa_bits))
    lowest = op.Sub(op.Sub(1.0, exponent_bias), mantissa_bits)
    finest = op.Pow(2.0, op.Max(lowest, _FINEST_EXPONENT))
    step = op.Max(op.Mul(steps.floor_power_of_two(op, op.Abs(v)), ulp), finest)
    q = op.Mul(steps.round_to_integer(op, op.Div(v, step), rounding_mode), step)
    top = op.Sub(op.Sub(op.Pow(2.0, exponent_bits), 1.0), exponent_bias)
    limit = op.Min(op.Mul(op.Sub(2.0, ulp), op.Pow(2.0, top)), max_value)
    if saturation:
        q = steps.clamp(op, q, op.Neg(limit), limit)
    elif has_inf:
        beyond = op.Where(op.Greater(q, 0.0), float("inf"), float("-inf"))
        q = op.Where(op.Greater(op.Abs(q), limit), beyond, q)
    else:
        q = op.Where(op.Greater(op.Abs(q), limit), float("nan"), q)
    return op.Mul(q, scale)


@dataclass(frozen=True, eq=False)
class FloatStages(steps.Stages):
    """The operations of FloatQuant; parameters are scale, mantissa bits, lowest exponent, limit."""

    has_inf: bool
    saturation: bool
    rounding_mode: Rounding

    @classmethod
    def of(
        cls,
        dtype: np.dtype[Any],
        scale: Array,
        exponent_bits: Array,
        mantissa_bits: Array,
        exponent_bias: Array,
        max_value: Array,
        *,
        has_inf: bool,
        has_nan: bool,
        has_subnormal: bool,
        saturation: bool,
        rounding_mode: Rounding,
    ) -> FloatStages:
        """Return the operations; see :func:`float_quant`."""
        del has_subnormal  # an attribute of the node all the same
        _check_overflow(saturation, has_inf, has_nan)
        if dtype != np.float32:
            raise ValueError(f"its data is {dtype}, expected float32; put a Cast in front of it")
        e = steps.whole("exponent_bits", exponent_bits, 1, 8)
        m = steps.whole("mantissa_bits", mantissa_bits, 0, 23)
        bias = steps.whole("exponent_bias", exponent_bias, -1000, 1000)
        s = np.asarray(scale).astype(np.float32, copy=False)
        top = np.asarray(max_value).astype(np.float32)
        one = np.float32(1)
        binade = power_of_two(power_of_two(e) - one - bias)
        limit = np.minimum((np.float32(2) - power_of_two(-m)) * binade, top)
        return cls((s, m, np.asarray(one - bias), limit), has_inf, saturation, rounding_mode)

    @property
    def by_upper_half(self) -> bool:
        """Whether the grid is coarse and the same for all data.

        Where a half is added before rounding, the number next to a tie may become the tie.
        """
        _, m, lowest, limit = self.arrays
        return (
            self.rounding_mode not in (Rounding.HALF_UP, Rounding.HALF_DOWN)
            and m.size == lowest.size == limit.size == 1
            and m.item() <= _MOST_MANTISSA_BITS
            and lowest.item() - m.item() > _FINEST_STEP
        )

    def level(self, y: Array, *arrays: Array) -> None:
        """Round to the grid, then clamp."""
        _, m, lowest, limit = arrays
        bound = limit if self.saturation else np.inf
        minifloat.snap(y, m, lowest, bound, self.rounding_mode, out=y)
        if not self.saturation:
            instead = np.copysign(np.float32(np.inf), y) if self.has_inf else np.float32(np.nan)
            np.copyto(y, instead, where=np.abs(y) > limit)

    def value(self, y: Array, *arrays: Array) -> None:
        """Multiply by the scale."""
        np.multiply(y, arrays[0], out=y)

    def levels(self) -> Array | None:
        """Return all points of a coarse grid, zeros of both signs and infinities included."""
        if not self.by_upper_half:
            return None
        parameters = [array.reshape(()) for array in (np.zeros(1), *self.arrays[1:])]
        return steps.grid_levels(lambda y: self.level(y, *parameters))


@operator(SCHEMA, define=define, stages=FloatStages.of)
def float_quant(
    x: Array,
    scale: Array,
    exponent_bits: Array,
    mantissa_bits: Array,
    exponent_bias: Array,
    max_value: Array,
    *,
    has_inf: bool,
    has_nan: bool,
    has_subnormal: bool,
    saturation: bool,
    rounding_mode: Rounding,
) -> Array:
    """Round to the grid of a signed minifloat (QONNX FloatQuant).

    v = x / scale
    k = max(floor(log2|v|), 1 - exponent_bias) - mantissa_bits             exact exponent
    q = 2**k * round_to_integer(v / 2**k)
    M = min((2 - 2**-mantissa_bits) * 2**(2**exponent_bits - 1 - exponent_bias), max_value)
    q = min(max(q, -M), M)           saturation; otherwise |q| > M gives +-Inf, or NaN
    out = q * scale                                      one rounding per operation, in this order

    The clamp comes after rounding, to M itself even where that is no grid point. NaN stays NaN, -0
    stays -0, and infinities give +-M * scale when saturating.

    Args:
        x: ``[*shape]`` real values, float32.
        scale: real units per unit of the minifloat. It and the other parameters broadcast with
            ``x`` both ways, as NumPy does.
        exponent_bits: whole number from 1 to 8.
        mantissa_bits: stored bits of the fraction, whole number from 0 to 23.
        exponent_bias: whole number; the smallest normal is 2**(1 - exponent_bias).
        max_value: largest magnitude, in units of the minifloat.
        has_inf: overflow that does not saturate becomes infinite.
        has_nan: it becomes NaN, unless ``has_inf``.
        has_subnormal: without effect; subnormals are always used.
        saturation: clamp rather than overflow.
        rounding_mode: how multiples of the step are rounded.

    Returns: ``[*broadcast shape]`` real values, float32.
    Raises: ValueError if a width is out of its range or not whole, overflow has nothing to become,
        a shape does not broadcast, or ``x`` is not float32.
    Source: QONNX FloatQuant page; its code rather than its prose where they differ (attributes),
        and the exact exponent in place of its float log2.
    """
    x = np.asarray(x)
    shape = steps.broadcast(
        x,
        scale=np.asarray(scale),
        exponent_bits=np.asarray(exponent_bits),
        mantissa_bits=np.asarray(mantissa_bits),
        exponent_bias=np.asarray(exponent_bias),
        max_value=np.asarray(max_value),
    )
    stages = FloatStages.of(
        x.dtype,
        scale,
        exponent_bits,
        mantissa_bits,
        exponent_bias,
        max_value,
        has_inf=has_inf,
        has_nan=has_nan,
        has_subnormal=has_subnormal,
        saturation=saturation,
        rounding_mode=rounding_mode,
    )
    return steps.fill(stages, shape, x)


def _check_overflow(saturation: bool, has_inf: bool, has_nan: bool) -> None:
    if not (saturation or has_inf or has_nan):
        raise ValueError(
            "saturation, has_inf and has_nan are all 0, so that overflow has no value; "
            "expected at least one of them. Set saturation to 1"
        )

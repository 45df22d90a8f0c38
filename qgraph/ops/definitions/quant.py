"""Quant and BipolarQuant.

Quant is a uniform quantizer of any bit width, whose zero point is added before rounding.
BipolarQuant is the sign of a value, times a scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.schema import QONNX_DOMAINS, Attribute, OpSchema
from qgraph.numerics import Array, Mask, chunks, rounding
from qgraph.numerics.primitives import power_of_two
from qgraph.numerics.rounding import Rounding
from qgraph.ops import steps
from qgraph.ops.operator import operator
from qgraph.records import dataclass

SCHEMA = OpSchema(
    name="Quant",
    also=("IntQuant",),
    domains=QONNX_DOMAINS,
    inputs=("x", "scale", "zero_point", "bits"),
    attributes=(
        Attribute("signed", 1, parse=bool),
        Attribute("narrow", 0, parse=bool),
        Attribute("rounding_mode", "ROUND", parse=Rounding.parse, kind=ir.AttributeType.STRING),
    ),
)


def define(
    op: Any,
    x: Any,
    scale: Any,
    zero_point: Any,
    bits: Any,
    *,
    signed: bool,
    narrow: bool,
    rounding_mode: Rounding,
) -> Any:
    """Write Quant in primitives; see :func:`quant`."""
    y = op.Add(op.Div(x, scale), zero_point)
    lo, hi = steps.code_range(op, bits, signed=signed, narrow=narrow)
    q = steps.round_to_integer(op, steps.clamp(op, y, lo, hi), rounding_mode)
    if signed:
        bipolar = op.Where(op.GreaterOrEqual(y, 0.0), 1.0, -1.0)
        q = op.Where(op.Equal(bits, 1.0), bipolar, q)
    return op.Mul(op.Sub(q, zero_point), scale)


@dataclass(frozen=True, eq=False)
class QuantStages(steps.Stages):
    """The operations of Quant; parameters are scale, zero point, lo, hi, and which are bipolar."""

    rounding_mode: Rounding
    has_bipolar: bool

    @classmethod
    def of(
        cls,
        dtype: np.dtype[Any],
        scale: Array,
        zero_point: Array,
        bits: Array,
        *,
        signed: bool,
        narrow: bool,
        rounding_mode: Rounding,
    ) -> QuantStages:
        """Return the operations on data of ``dtype``; see :func:`quant`."""
        width = steps.whole("bits", bits, 1)
        s = np.asarray(scale).astype(dtype, copy=False)
        z = np.asarray(zero_point).astype(dtype, copy=False)
        lo, hi = (bound.astype(dtype) for bound in code_bounds(width, signed, narrow))
        single = (width == 1) & signed
        return cls((s, z, lo, hi, single), rounding_mode, bool(single.any()))

    def place(self, y: Array, x: Array, *arrays: Array) -> None:
        """Divide by the scale and add the zero point."""
        s, z, *_ = arrays
        np.divide(x, s, out=y)
        np.add(y, z, out=y)

    def level(self, y: Array, *arrays: Array) -> None:
        """Clamp and round."""
        _, _, lo, hi, single = arrays
        signs = bipolar(y >= 0, y.dtype) if self.has_bipolar else None
        np.maximum(y, lo, out=y)
        np.minimum(y, hi, out=y)
        rounding.round_to_integer(y, self.rounding_mode, out=y)
        if signs is not None:
            np.copyto(y, signs, where=single)

    def value(self, y: Array, *arrays: Array) -> None:
        """Subtract the zero point and multiply by the scale."""
        s, z, *_ = arrays
        np.subtract(y, z, out=y)
        np.multiply(y, s, out=y)

    def levels(self) -> Array | None:
        """Return the whole numbers from the smallest to the largest code."""
        lo, hi = float(self.arrays[2].min()), float(self.arrays[3].max())
        if self.has_bipolar or hi - lo >= steps.MOST_LEVELS:
            return None
        return np.arange(lo, hi + 1, dtype=np.float32)


@operator(SCHEMA, define=define, stages=QuantStages.of)
def quant(
    x: Array,
    scale: Array,
    zero_point: Array,
    bits: Array,
    *,
    signed: bool,
    narrow: bool,
    rounding_mode: Rounding,
) -> Array:
    """Round to the grid of an integer code of ``bits`` bits (QONNX Quant, IntQuant).

    y = x / scale + zero_point
    q = round_to_integer(min(max(y, lo), hi))            1 bit signed: +1 if y >= 0 else -1
    out = (q - zero_point) * scale                       one rounding per operation, in this order

    signed    lo = narrow - 2**(bits-1), hi = 2**(bits-1) - 1
    unsigned  lo = 0,                    hi = 2**bits - 1 - narrow

    The bounds are exact integers rounded once to float32, so a code of more than 24 bits may reach
    2**bits. NaN stays NaN (1 bit signed: -1), infinities saturate; a scale that is zero, infinite
    or NaN is computed with like any other.

    Args:
        x: ``[*shape]`` real values of a floating-point type.
        scale: real units per step. Broadcasts with ``x`` both ways, as NumPy does.
        zero_point: code of the real zero in steps, also fractional; broadcasts likewise. It and
            the scale are cast to the type of ``x`` first, whatever their own type.
        bits: width of the code, a whole number of at least 1; broadcasts likewise.
        signed: two's complement rather than unsigned codes.
        narrow: leave out the lowest code if signed, the highest if unsigned.
        rounding_mode: how y becomes an integer, see :mod:`qgraph.numerics.rounding`.

    Returns: ``[*broadcast shape]`` real values, dtype of ``x``.
    Raises: ValueError if bits is not a whole number of at least 1, a shape does not broadcast, or
        ``x`` is not floating-point.
    Source: QONNX Quant page; where its prose and its code differ, the code (narrow applies to
        unsigned codes too), and its executor (1 bit signed is bipolar).
    """
    x = steps.real_data(x)
    stages = QuantStages.of(
        x.dtype, scale, zero_point, bits, signed=signed, narrow=narrow, rounding_mode=rounding_mode
    )
    s, z, _, _, single = stages.arrays
    return steps.fill(stages, steps.broadcast(x, scale=s, zero_point=z, bits=single), x)


def bipolar(positive: Mask, dtype: np.dtype[Any]) -> Array:
    """Return +1 where ``positive``, -1 elsewhere; arithmetic is faster than a choice."""
    signs = positive.astype(dtype)
    signs += signs
    signs -= dtype.type(1)
    return signs


def code_bounds(bits: Array, signed: bool, narrow: bool) -> tuple[Array, Array]:
    """Return the smallest and largest codes of float32 ``bits``, each rounded once to float32."""
    one = np.float32(1)
    if signed:
        half = power_of_two(bits - one)
        return np.asarray(np.float32(narrow) - half), np.asarray(half - one)
    top = power_of_two(bits) - (one + np.float32(narrow))
    return np.zeros_like(top), np.asarray(top)


BIPOLAR_SCHEMA = OpSchema(name="BipolarQuant", domains=QONNX_DOMAINS, inputs=("x", "scale"))


def define_bipolar(op: Any, x: Any, scale: Any) -> Any:
    """Write BipolarQuant in primitives; see :func:`bipolar_quant`."""
    return op.Mul(op.Where(op.GreaterOrEqual(x, 0.0), 1.0, -1.0), scale)


@dataclass(frozen=True, eq=False)
class BipolarStages(steps.Stages):
    """The operations of BipolarQuant; parameters are the magnitude of the scale, and the scale.

    Data is divided by a scale that is at most 1, so that none becomes zero. Places are then in
    units of the scale, as those of other quantizers are.
    """

    @classmethod
    def of(cls, dtype: np.dtype[Any], scale: Array) -> BipolarStages | None:
        """Return the operations on data of ``dtype``; None for scales beyond 1."""
        s = np.asarray(scale).astype(dtype, copy=False)
        magnitude = np.abs(s)
        return cls((magnitude, s)) if (magnitude <= 1).all() else None

    def level(self, y: Array, *arrays: Array) -> None:
        """Replace places by their signs."""
        np.copyto(y, bipolar(y >= 0, y.dtype))

    def value(self, y: Array, *arrays: Array) -> None:
        """Multiply by the scale."""
        np.multiply(y, arrays[1], out=y)

    def levels(self) -> Array:
        """Return -1 and 1."""
        return np.asarray([-1, 1], np.float32)


@operator(BIPOLAR_SCHEMA, define=define_bipolar, stages=BipolarStages.of)
def bipolar_quant(x: Array, scale: Array) -> Array:
    """Replace values by plus or minus the scale (QONNX BipolarQuant).

    out = (+1 if x >= 0 else -1) * scale

    Both zeros give +scale, NaN gives -scale. Not the same as a Quant of one bit, which tests
    x / scale + zero_point.

    Args:
        x: ``[*shape]`` real values of a floating-point type.
        scale: magnitude of the result in real units, cast to the type of ``x``. Broadcasts with
            ``x`` both ways, as NumPy does.

    Returns: ``[*broadcast shape]`` real values, dtype of ``x``.
    Raises: ValueError if the shapes do not broadcast, or ``x`` is not floating-point.
    Source: QONNX BipolarQuant and its executor.
    """
    x = steps.real_data(x)
    s = np.asarray(scale).astype(x.dtype)
    y = np.empty(steps.broadcast(x, scale=s), x.dtype)

    def work(y: Array, x: Array, s: Array) -> None:
        np.multiply(bipolar(x >= 0, s.dtype), s, out=y)

    return chunks.fill(work, y, x, s)

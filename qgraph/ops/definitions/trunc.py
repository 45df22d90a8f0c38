"""Trunc: dropping the low bits of integer codes, in two versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import array_of
from qgraph.graph.draft_parts import Tracer
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import QONNX_DOMAINS, Attribute, OpSchema
from qgraph.numerics import Array, Float32, chunks, rounding
from qgraph.numerics.minifloat import floor_power_of_two
from qgraph.numerics.primitives import power_of_two
from qgraph.numerics.rounding import Rounding
from qgraph.ops import steps
from qgraph.ops.definitions.quant import code_bounds
from qgraph.ops.operator import operator, operator_of

_ATTRIBUTES = (
    Attribute("rounding_mode", "FLOOR", parse=Rounding.parse, kind=ir.AttributeType.STRING),
    Attribute("signed", 1, parse=bool),
    Attribute("narrow", 0, parse=bool),
)

SCHEMA = OpSchema(
    name="Trunc",
    domains=QONNX_DOMAINS,
    inputs=("x", "scale", "zero_point", "in_bits", "out_bits"),
    attributes=_ATTRIBUTES,
)

SCHEMA_2 = OpSchema(
    name="Trunc",
    domains=QONNX_DOMAINS,
    inputs=("x", "scale", "zero_point", "in_bits", "out_scale", "out_bits"),
    attributes=_ATTRIBUTES,
    since=2,
)

# The float32 neighbours of sqrt(2) lie on different sides of it; this is the upper one.
ABOVE_SQRT_2 = float(np.uint32(0x3FB504F4).view(np.float32))


def define(
    op: Any,
    x: Any,
    scale: Any,
    zero_point: Any,
    in_bits: Any,
    out_bits: Any,
    *,
    rounding_mode: Rounding,
    signed: bool,
    narrow: bool,
) -> Any:
    """Write version 1 in primitives; see :func:`trunc`."""
    codes = op.Round(op.Add(op.Div(x, scale), zero_point))
    kept = op.Div(codes, op.Pow(2.0, op.Sub(in_bits, out_bits)))
    return op.Mul(op.Sub(steps.round_to_integer(op, kept, rounding_mode), zero_point), scale)


@operator(SCHEMA, define=define)
def trunc(
    x: Array,
    scale: Array,
    zero_point: Array,
    in_bits: Array,
    out_bits: Array,
    *,
    rounding_mode: Rounding,
    signed: bool,
    narrow: bool,
) -> Array:
    """Drop low bits of values that lie on an integer grid (QONNX Trunc, version 1).

    c = round_half_even(x / scale + zero_point)
    q = round_to_integer(c / 2**(in_bits - out_bits))
    out = (q - zero_point) * scale                       one rounding per operation, in this order

    There is no clamp, and the unit of the result is ``scale``, not a multiple of it. NaN stays
    NaN and infinities stay infinite. The two roundings are not one: 2.5 with two bits dropped is
    first 2, then 0.5, then 0.

    Args:
        x: ``[*shape]`` real values of a floating-point type.
        scale: real units per step of the input grid. It and the other parameters broadcast with
            ``x`` both ways, as NumPy does, and are cast to its type.
        zero_point: code of the real zero on the input grid, in steps.
        in_bits: width of the input code in bits, a whole number of at least 1.
        out_bits: width of the output code likewise; the difference is what is dropped.
        rounding_mode: of the second rounding, see :mod:`qgraph.numerics.rounding`.
        signed: without effect in this version.
        narrow: without effect in this version.

    Returns: ``[*broadcast shape]`` real values, dtype of ``x``.
    Raises: ValueError if a bit width is not a whole number of at least 1, a shape does not
        broadcast, or ``x`` is not floating-point.
    Source: QONNX executor, Trunc of opset version 1.
    """
    del signed, narrow  # attributes of the node all the same
    x = steps.real_data(x)
    wide = steps.whole("in_bits", in_bits, 1)
    thin = steps.whole("out_bits", out_bits, 1)
    s = np.asarray(scale).astype(x.dtype)
    z = np.asarray(zero_point).astype(x.dtype)
    shape = steps.broadcast(x, scale=s, zero_point=z, in_bits=wide, out_bits=thin)
    ratio = np.asarray(power_of_two(wide - thin)).astype(x.dtype)

    def work(y: Array, x: Array, s: Array, z: Array, ratio: Array) -> None:
        _input_codes(y, x, s, z)
        np.divide(y, ratio, out=y)
        rounding.round_to_integer(y, rounding_mode, out=y)
        np.subtract(y, z, out=y)
        np.multiply(y, s, out=y)

    return chunks.fill(work, np.empty(shape, x.dtype), x, s, z, ratio)


def define_2(
    op: Any,
    x: Any,
    scale: Any,
    zero_point: Any,
    in_bits: Any,
    out_scale: Any,
    out_bits: Any,
    *,
    rounding_mode: Rounding,
    signed: bool,
    narrow: bool,
) -> Any:
    """Write version 2 in primitives; see :func:`trunc_2`."""
    ratio = op.Div(out_scale, scale)
    power = steps.floor_power_of_two(op, ratio)
    upper = op.GreaterOrEqual(op.Div(ratio, power), ABOVE_SQRT_2)
    nearest = op.Where(upper, op.Add(power, power), power)
    t = op.Where(op.Greater(ratio, 0.0), nearest, float("nan"))
    codes = op.Round(op.Add(op.Div(x, scale), zero_point))
    lo, hi = steps.code_range(op, out_bits, signed=signed, narrow=narrow)
    kept = steps.clamp_by_comparison(op, op.Div(codes, t), lo, hi)
    q = steps.round_to_integer(op, kept, rounding_mode)
    return op.Mul(op.Sub(q, op.Div(zero_point, t)), out_scale)


@operator(SCHEMA_2, define=define_2)
def trunc_2(
    x: Array,
    scale: Array,
    zero_point: Array,
    in_bits: Array,
    out_scale: Array,
    out_bits: Array,
    *,
    rounding_mode: Rounding,
    signed: bool,
    narrow: bool,
) -> Array:
    """Drop low bits of values that lie on an integer grid (QONNX Trunc, version 2).

    t = 2**round(log2(out_scale / scale))                exact: the switch is at sqrt(2)
    c = round_half_even(x / scale + zero_point)
    q = round_to_integer(min(max(c / t, lo), hi))        bounds of out_bits as in Quant
    out = (q - zero_point / t) * out_scale               one rounding per operation, in this order

    Only t is a power of two, out_scale stays what it is. zero_point / t may be fractional. NaN
    stays NaN, zeros keep their sign, infinities saturate; a ratio of scales that is not positive
    gives NaN, one below
    2**-127 counts as up to 2**-126. One signed bit means {-1, 0} here.

    Args:
        x: ``[*shape]`` real values of a floating-point type.
        scale: real units per step of the input grid. It and the other parameters broadcast with
            ``x`` both ways, as NumPy does, and are cast to its type.
        zero_point: code of the real zero on the input grid, in steps.
        in_bits: width of the input code; a whole number of at least 1, otherwise without effect.
        out_scale: real units per step of the output grid.
        out_bits: width of the output code in bits, a whole number of at least 1.
        rounding_mode: of the second rounding, see :mod:`qgraph.numerics.rounding`.
        signed: whether the output code is signed, as in Quant.
        narrow: whether it leaves a code out, as in Quant.

    Returns: ``[*broadcast shape]`` real values, dtype of ``x``.
    Raises: ValueError if a bit width is not a whole number of at least 1, a shape does not
        broadcast, or ``x`` is not floating-point.
    Source: QONNX Trunc page, version 2, with the exact exponent in place of a float log2.
    """
    x = steps.real_data(x)
    wide = steps.whole("in_bits", in_bits, 1)
    width = steps.whole("out_bits", out_bits, 1)
    s = np.asarray(scale).astype(x.dtype)
    z = np.asarray(zero_point).astype(x.dtype)
    out = np.asarray(out_scale).astype(x.dtype)
    shape = steps.broadcast(x, scale=s, zero_point=z, in_bits=wide, out_scale=out, out_bits=width)
    t = np.asarray(nearest_power_of_two(out / s)).astype(x.dtype)
    lo, hi = (bound.astype(x.dtype) for bound in code_bounds(width, signed, narrow))
    moved = np.asarray(z / t)

    def work(
        y: Array, x: Array, s: Array, z: Array, t: Array, lo: Array, hi: Array, *rest: Array
    ) -> None:
        moved, out = rest
        _input_codes(y, x, s, z)
        np.divide(y, t, out=y)
        chunks.put(y, hi, y > hi)
        chunks.put(y, lo, y < lo)
        rounding.round_to_integer(y, rounding_mode, out=y)
        np.subtract(y, moved, out=y)
        np.multiply(y, out, out=y)

    return chunks.fill(work, np.empty(shape, x.dtype), x, s, z, t, lo, hi, moved, out)


def write_trunc(draft: Draft, node: ir.Node) -> Operand:
    """Write the definition of a Trunc as nodes; raise OperatorError if a parameter is data."""
    x, *parameters = (value for value in node.inputs if value is not None)
    arrays = [array for value in parameters if (array := array_of(value)) is not None]
    definition = operator_of(node)
    if definition is None or len(arrays) < len(parameters):
        raise OperatorError(f"{where(node)}: its parameters are not constant")
    draft.needs(_OPSET)
    numbers = [array.astype(np.float32) for array in arrays]
    result: Operand = definition.define(Tracer(draft), x, *numbers, **definition.arguments(node))
    return result


_OPSET = 13
"""Opset with the primitives of Trunc."""


def _input_codes(y: Array, x: Array, s: Array, z: Array) -> None:
    np.divide(x, s, out=y)
    np.add(y, z, out=y)
    np.rint(y, out=y)


def nearest_power_of_two(ratio: Array) -> Float32:
    """Return ``2**round(log2(ratio))``, exactly; NaN where a ratio is not positive."""
    values = np.asarray(ratio).astype(np.float32)
    power = floor_power_of_two(values)
    power = np.where(values / power >= np.float32(ABOVE_SQRT_2), power + power, power)
    return np.where(values > 0, power, np.float32(np.nan))

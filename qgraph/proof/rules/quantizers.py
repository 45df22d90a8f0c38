"""Casts, and quantizers that are not traced by their definitions.

By definition, FakeQuantize compares the data with the limits of its range, BipolarQuant with 0, and
FloatQuant finds the step of each number. The rules here compute the same: a comparison selects the
first or the last code, as a clip of codes does. QuantizeLinear and DequantizeLinear of 16-bit types
are defined in these types. A Cast to codes is traced by its definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qgraph.errors import OperatorError
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.approximation import ARITHMETIC, rounded
from qgraph.ops.definitions.fake_quantize import SCHEMA as FAKE_QUANTIZE
from qgraph.ops.definitions.float_quant import SCHEMA as FLOAT_QUANT
from qgraph.ops.definitions.quant import BIPOLAR_SCHEMA
from qgraph.ops.definitions.trunc import ABOVE_SQRT_2
from qgraph.ops.definitions.trunc import SCHEMA_2 as TRUNC
from qgraph.ops.operator import operator_of
from qgraph.ops.steps import code_range, round_to_integer
from qgraph.proof.bounds.evaluate import shape_of_data, traced
from qgraph.proof.bounds.quantity import Event, Operand, Pending, Quantity, stored
from qgraph.proof.bounds.rule import NodeCall, bound_rule
from qgraph.proof.functions.lowering import parameter_array
from qgraph.reasons import NOT_COMPUTED, Undecidable

_REALS = frozenset({*ARITHMETIC, "DOUBLE"})


@bound_rule("Cast", "CastLike")
def cast(call: NodeCall) -> Operand:
    """Cast: the numbers in another type, rounded once if it has fewer digits."""
    source, result = call.value(0), call.node.outputs[0]
    names = [value.dtype.name if value and value.dtype else "" for value in (source, result)]
    if not _REALS.issuperset(names):
        if call.node.op_type == "CastLike":
            raise call.refusal("codes")
        return traced(call)
    x = call.quantity(0)
    if x.value is not None:
        return stored(x, names[1])
    kinds = [ARITHMETIC.get(name) for name in names]
    if kinds[1] is None or kinds[0] is kinds[1]:
        return x
    return rounded(x, kinds[1])


@bound_rule(*FAKE_QUANTIZE.keys)
def fake_quantize(call: NodeCall) -> Operand:
    """``q = round((x - il) / (ih - il) * (L - 1))``, clipped to 0 .. L - 1."""
    x, low, high, bottom, top = (call.quantity(index) for index in range(5))
    if low.value is None or high.value is None or not (low.value < high.value).all():
        raise call.refusal("no input range")
    last = float(call.whole("levels") - 1)
    tracer = call.tracer
    share: Any = tracer.Div(tracer.Sub(x, low), tracer.Sub(high, low))
    codes = tracer.Min(tracer.Max(tracer.Round(tracer.Mul(share, last)), 0.0), last)
    step = tracer.Sub(top, bottom)
    return tracer.Add(tracer.Mul(tracer.Div(codes, last), step), bottom)  # type: ignore[no-any-return]


@bound_rule(*BIPOLAR_SCHEMA.keys)
def bipolar_quant(call: NodeCall) -> Operand:
    """``y = scale if x >= 0 else -scale``."""
    x, scale = call.quantity(0), call.quantity(1)
    if x.value is not None:
        return call.tracer.Mul(np.where(x.value >= 0, 1.0, -1.0), scale)  # type: ignore[no-any-return]
    codes = Pending(Event("Sign", x, call.node), -np.ones(()), np.ones(()), np.zeros(()))
    return call.tracer.Mul(codes, scale)  # type: ignore[no-any-return]


@bound_rule(*FLOAT_QUANT.keys)
def float_quant(call: NodeCall) -> Operand:
    """``y = clip(round(x / s to the grid)) * s``."""
    arguments = FLOAT_QUANT.attributes_of(call.node)
    x, scale = call.quantity(0), call.quantity(1)
    numbers = []
    for index in range(2, 6):
        number = call.constant(index)
        if number is None or number.numbers.size != 1:
            raise call.refusal("formats that differ between channels")
        numbers.append(float(number.numbers.reshape(())))
    e, m, bias, largest = numbers
    if x.value is not None or not arguments["saturation"]:
        raise call.refusal("constants, or numbers beyond the largest")
    limit = min((2 - 2.0**-m) * 2.0 ** (2**e - 1 - bias), largest)
    steps = call.tracer.quantity(call.tracer.Div(x, scale))
    mode = arguments["rounding_mode"]
    return call.tracer.Mul(call.tracer.snapped(steps, int(m), int(1 - bias), limit, mode), scale)  # type: ignore[no-any-return]


@bound_rule(*TRUNC.keys)
def trunc(call: NodeCall) -> Operand:
    """Of version 2: ``q = round(clip(round(x / s + z) / t))``; t is a power of two."""
    if not TRUNC.accepts(call.node):
        return traced(call)
    arguments = TRUNC.attributes_of(call.node)
    x, scale, zero, _, result, bits = (call.quantity(index) for index in range(6))
    if x.value is not None or (result.numbers / scale.numbers <= 0).any():
        raise call.refusal("constants, or scales of two signs")
    ratio = result.numbers.astype(np.float32) / scale.numbers.astype(np.float32)
    mantissas, exponents = np.frexp(ratio)
    t = np.ldexp(1.0, exponents - 1 + (2 * mantissas >= np.float32(ABOVE_SQRT_2)))
    tracer: Any = call.tracer
    codes = tracer.Div(tracer.Round(tracer.Add(tracer.Div(x, scale), zero)), t)
    low, high = code_range(tracer, bits, signed=arguments["signed"], narrow=arguments["narrow"])
    kept = tracer.Min(tracer.Max(codes, low), high)
    q = round_to_integer(tracer, kept, arguments["rounding_mode"])
    return tracer.Mul(tracer.Sub(q, tracer.Div(zero, t)), result)  # type: ignore[no-any-return]


@bound_rule("QuantizeLinear", OpKey(MICROSOFT, "QuantizeLinear"))
def quantize_linear(call: NodeCall) -> Operand:
    """By its definition; 16-bit data beyond the last codes is clipped first."""
    if not _is_of_16_bits(call):
        return traced(call)
    x = call.quantity(0)
    if x.value is not None:
        raise call.refusal("constants of 16 bits")
    scale = np.abs(call.tracer.quantity(_parameters(call)[0]).numbers)
    dtype = call.node.outputs[0].dtype
    codes = None if dtype is None else FORMATS.get(dtype.name)
    if isinstance(codes, IntFormat) and codes.bits <= _BITS:
        # An overflow gives the first or the last code, too.
        x = call.tracer.clipped(x, -scale * _BEYOND_CODES, scale * _BEYOND_CODES)
    return _defined(call, x)


_BITS = 8
_BEYOND_CODES = 2.0**14
"""By bits of codes: steps beyond all codes, and below the largest number of each type."""


@bound_rule("DequantizeLinear", OpKey(MICROSOFT, "DequantizeLinear"))
def dequantize_linear(call: NodeCall) -> Operand:
    """By its definition; the result is stored in its type."""
    return _defined(call, call.operand(0)) if _is_of_16_bits(call) else traced(call)


def _is_of_16_bits(call: NodeCall) -> bool:
    return call.tracer.arithmetic.unit != ARITHMETIC["FLOAT"].unit


def _parameters(call: NodeCall) -> list[Any]:
    shape = shape_of_data(call.node)
    return [
        parameter_array(call.node, value, shape, call.array)
        for value in call.node.inputs[1:]
        if value is not None
    ]


def _defined(call: NodeCall, x: Operand) -> Operand:
    operator = operator_of(call.node)
    if operator is None:
        raise call.refusal()
    try:
        arguments = operator.half_arguments(call.node)
    except OperatorError as error:
        raise Undecidable(NOT_COMPUTED(str(error))) from error
    result: Operand = operator.define(call.tracer, x, *_parameters(call), **arguments)
    dtype = call.node.outputs[0].dtype
    if isinstance(result, Quantity) and dtype is not None:
        return stored(result, dtype.name)
    return result

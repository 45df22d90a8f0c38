"""Quantizers and Casts, and operators that compute codes, such as QLinearConv and QLinearAdd.

By definition, FakeQuantize compares the data with the limits of its range, BipolarQuant with 0, and
FloatQuant finds the step of each number. A comparison selects the first or the last code here, as a
clip of codes does. QuantizeLinear and DequantizeLinear of 16-bit types are defined in these types.

The sum of products of codes is exact, by the definitions in :mod:`qgraph.ops.integer.kernels`. The
following operations round: the multiplier, the sum as a float, their product.

Operators such as QLinearAdd decode, compute in real numbers, and quantize the result.
Implementations round at different points: some decode first and divide by the scale of the result,
others multiply codes by ratios of scales. Let m be the largest magnitude of all added numbers, in
steps of the result. Then the additional error of each form is at most ``8 u m``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.conditions import WRAPPED_SUM
from qgraph.errors import OperatorError
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Float64
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.approximation import ARITHMETIC, FLOAT32, rounded
from qgraph.ops.definitions.fake_quantize import SCHEMA as FAKE_QUANTIZE
from qgraph.ops.definitions.float_quant import SCHEMA as FLOAT_QUANT
from qgraph.ops.definitions.quant import BIPOLAR_SCHEMA
from qgraph.ops.definitions.trunc import ABOVE_SQRT_2, SCHEMA_2 as TRUNC
from qgraph.ops.integer.products import SIGNATURES, Result
from qgraph.ops.operator import operator_of
from qgraph.ops.steps import code_range, round_to_integer
from qgraph.ops.sums_of_products import RIGHT
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.evaluate import shape_of_data, traced
from qgraph.proof.bounds.moved_elements import mapped
from qgraph.proof.bounds.quantity import Event, Operand, Pending, Quantity, constant, stored
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of, sizes_of
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.functions.lowering import parameter_array
from qgraph.proof.rules.curves import applied
from qgraph.proof.rules.movements import joined, transposed
from qgraph.proof.rules.normalizations import OF_ONE_AXIS, softmax_of
from qgraph.proof.rules.products import convolved, of_rows, product_of_data
from qgraph.proof.rules.sums import mean_over, pooled, reduced_axes, sum_of_products, without_axes
from qgraph.reasons import AT_RUN_TIME, NOT_COMPUTED, OVERFLOW, Undecidable

_REALS = frozenset({*ARITHMETIC, "DOUBLE"})


@bound_rule("Cast", "CastLike")
def cast(call: NodeCall) -> Operand:
    """Return the numbers in another type, rounded once if it has fewer digits."""
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
    return x if kinds[1] is None or kinds[0] is kinds[1] else rounded(x, kinds[1])


@bound_rule(*FAKE_QUANTIZE.keys)
def fake_quantize(call: NodeCall) -> Operand:
    """``q = round((x - il) / (ih - il) * (L - 1))``, clipped to 0 .. L - 1."""
    x, low, high, bottom, top = (call.quantity(index) for index in range(5))
    if low.value is None or high.value is None or not (low.value < high.value).all():
        raise call.refusal("no input range")
    last = float(call.whole("levels") - 1)
    tracer = call.tracer
    share = tracer.Div(tracer.Sub(x, low), tracer.Sub(high, low))
    codes = tracer.Min(tracer.Max(tracer.Round(tracer.Mul(share, last)), 0.0), last)
    step = tracer.Sub(top, bottom)
    return tracer.Add(tracer.Mul(tracer.Div(codes, last), step), bottom)


@bound_rule(*BIPOLAR_SCHEMA.keys)
def bipolar_quant(call: NodeCall) -> Operand:
    """``y = scale if x >= 0 else -scale``."""
    x, scale = call.quantity(0), call.quantity(1)
    if x.value is not None:
        return call.tracer.Mul(np.where(x.value >= 0, 1.0, -1.0), scale)
    codes = Pending(Event("Sign", x, call.node), -np.ones(()), np.ones(()), np.zeros(()))
    return call.tracer.Mul(codes, scale)


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
    return call.tracer.Mul(call.tracer.snapped(steps, int(m), int(1 - bias), limit, mode), scale)


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
    tracer = call.tracer
    codes = tracer.Div(tracer.Round(tracer.Add(tracer.Div(x, scale), zero)), t)
    low, high = code_range(tracer, bits, signed=arguments["signed"], narrow=arguments["narrow"])
    kept = tracer.Min(tracer.Max(codes, low), high)
    q = round_to_integer(tracer, kept, arguments["rounding_mode"])
    return tracer.Mul(tracer.Sub(q, tracer.Div(zero, t)), result)


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


@bound_rule(*SIGNATURES)
def product_of_codes(call: NodeCall) -> Operand:
    """ConvInteger, QLinearConv and similar: the sum as an integer, a real number, or codes."""
    signature = SIGNATURES[OpKey.of(call.node)]
    index_of = {
        name: index for index, name in enumerate(signature.inputs) if call.value(index) is not None
    }
    operands = {name: call.quantity(index) for name, index in index_of.items()}
    rank = len(shape_of(call.value(index_of["b"])))

    def aligned(name: str) -> Quantity:
        number = call.constant(index_of[name])
        if number is None:
            raise call.refusal(f"{name} is missing")
        return constant(signature.align(call.node, name, number.numbers, rank))

    factors = []
    for side in "ab":
        codes, is_turned = operands[side], bool(call.whole(f"trans{side.upper()}"))
        if f"z_{side}" in operands:
            codes = call.tracer.quantity(call.tracer.Sub(codes, aligned(f"z_{side}")))
        call.decoded.append(codes)
        factors.append(transposed(call, index_of[side], (1, 0), codes) if is_turned else codes)
    total = _total(call, factors[0], factors[1], operands.get("bias"), signature.kind)
    if (total.low < -_HALF).any() or (total.high >= _HALF).any():
        total = _wrapped(call, total, factors[0])
    result = signature.result(operands)
    if result is Result.SUMS:
        return total
    return _scaled(call, call.tracer.Cast(total, to="FLOAT"), result, operands, aligned)


_HALF = 2.0**31


def _wrapped(call: NodeCall, total: Quantity, data: Quantity) -> Quantity:
    """Return integers modulo 2**32, equal in both models if the sums are; they must be exact."""
    atoms = call.tracer.atoms
    if not total.is_exact:
        raise Undecidable(OVERFLOW("an int32 sum may wrap around"))
    row = int(np.argmax(np.maximum(-total.low, total.high + 1)))
    ends = total.low.reshape(-1)[row], total.high.reshape(-1)[row]
    is_low = -ends[0] > ends[1] + 1
    first, last = (float(pick(end)) for pick, end in ((np.min, data.low), (np.max, data.high)))
    where = (first, last) if is_low else (last, first)
    wrapped = WRAPPED_SUM(row, int(ends[not is_low]), *(f"{code:g}" for code in where))
    atoms.conditions.add(wrapped)
    ends = -np.full((), _HALF), np.full((), _HALF - 1)
    atom = atoms.make("wrapped", str(wrapped), (total.meant,), ends, slope=np.inf)
    return Quantity(Combination.of(atom), *ends, unit=np.ones(()))


def _total(
    call: NodeCall, data: Quantity, weights: Quantity, bias: Quantity | None, operator: str
) -> Quantity:
    if weights.value is None:
        if operator == "Conv" or bias is not None:
            raise call.refusal("weights that are not constant")
        return product_of_data(call, data, weights, is_integer=True)
    if operator != "Conv" and weights.numbers.ndim != len(("rows", "columns")):
        return product_of_data(call, data, weights, is_integer=True)
    is_conv = operator == "Conv"
    rows, layout = convolved(call, weights) if is_conv else (mapped(weights, np.transpose), RIGHT)
    if bias is not None and bias.value is None:
        raise call.refusal("a bias that is not constant")
    biases = [] if bias is None else [of_rows(bias, layout)]
    return sum_of_products(
        call.tracer.atoms, data, rows, layout, call.sums, biases=biases, is_integer=True
    )


def _scaled(
    call: NodeCall,
    total: Operand,
    result: Result,
    operands: dict[str, Quantity],
    aligned: Callable[[str], Quantity],
) -> Operand:
    tracer, alpha = call.tracer, np.float32(call.number("alpha", 1.0))
    unit = aligned("s_a") if alpha == 1 else tracer.Mul(constant(alpha), aligned("s_a"))
    unit = tracer.Mul(unit, aligned("s_b"))
    if result is Result.REALS:
        y = tracer.Mul(total, unit)
        return y if "added" not in operands else tracer.Add(y, operands["added"])
    steps = tracer.Mul(total, tracer.Div(unit, aligned("s_y")))
    return codes_of(tracer, steps, aligned("z_y"), call.node.outputs[0].dtype)


def codes_of(
    tracer: QuantityTracer,
    steps: Any,
    zero: Quantity,
    dtype: ir.DataType | None,
    *,
    first: bool = False,
) -> Operand:
    """Return ``saturate(round_half_even(steps) + zero)``; the zero point may come first."""
    if dtype is None or zero.value is None:
        raise Undecidable(AT_RUN_TIME("the type of codes is not known"))
    limits = np.iinfo(dtype.numpy())
    codes = tracer.Round(tracer.Add(steps, zero) if first else steps)
    codes = codes if first else tracer.Add(codes, zero)
    return tracer.Min(tracer.Max(codes, float(limits.min)), float(limits.max))


_ROUNDINGS = 8


@bound_rule(OpKey(MICROSOFT, "QLinearAdd"), OpKey(MICROSOFT, "QLinearMul"))
def sum_or_product(call: NodeCall) -> Operand:
    """Sum or product of two tensors."""
    a, b = _decoded(call, 0), _decoded(call, 3)
    if call.node.op_type == "QLinearMul":
        return _encoded(call, call.tracer.quantity(call.tracer.Mul(a, b)), 6)
    size = sum((_size(call, index) for index in (0, 3)), np.zeros(()))
    return _encoded(call, call.tracer.quantity(call.tracer.Add(a, b)), 6, size)


@bound_rule(OpKey(MICROSOFT, "QLinearLeakyRelu"), OpKey(MICROSOFT, "QLinearSigmoid"))
def function_of_codes(call: NodeCall) -> Operand:
    """A function of each number."""
    name = call.node.op_type.removeprefix("QLinear")
    parameters = {"alpha": call.number("alpha", 0.01)} if name == "LeakyRelu" else {}
    return _encoded(call, applied(call.tracer, name, _decoded(call, 0), parameters), 3)


@bound_rule(OpKey(MICROSOFT, "QLinearSoftmax"))
def softmax_of_codes(call: NodeCall) -> Operand:
    """Softmax of decoded codes.

    A table contains the power of each code, rounded to float32. The powers are added in sequence,
    so their errors are below those of a Softmax. They are multiplied by the number of steps in 1,
    rounded down to a whole number.
    """
    steps = np.float32(1) / _single(call, 3).numbers.astype(np.float32)
    if (steps != np.floor(steps)).any():
        raise call.refusal("a scale that does not divide 1")
    is_new = call.whole("opset") >= OF_ONE_AXIS
    x = _decoded(call, 0)
    return _encoded(call, softmax_of(call, "Softmax", x, call.whole("axis", -1), is_new=is_new), 3)


@bound_rule(OpKey(MICROSOFT, "QLinearAveragePool"))
@bound_rule(OpKey(MICROSOFT, "QLinearGlobalAveragePool"), OpKey(MICROSOFT, "QLinearReduceMean"))
def mean_of_codes(call: NodeCall) -> Operand:
    """QLinearAveragePool and similar: means of windows, or over whole axes."""
    if call.whole("channels_last"):
        raise call.refusal("channels last")
    x = _decoded(call, 0)
    if call.node.op_type == "QLinearAveragePool":
        mean = pooled(call, x)
    else:
        axes = reduced_axes(call, None)
        mean = without_axes(call, mean_over(call, x, axes), axes)
    return _encoded(call, mean, 3, _size(call, 0))


@bound_rule(OpKey(MICROSOFT, "QLinearConcat"))
def concat_of_codes(call: NodeCall) -> Operand:
    """QLinearConcat: concatenated tensors, each with its own scale."""
    indices = range(2, len(call.node.inputs), 3)
    axis = call.whole("axis") % call.rank(2) - call.rank(2)
    sizes = [sizes_of(call.value(index), [axis])[0] for index in indices]
    parts = [_decoded(call, index) for index in indices]
    return _encoded(call, joined(call, parts, sizes, axis), 0)


def _single(call: NodeCall, index: int) -> Quantity:
    """Return a scale or zero point of the whole tensor; 0 if it is absent."""
    parameter = call.constant(index)
    if parameter is None:
        return constant(np.zeros((), np.float32))
    if parameter.numbers.size != 1:
        raise call.refusal("scales of channels")
    return constant(parameter.numbers.reshape(()))


def _decoded(call: NodeCall, index: int) -> Quantity:
    """Decode codes with the scale and the zero point in the next operands."""
    codes = call.tracer.quantity(call.tracer.Sub(call.quantity(index), _single(call, index + 2)))
    call.decoded.append(codes)
    return call.tracer.quantity(call.tracer.Mul(codes, _single(call, index + 1)))


def _size(call: NodeCall, index: int) -> Float64:
    """Return the largest sum of magnitudes of a code and its zero point, decoded."""
    scale, zero = (_single(call, index + after).numbers for after in (1, 2))
    return (call.quantity(index).largest + np.abs(zero)) * np.abs(scale)


def _encoded(call: NodeCall, y: Quantity, index: int, size: Float64 | None = None) -> Operand:
    """Return codes by the scale at ``index`` and the next zero point; ``size``: that of terms."""
    scale, zero = _single(call, index), _single(call, index + 1)
    steps = call.tracer.quantity(call.tracer.Div(y, scale))
    reach = y.reach if size is None else np.maximum(size, y.reach)
    largest = reach / np.abs(scale.numbers) + np.abs(zero.numbers)
    off = steps.error + _ROUNDINGS * FLOAT32.unit * largest
    steps = replace(steps, absolute=off, relative=np.zeros(()), unit=None)
    return codes_of(call.tracer, steps, zero, call.node.outputs[0].dtype, first=True)

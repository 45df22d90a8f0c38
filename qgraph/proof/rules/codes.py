"""Operators that compute codes, such as QLinearConv, ConvInteger and QLinearAdd.

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
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Float64
from qgraph.ops.approximation import FLOAT32
from qgraph.ops.integer.products import SIGNATURES, Result
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.quantity import Operand, Quantity, constant
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of, sizes_of
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.rules.curves import applied
from qgraph.proof.rules.movements import joined, transposed
from qgraph.proof.rules.normalizations import OF_ONE_AXIS, softmax_of
from qgraph.proof.rules.products import convolved, multiplied, of_rows, product_of_data
from qgraph.proof.rules.sums import mean_over, pooled, reduced_axes, sum_of_products, without_axes
from qgraph.reasons import AT_RUN_TIME, OVERFLOW, Undecidable


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
    rows, layout = convolved(call, weights) if operator == "Conv" else multiplied(weights)
    if bias is not None and bias.value is None:
        raise call.refusal("a bias that is not constant")
    biases = [] if bias is None else [of_rows(bias, layout)]
    return sum_of_products(
        call.tracer.atoms, data, rows, layout, call.sums, biases=biases, is_integer=True
    )


def _scaled(
    call: NodeCall,
    total: Quantity,
    result: Result,
    operands: dict[str, Quantity],
    aligned: Callable[[str], Quantity],
) -> Operand:
    tracer, alpha = call.tracer, np.float32(call.number("alpha", 1.0))
    unit = aligned("s_a") if alpha == 1 else tracer.Mul(constant(alpha), aligned("s_a"))
    unit = tracer.Mul(unit, aligned("s_b"))
    if result is Result.REALS:
        y: Operand = tracer.Mul(total, unit)
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
    result: Operand = tracer.Min(tracer.Max(codes, float(limits.min)), float(limits.max))
    return result


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
    match call.node.op_type:
        case "QLinearAveragePool":
            mean = pooled(call, x)
        case "QLinearGlobalAveragePool":
            mean = mean_over(call, x, list(range(2, call.rank())))
        case _:
            axes = reduced_axes(call, None)
            mean = mean_over(call, x, axes)
            if call.whole("keepdims", 1) != 1:
                mean = without_axes(call, mean, axes)
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
    """Return the codes of real numbers.

    ``index`` is that of the scale of the result; its zero point follows. ``size`` is the magnitude
    of the terms of y, in real units.
    """
    scale, zero = _single(call, index), _single(call, index + 1)
    steps = call.tracer.quantity(call.tracer.Div(y, scale))
    reach = y.reach if size is None else np.maximum(size, y.reach)
    largest = reach / np.abs(scale.numbers) + np.abs(zero.numbers)
    off = steps.error + _ROUNDINGS * FLOAT32.unit * largest
    steps = replace(steps, absolute=off, relative=np.zeros(()), unit=None)
    return codes_of(call.tracer, steps, zero, call.node.outputs[0].dtype, first=True)

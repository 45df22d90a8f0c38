"""Operators of ONNX Runtime that compute codes from codes, such as QLinearAdd.

They decode, compute in real numbers, and quantize the result. Implementations round at different
points: some decode first and divide by the scale of the result, others multiply codes by ratios of
scales. Let m be the largest magnitude of all added numbers, in steps of the result. Then the
additional error of each form is at most ``8 u m``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Float64
from qgraph.ops.approximation import FLOAT32
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import Quantity, constant
from qgraph.proof.bounds.rule import NodeCall, bound_rule, sizes_of
from qgraph.proof.rules.curves import applied
from qgraph.proof.rules.integer_products import codes_of
from qgraph.proof.rules.means import mean_over, pooled, reduced_axes, without_axes
from qgraph.proof.rules.movements import joined
from qgraph.proof.rules.normalizations import OF_ONE_AXIS, softmax_of

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
    codes = call.tracer.Sub(call.quantity(index), _single(call, index + 2))
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

"""Operators whose result has the shape of one operand, or that to which the operands broadcast.

Multidirectional broadcasting, the type constraints and the outputs are those of the operators'
definitions. Elements are computed in :mod:`qgraph.graph.inference.arithmetic`.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.graph.inference.arithmetic import calculated
from qgraph.graph.inference.dimensions import broadcast
from qgraph.graph.inference.facts import UNKNOWN, Fact, Shape
from qgraph.graph.inference.rules import Call, Unknown, common_type, rule

_MICROSOFT = "com.microsoft"

_SAME_FORM = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Clip",
    "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Hardmax", "Identity", "InstanceNormalization", "LRN", "LeakyRelu", "Log", "LogSoftmax",
    "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not", "RMSNormalization",
    "Reciprocal", "Relu", "ReverseSequence", "Round", "Scatter", "ScatterElements", "ScatterND",
    "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt",
    "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
"""Operators whose result has the type and the shape of their first operand."""

_BINARY = (
    "Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Max", "Mean", "Min", "Mod", "Mul",
    "Sub", "Sum",
)  # fmt: skip
"""Operators whose operands have one type and broadcast, which is the form of the result."""

_COMPARING = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor")

_BROADCASTS_SINCE = {"Max": 8, "Mean": 8, "Min": 8, "Sum": 8}
"""Opset since which an operator broadcasts; the others do since opset 7."""


@rule(*_SAME_FORM)
def same_form(call: Call) -> list[Fact]:
    """The type and the shape of the first operand."""
    x = call[0]
    items = calculated(call.node.op_type, x.dtype, x.items) if len(call.operands) == 1 else None
    return [Fact(x.dtype, x.shape, items)]


@rule("BiasGelu", "FastGelu", "Gelu", "QuickGelu", domain=_MICROSOFT)
def activation(call: Call) -> list[Fact]:
    """The type and the shape of the data."""
    return [Fact(call[0].dtype, call[0].shape)]


@rule("IsInf", "IsNaN")
def truth_of(call: Call) -> list[Fact]:
    """Truth values in the shape of the operand."""
    return [Fact(ir.DataType.BOOL, call[0].shape)]


@rule("Dropout")
def dropout(call: Call) -> list[Fact]:
    """The form of the data, and a mask, which is of truth values since opset 10."""
    x = call[0]
    mask = ir.DataType.BOOL if call.version >= 10 else x.dtype
    return [Fact(x.dtype, x.shape), Fact(mask, x.shape)]


@rule("BatchNormalization")
def batch_normalization(call: Call) -> list[Fact]:
    """The form of the data; the statistics of training are not followed."""
    return [Fact(call[0].dtype, call[0].shape)]


@rule("GroupNormalization")
def group_normalization(call: Call) -> list[Fact]:
    """The form of the data."""
    return [Fact(call[0].dtype, call[0].shape)]


@rule("LayerNormalization")
def layer_normalization(call: Call) -> list[Fact]:
    """The form of the data; mean and deviation are not followed."""
    return [Fact(call[0].dtype, call[0].shape)]


@rule("SimplifiedLayerNormalization")
def simplified_layer_normalization(call: Call) -> list[Fact]:
    """The form of the data, of ONNX Runtime's operator in the standard domain."""
    return [Fact(call[0].dtype, call[0].shape)]


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MICROSOFT)
def skip_normalization(call: Call) -> list[Fact]:
    """The form of the data, also of the fourth output, the sum that is normalised."""
    form = Fact(call[0].dtype, call[0].shape)
    return [form, UNKNOWN, UNKNOWN, form]


@rule("PRelu")
def p_relu(call: Call) -> list[Fact]:
    """The form of the data, to which the slope broadcasts."""
    return [Fact(call[0].dtype, call[0].shape)]


@rule("Pow", "BitShift")
def of_first_type(call: Call) -> list[Fact]:
    """The type of the first operand in the shape to which both broadcast."""
    _check_broadcast(call)
    return [Fact(call[0].dtype, broadcast_shape(call[0].shape, call[1].shape))]


@rule(*_BINARY)
def binary(call: Call) -> list[Fact]:
    """The common type in the shape to which the operands broadcast."""
    _check_broadcast(call)
    operands = [call[place] for place in range(len(call.operands))]
    shape: Shape | None = operands[0].shape
    for operand in operands[1:]:
        shape = broadcast_shape(shape, operand.shape)
    dtype = common_type(*operands)
    name = call.node.op_type
    if name == "Mod" and call.integer("fmod", 0):
        name = "Fmod"
    items = calculated(name, dtype, *(x.items for x in operands)) if len(operands) == 2 else None
    return [Fact(dtype, shape, items)]


@rule(*_COMPARING)
def comparing(call: Call) -> list[Fact]:
    """Truth values in the shape to which both operands broadcast."""
    _check_broadcast(call)
    shape = broadcast_shape(call[0].shape, call[1].shape)
    dtype = common_type(call[0], call[1])
    items = calculated(call.node.op_type, dtype, call[0].items, call[1].items)
    return [Fact(ir.DataType.BOOL, shape, items)]


@rule("Where")
def where(call: Call) -> list[Fact]:
    """The common type of the branches in the shape to which all operands broadcast."""
    operands = [call[0], call[1], call[2]]
    shape = broadcast_shape(broadcast_shape(*(x.shape for x in operands[:2])), operands[2].shape)
    dtype = common_type(*operands[1:])
    return [Fact(dtype, shape, calculated("Where", dtype, *(x.items for x in operands)))]


@rule("QLinearAdd", "QLinearMul", domain=_MICROSOFT)
def q_linear_binary(call: Call) -> list[Fact]:
    """The type of the codes in the shape to which both tensors of codes broadcast."""
    return [Fact(common_type(call[0], call[3]), broadcast_shape(call[0].shape, call[3].shape))]


@rule("QLinearWhere", domain=_MICROSOFT)
def q_linear_where(call: Call) -> list[Fact]:
    """The type of the codes in the shape to which condition and codes broadcast."""
    shape = broadcast_shape(broadcast_shape(call[0].shape, call[1].shape), call[4].shape)
    return [Fact(common_type(call[1], call[4]), shape)]


@rule("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", domain=_MICROSOFT)
def q_linear_unary(call: Call) -> list[Fact]:
    """The form of the codes."""
    return [Fact(call[0].dtype, call[0].shape)]


def broadcast_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape to which two shapes broadcast, None where a rank is not known.

    Raises:
        ValueError: they do not broadcast.
    """
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    ours, theirs = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    return tuple(broadcast(m, n) for m, n in zip(ours, theirs, strict=True))


def _check_broadcast(call: Call) -> None:
    """Refuse versions that broadcast along an attribute, or not at all."""
    since = _BROADCASTS_SINCE.get(call.node.op_type, 7)
    if call.version < since and len(_present(call)) > 1:
        raise Unknown


def _present(call: Call) -> Sequence[Fact]:
    return [operand for operand in call.operands if operand is not None]

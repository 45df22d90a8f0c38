"""Properties of operators that proofs depend on.

is_elementwise   each element of the result follows from one element of each operand
is_move          the results are elements of the first operand
rewritten_sum    two operators are two forms of one sum over real numbers, but not over floats
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.inference.walk import RESHAPING
from qgraph.graph.scopes import input_of
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import is_defined, operator_of

KEEP_ALL = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "Reshape", "SpaceToDepth", "Squeeze", "Transpose"}
    | {"Unsqueeze"}
)
"""Operators whose results are all elements of their first operand."""

_MOVES = KEEP_ALL | {
    *("Expand", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "MaxPool", "Slice"),
    *("Split", "Tile"),
}
"""Operators whose results are some or all elements of their first operand."""

_OF_TWO_CODES = frozenset({"QLinearAdd", "QLinearMul"})
_OF_ONE_CODE = frozenset({"QLinearLeakyRelu", "QLinearSigmoid"})
"""Operators of com.microsoft that compute each code from one code."""


def is_elementwise(node: ir.Node) -> bool:
    """Return whether a node has a definition over single elements."""
    return (node.domain == "" and node.op_type in NUMPY) or is_defined(node)


def is_move(node: ir.Node) -> bool:
    """Return whether the results of a node are elements of its first operand."""
    return node.domain == "" and node.op_type in _MOVES


def is_moving(node: ir.Node) -> bool:
    """Return whether a node is a Transpose, or changes the shape of its data."""
    return node.domain == "" and (node.op_type in RESHAPING or node.op_type == "Transpose")


def is_reshape(node: ir.Node) -> bool:
    """Return whether a node is a Reshape to a shape that is an input."""
    return node.domain == "" and node.op_type == "Reshape" and len(node.inputs) == 2


def operands(value: ir.Value, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return the operands that are not constant of the elementwise operator of ``value``.

    A Reshape to a constant shape counts as elementwise. The list is empty for results of other
    operators.
    """
    node = value.producer()
    if node is None or is_known(value):
        return []
    if is_reshape(node):
        data, shape = node.inputs[:2]
        return [data] if data is not None and shape is not None and is_known(shape) else []
    used = _computed_operands(node, is_known)
    if node.domain == "com.microsoft" and node.op_type in _OF_TWO_CODES:
        return used if len(used) == 1 and used[0] in (node.inputs[0], node.inputs[3]) else []
    coded = node.domain == "com.microsoft" and node.op_type in _OF_ONE_CODE
    if not coded and not is_elementwise(node):
        return []
    if node.domain == "" and node.op_type in NUMPY:
        return [] if node.op_type == "Gather" and node.inputs[0] in used else used
    # the parameters of a quantizer are not data
    return used if used == list(node.inputs[:1]) else []


def joined(value: ir.Value, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return :func:`operands`, also for operators that combine codes of two tensors."""
    node = value.producer()
    if node is None or node.domain != "com.microsoft" or node.op_type not in _OF_TWO_CODES:
        return operands(value, is_known)
    return [] if is_known(value) else _computed_operands(node, is_known)


def _computed_operands(node: ir.Node, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    return list(dict.fromkeys(v for v in node.inputs if v is not None and not is_known(v)))


def check_parameters(node: ir.Node, array_of: Callable[[ir.Value], Array | None]) -> None:
    """Raise OperatorError if a quantizer does not accept the values of its parameters."""
    operator = operator_of(node)
    if operator is None or operator.schema.standard:
        return
    parameters = [None if value is None else array_of(value) for value in node.inputs[1:]]
    try:
        sizes = np.broadcast_shapes(*(array.shape for array in parameters if array is not None))
    except ValueError as error:
        raise OperatorError(f"{where(node)}: its parameters do not broadcast: {error}") from error
    operator.run(node, [np.zeros(sizes, np.float32), *parameters])


_STEPS = frozenset({"Add", "Div", "Mul", "Sub"})
"""Last operators of forms that express one operator as several nodes."""

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
_NORMALIZATIONS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"LpNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
)

_REWRITES = (
    (_PRODUCTS, _PRODUCTS | {"Add", "Mul", "ReduceSum"}),
    (MEANS, MEANS | {"Conv", "Div", "Mul", "ReduceSum"}),
    (_NORMALIZATIONS, _NORMALIZATIONS | _STEPS | {"Conv", "Gemm", "MatMul"}),
    ({"Softmax"}, {"Div", "Mul", "Exp"}),
    ({"LogSoftmax"}, {"Log", "Sub"}),
    ({"ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"}, {"Log", "ReduceSum", "Sqrt"}),
    ({"Attention", "MultiHeadAttention"}, {"MatMul", "Transpose"}),
    ({"Gelu"}, {"Mul"}),
    ({"FusedConv", "FusedGemm", "FusedMatMul"}, _PRODUCTS | _STEPS | {"Relu"}),
)
"""Operators, each with the last operators of its other forms."""

_PAIRS = {
    frozenset(pair)
    for ours, theirs in _REWRITES
    for pair in itertools.product(ours, theirs)
    if len(set(pair)) == 2
}


def rewritten_sum(reference: ir.Node, candidate: ir.Node) -> str | None:
    """Return why two operators cannot be proved equal if they are two forms of one sum.

    None is returned for other operators. An operator with a bias and one without it are two forms.
    Nodes that only move elements may follow.
    """
    first, second = _moved(reference), _moved(candidate)
    names = frozenset({first.op_type, second.op_type})
    biases = {input_of(node, 2) is not None for node in (first, second)}
    if names not in _PAIRS and not (names <= _PRODUCTS and len(names) == 1 and len(biases) == 2):
        return None
    return (
        f"{described(first.outputs[0])} and {described(second.outputs[0])} are two forms of "
        "one sum with different orders of additions or roundings, which ONNX does not define; they "
        "are not equal for all inputs, and only a bound on their difference could be proved"
    )


def _moved(node: ir.Node) -> ir.Node:
    """Return the node before ``node`` that computes its elements, if ``node`` only moves them."""
    while is_move(node) and node.inputs[0] is not None:
        producer = node.inputs[0].producer()
        if producer is None:
            break
        node = producer
    return node


def described(value: ir.Value) -> str:
    """Return the operator that computes a value, with the name of its node, for a message."""
    node = value.producer()
    if node is None:
        return f"value {value.name!r}"
    return f"{node.op_type} {node.name or value.name!r}"

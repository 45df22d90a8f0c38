"""Which operators tell zeros of different signs apart."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.graph.folding import constant_expression
from qgraph.graph.schema import OpKey
from qgraph.kernels.mat_mul_n_bits import is_mat_mul_n_bits
from qgraph.matching.value_ranges import has_even_exponent, is_positive
from qgraph.ops.operator import operator_of

_SEES = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
"""Standard operators that tell the zeros apart; Div does by its second operand."""

_FORGETS = frozenset(
    {"Abs", "Cos", "Cosh", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax"}
    | {"Softplus"}
)
"""Standard operators with the same results for zeros of both signs."""

_SEES_OF_ML = frozenset({"Normalizer"})
"""Operators of the domain of machine learning that do: they divide by the largest element."""

_QUANTIZES = frozenset({"QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"})
"""Operators whose only floating operands are scales, one of which divides."""

_DOMAINS = frozenset({"", "ai.onnx.ml"})

_KNOWN = frozenset(
    OpKey("com.microsoft", name)
    for name in (
        "DequantizeLinear",
        "DynamicQuantizeMatMul",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gelu",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "QLinearAdd",
        "QLinearMul",
        "QuantizeLinear",
    )
)
"""Operators of other domains that do not."""


def sees(node: ir.Node, touched: Sequence[ir.Value]) -> bool:
    """Return whether a node tells zeros of different signs apart in some of its operands."""
    if node.domain == "" and node.op_type == "Div":
        return node.inputs[1] in touched and not is_positive(node.inputs[1])
    if node.domain == "" and node.op_type == "Reciprocal":
        return node.inputs[0] in touched and not is_positive(node.inputs[0])
    if node.domain == "" and node.op_type == "Pow" and has_even_exponent(node):
        return node.inputs[1] in touched  # (-0) ** 2 = (+0) ** 2 = +0
    if node.domain == "" and node.op_type == "BatchNormalization":
        return node.inputs[4] in touched  # the root of -0 is -0, and divides where epsilon is -0
    if node.domain == "" and node.op_type == "Cast":
        return node.attributes.get_int("to", 1) == ir.DataType.STRING
    if node.domain == "" and node.op_type == "CastLike":
        like = node.inputs[1]
        return like is None or like.dtype in (None, ir.DataType.STRING)
    if node.op_type in _QUANTIZES:
        codes = node.inputs[0], node.inputs[3]
        return any(value in touched for value in node.inputs if value not in codes)
    operator = operator_of(node)
    divides = operator is not None and not operator.schema.standard
    if divides or node.op_type == "QuantizeLinear":
        return any(value in touched for value in node.inputs[1:])
    if node.domain in _DOMAINS:
        return node.op_type in (_SEES_OF_ML if node.domain else _SEES)
    known = operator is not None or is_mat_mul_n_bits(node)
    return not known and OpKey.of(node) not in _KNOWN


def forgets(node: ir.Node) -> bool:
    """Return whether a node has the same results for zeros of both signs.

    So have powers with even exponents, squares, and sums with constants that are not zero.
    """
    if node.domain:
        return False
    if node.op_type == "Pow":
        return has_even_exponent(node)
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type in ("Add", "Sub"):
        arrays = [constant_expression(value) for value in node.inputs]
        return any(array is not None and bool((array != 0).all()) for array in arrays)
    return node.op_type in _FORGETS

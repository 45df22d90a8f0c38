"""Which operators tell -0 and +0 apart.

A table of its own, on purpose: what the search says about the signs of zeros is not taken over.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qgraph.graph.folding import constant_expression
from qgraph.kernels.mat_mul_n_bits import is_mat_mul_n_bits
from qgraph.matching.value_ranges import has_even_exponent, is_positive
from qgraph.ops.operator import operator_of

_REVIEWED = 28
"""Standard operators were looked through up to this opset; newer ones count as unknown."""

_BY_SIGN = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
"""Standard operators with other results for other signs, in any operand."""

_BY_DIVISION = {"BatchNormalization": 4, "Div": 1, "QuantizeLinear": 1}
"""Standard operators that divide by the operand of this place."""

_EVEN_AT_ZERO = frozenset(
    {"Abs", "Cos", "Cosh", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid"}
    | {"Softmax", "Softplus"}
)
"""Standard operators with one result for both zeros."""

_ML_BY_SIGN = frozenset({"Normalizer"})

_OF_MICROSOFT = frozenset(
    {"DequantizeLinear", "DynamicQuantizeMatMul", "FusedConv", "FusedGemm", "FusedMatMul", "Gelu"}
    | {"MatMulInteger16", "MatMulIntegerToFloat", "QLinearAdd", "QLinearMul", "QuantizeLinear"}
)
"""Operators that add, multiply and round; QuantizeLinear divides by its scale."""

_BY_SCALES = frozenset({"QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"})


def tells_zeros_apart(node: ir.Node, place: int) -> bool:
    """Return whether a node may have other results for the other sign of a zero in one operand."""
    if node.op_type in _BY_SCALES and node.domain in ("", "com.microsoft"):
        return place not in (0, 3)  # codes, which have one zero
    operator = operator_of(node)
    if operator is not None and not operator.schema.standard:
        return place > 0  # scales, ranges and zero points
    if node.op_type == "QuantizeLinear" and node.domain in ("", "com.microsoft"):
        return place > 0
    if is_mat_mul_n_bits(node):
        return place > 0
    if node.domain == "com.microsoft":
        return node.op_type not in _OF_MICROSOFT
    if node.domain == "ai.onnx.ml":
        return node.op_type in _ML_BY_SIGN
    if node.domain != "":
        return True
    if node.op_type == "Cast":
        return node.attributes.get_int("to", 1) == ir.DataType.STRING
    if node.op_type == "CastLike":
        like = node.inputs[1]
        return like is None or like.dtype in (None, ir.DataType.STRING)
    if node.op_type == "Pow" and has_even_exponent(node):
        return place == 1
    divisor = {"Div": 1, "Reciprocal": 0}.get(node.op_type)
    if divisor is not None and is_positive(node.inputs[divisor]):
        return False
    if node.op_type in _BY_SIGN or _BY_DIVISION.get(node.op_type) == place:
        return True
    known = onnx.defs.has(node.op_type, "")
    return not known or onnx.defs.get_schema(node.op_type).since_version > _REVIEWED


def makes_zeros_alike(node: ir.Node) -> bool:
    """Return whether a node has the same results where its operands are zeros of other signs."""
    if node.domain:
        return False
    if node.op_type == "Pow":
        return has_even_exponent(node)
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type in ("Add", "Sub"):
        return any(_has_no_zero(value) for value in node.inputs)
    return node.op_type in _EVEN_AT_ZERO


def _has_no_zero(value: ir.Value | None) -> bool:
    array = constant_expression(value)
    return array is not None and bool((array != 0).all())

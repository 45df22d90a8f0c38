"""Which operators tell -0 and +0 apart.

A table of its own, on purpose: what the search says about the signs of zeros is not taken over.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qgraph.kernels.mat_mul_n_bits import is_mat_mul_n_bits
from qgraph.ops.operator import operator_of

_REVIEWED = 28
"""Standard operators were looked through up to this opset; newer ones count as unknown."""

_BY_SIGN = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
"""Standard operators with other results for other signs, in any operand."""

_BY_DIVISION = {"BatchNormalization": 4, "Div": 1, "QuantizeLinear": 1}
"""Standard operators that divide by the operand of this place."""

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
    if node.op_type in _BY_SIGN or _BY_DIVISION.get(node.op_type) == place:
        return True
    known = onnx.defs.has(node.op_type, "")
    return not known or onnx.defs.get_schema(node.op_type).since_version > _REVIEWED

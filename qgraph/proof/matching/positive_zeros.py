"""Find values whose zeros are all +0, by the operators that compute them.

Two results that differ only in the sign of zero are equal in all bits if neither contains -0:

    no sign     c, each with a clear sign bit; |x|; x * x; x ** 2, 4, ...; exp(x), Sigmoid(x),
                Softmax(x); roots, sums, means and products of values without sign; what Quant and
                a DequantizeLinear of a QuantizeLinear make of them
    no -0       values without sign; DequantizeLinear of integers, which have one zero; Quant with
                a zero point that is not 0; roots of values without -0

NaN is not considered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.schema import QONNX_DOMAINS
from qgraph.graph.scopes import input_of, producer_of
from qgraph.numerics import Array
from qgraph.proof.matching.operators import is_moving
from qgraph.proof.matching.zero_signs import has_even_exponent, is_whole

_DEPTH = 24

_WITHOUT_SIGN = frozenset(
    {"Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax", "Softplus"}
)
_KEEPING = frozenset(
    {"Add", "AveragePool", "GlobalAveragePool", "Mean", "Mul", "ReduceMean", "ReduceSum", "Sqrt"}
    | {"Sum"}
)
"""Operators whose results have no sign if no operand has one."""

_REDUCING = frozenset({"ReduceMean", "ReduceSum"})
"""Operators whose second operand is a list of axes, not data."""

Test = Callable[[ir.Value | None], bool]


def has_positive_zeros(value: ir.Value | None) -> bool:
    """Return whether no element of a value is -0."""
    return _never_minus_zero(value, _DEPTH)


def _never_minus_zero(value: ir.Value | None, depth: int) -> bool:
    if _has_no_sign(value, depth):
        return True
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    operand = node.inputs[0] if node.inputs else None
    if node.domain in QONNX_DOMAINS and node.op_type == "Quant":
        points = constant_expression(node.inputs[2])
        return _is_above_zero(node.inputs[1]) and points is not None and bool((points != 0).all())
    if node.domain:
        return False
    if node.op_type == "DequantizeLinear":
        return operand is not None and is_whole(operand) and _is_above_zero(node.inputs[1])
    is_root = node.op_type in ("Identity", "Sqrt") or is_moving(node)
    return is_root and _never_minus_zero(operand, depth - 1)


def _has_no_sign(value: ir.Value | None, depth: int) -> bool:
    """Return whether the sign bit of no element is set."""
    array = constant_expression(value)
    if array is not None:
        return array.dtype.kind == "f" and not np.signbit(array).any()
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    has_no_sign = partial(_has_no_sign, depth=depth - 1)
    name, operands = node.op_type, node.inputs
    if node.domain in QONNX_DOMAINS and name == "Quant":
        points = constant_expression(operands[2])
        is_centred = points is not None and not points.any()
        return is_centred and _is_above_zero(operands[1]) and has_no_sign(operands[0])
    if node.domain:
        return False
    if name == "DequantizeLinear":
        return _decodes(node, has_no_sign)
    if name == "Mul" and operands[0] is operands[1]:
        return True
    if name == "Pow":
        return has_even_exponent(node) or has_no_sign(operands[0])
    if name in _KEEPING or name == "Identity" or is_moving(node):
        data = operands[:1] if name in _REDUCING or name not in _KEEPING else operands
        return all(map(has_no_sign, data))
    return name in _WITHOUT_SIGN


def _decodes(decode: ir.Node, has_no_sign: Test) -> bool:
    """Return whether codes of data without sign are decoded with their quantizer's zero point."""
    code = producer_of(decode.inputs[0], "QuantizeLinear")
    if code is None:
        return False
    ours, theirs = (constant_expression(input_of(node, 2)) for node in (code, decode))
    are_absent = input_of(code, 2) is None and input_of(decode, 2) is None
    are_equal = ours is not None and theirs is not None and np.array_equal(ours, theirs)
    are_above = _is_above_zero(code.inputs[1]) and _is_above_zero(decode.inputs[1])
    return (are_absent or are_equal) and are_above and has_no_sign(code.inputs[0])


def _is_above_zero(value: ir.Value | None) -> bool:
    array: Array | None = constant_expression(value)
    return array is not None and bool((array > 0).all())

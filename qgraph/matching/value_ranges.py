"""Which values are never zero, or never below zero, by the operators that make them.

    positive        c > 0; a + b with a positive and b not negative; sqrt(a), max(a, x) with a
                    positive; Clip with positive bounds; a positive value moved to other places
    not negative    c >= 0; |x|; x * x; x ** 2, 4, ...; sqrt(x), exp(x), Relu(x), Sigmoid(x),
                    Softmax(x); norms; sums, means, products and maxima of what is not negative

Rounding does not carry a sum below its larger operand, nor a root of a positive number to zero; a
product of positive numbers may become zero, and counts as not negative only. NaN is no number, and
nothing is said of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.folding import constant_expression
from qgraph.matching.elementwise import is_moving

Array = npt.NDArray[Any]

_DEPTH = 24

_NEVER_NEGATIVE = frozenset(
    {"Abs", "Exp", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Sigmoid"}
    | {"Softmax", "Softplus", "Sqrt"}
)
_OF_NOT_NEGATIVE = frozenset(
    {"Add", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Mean", "Min", "Mul"}
    | {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Sum"}
)


def is_positive(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Return whether every number among a value's elements is above zero."""
    known, node = _read(value)
    if known is not None:
        return bool((known > 0).all())
    if node is None or depth == 0 or node.domain:
        return False
    if node.op_type == "Identity" or is_moving(node) or node.op_type == "Sqrt":
        return is_positive(node.inputs[0], depth - 1)
    if node.op_type == "Add":
        a, b = node.inputs
        return any(
            is_positive(x, depth - 1) and is_not_negative(y, depth - 1) for x, y in ((a, b), (b, a))
        )
    if node.op_type == "Max":
        return any(is_positive(x, depth - 1) for x in node.inputs)
    return node.op_type == "Clip" and _has_bounds(node, above=0)


def is_not_negative(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Return whether no element of a value is a number below zero."""
    known, node = _read(value)
    if known is not None:
        return bool((known >= 0).all())
    if node is None or depth == 0 or node.domain:
        return False
    if node.op_type in _NEVER_NEGATIVE:
        return True
    if node.op_type == "Identity" or is_moving(node):
        return is_not_negative(node.inputs[0], depth - 1)
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return True
    if node.op_type == "Pow":
        return has_even_exponent(node) or is_not_negative(node.inputs[0], depth - 1)
    if node.op_type == "Max":
        return any(is_not_negative(x, depth - 1) for x in node.inputs)
    if node.op_type in _OF_NOT_NEGATIVE:
        operands = node.inputs[:1] if node.op_type.startswith("Reduce") else node.inputs
        return all(is_not_negative(x, depth - 1) for x in operands)
    return node.op_type == "Clip" and _has_bounds(node, above=-1)


def has_even_exponent(node: ir.Node) -> bool:
    """Return whether a Pow has constant exponents that are even and not negative."""
    exponents, _ = _read(node.inputs[1])
    return exponents is not None and bool(((exponents >= 0) & (exponents % 2 == 0)).all())


def _has_bounds(node: ir.Node, *, above: int) -> bool:
    """Return whether a Clip has constant bounds that are above a number; 0 is above -1 here."""
    low, high = ([*node.inputs[1:], None, None])[:2]
    if low is None or node.attributes:
        return False
    bounds = [_read(value)[0] for value in (low, high) if value is not None]
    return all(
        bound is not None and bool(((bound > 0) if above == 0 else (bound >= 0)).all())
        for bound in bounds
    )


def _read(value: ir.Value | None) -> tuple[Array | None, ir.Node | None]:
    """Return the float64 elements of a constant and the node that makes a value."""
    if value is None:
        return None, None
    array = constant_expression(value)
    if array is not None and array.dtype.kind in "fiu" and array.size:
        return array.astype(np.float64), None
    return None, value.producer()

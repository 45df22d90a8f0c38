"""Einsum that computes a matrix product: the same sums as those of MatMul.

Source: ONNX Einsum.
"""

from __future__ import annotations

import numpy as np

from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.rule import NodeCall, bound_rule, sizes_of
from qgraph.proof.rules.movements import transposed
from qgraph.proof.rules.products import mapped, matrix_product


@bound_rule("Einsum")
def einsum(call: NodeCall) -> Operand:
    """``a @ b``, where the last two axes of b may be exchanged; no other equation has a bound."""
    equation = call.node.attributes.get_string("equation", "").replace(" ", "")
    factors, _, result = equation.partition("->")
    left, _, right = factors.partition(",")
    rows, taps, columns = left[:-1], left[-1:], result[-1:]
    is_turned = right.endswith(columns + taps)
    last = columns + taps if is_turned else taps + columns
    letters = rows + taps + columns
    if (
        not rows
        or len(set(letters)) < len(letters)
        or not letters.isalpha()
        or result != rows + columns
        or right not in (last, rows[:-1] + last)
    ):
        raise call.refusal(f"the equation {equation!r} is no matrix product")
    if sizes_of(call.value(0), [-1]) != sizes_of(call.value(1), [-1 if is_turned else -2]):
        raise call.refusal("a factor that is repeated")
    a, b = call.quantity(0), call.quantity(1)
    if is_turned and b.value is not None:
        b = mapped(b, lambda array: np.swapaxes(array, -1, -2))
    elif is_turned:
        rank = call.rank(1)
        b = transposed(call, 1, (*range(rank - 2), rank - 1, rank - 2))
    return matrix_product(call, a, b, np.ones(()), more=0)

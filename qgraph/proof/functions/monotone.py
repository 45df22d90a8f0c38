"""Decide whether a function of one float32 variable never decreases, on all inputs but NaN.

    x <= y  implies  f(x) <= f(y)       as numbers, -0 equal to +0, infinities included

There are two proofs. By operations: each operation rounds the result of a real function that does
not decrease, and rounding to nearest does not decrease either. By steps: the search with exact
intervals divides all finite inputs into intervals with one value each, which must be in order.
"""

from __future__ import annotations

import numpy as np

from qgraph.proof.functions.expression import CONSTANT, INPUT, Expr, evaluate, fold, known
from qgraph.proof.functions.search import plateaus
from qgraph.reasons import Undecidable

_KEEP_ORDER = frozenset({"Round", "Floor", "Ceil", "Relu", "Identity"})

_BOXES = 1 << 20

_FREE, _UP, _DOWN = 0, 1, -1
"""Directions: constant, not decreasing, not increasing."""


def never_decreases(root: Expr) -> bool:
    """Return whether a function never decreases, and is NaN only for NaN.

    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    return direction(root) in (_FREE, _UP) or _has_steps_in_order(root)


def direction(root: Expr) -> int | None:
    """Return whether a function does not decrease (1), does not increase (-1) or is constant (0).

    Rules, for finite constants ``c``:

        x + c, x - c, round(x), floor(x), ceil(x), relu(x), min(x, c), max(x, c)     as x
        x * c, x / c                                    as x, the other way for c < 0; not for 0
        c - x, -x                                       the other way
        min(u, v), max(u, v)                            if u and v go the same way

    Returns: None if the rules do not decide it.
    """
    return fold([root], _direction_of_leaf, _direction)[0]


def _direction_of_leaf(e: Expr) -> int | None:
    if e.op != CONSTANT:
        return _UP if e.op == INPUT else None
    value = known(e)
    return _FREE if value.dtype != np.bool_ and np.isfinite(value).all() else None


def _direction(e: Expr, ways: list[int | None]) -> int | None:
    if None in ways:
        return None
    first, second = (*ways, _FREE, _FREE)[:2]
    match e.op:
        case "Min" | "Max":
            moving = set(ways) - {_FREE}
            return moving.pop() if len(moving) == 1 else None if moving else _FREE
        case "Neg":
            return -(first or 0)
        case "Add" if _FREE in (first, second):
            return (first or 0) + (second or 0)
        case "Sub" if _FREE in (first, second):
            return (first or 0) - (second or 0)
        case "Mul" | "Div" if second == _FREE and e.inputs[1].op == CONSTANT:
            return (first or 0) * _sign(e.inputs[1]) if _sign(e.inputs[1]) else None
        case "Mul" if first == _FREE and e.inputs[0].op == CONSTANT:
            return (second or 0) * _sign(e.inputs[0]) if _sign(e.inputs[0]) else None
    return first if e.op in _KEEP_ORDER else None


def _sign(constant: Expr) -> int:
    """Return the sign of all elements of a constant; 0 if they differ or are zero."""
    value = known(constant)
    return int((value > 0).all()) - int((value < 0).all())


def _has_steps_in_order(root: Expr) -> bool:
    try:
        steps = plateaus(root, max_boxes=_BOXES)
    except Undecidable:
        return False
    if np.isnan(steps.value).any():
        return False
    same = steps.channel[1:] == steps.channel[:-1]
    if (same & (steps.value[1:] < steps.value[:-1])).any():
        return False
    if (same & (steps.hi[:-1] == -1) & (steps.value[1:] != steps.value[:-1])).any():
        return False  # -0 and +0 are one number, so they must have one value
    return _ends_are_in_order(root)


def _ends_are_in_order(root: Expr) -> bool:
    """Return whether the values at the infinities are in order with those at the largest floats."""
    largest = np.finfo(np.float32).max
    shape = root.shape or (1,)
    values = [
        np.asarray(evaluate(root, np.full(shape, x, np.float32)), np.float64)
        for x in (-np.inf, -largest, largest, np.inf)
    ]
    if any(np.isnan(value).any() for value in values):
        return False
    return bool((values[0] <= values[1]).all() and (values[2] <= values[3]).all())

"""Refute the equality of many pairs of functions at once, by their values at a few inputs.

Most pairs that differ do so on a large part of their inputs: a scale that is one float larger
changes all results but 0. One evaluation of all functions shows this, and is much cheaper than a
search for the inputs on which each pair differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from qgraph.numerics import Array, Mask
from qgraph.numerics.primitives import NUMPY
from qgraph.numerics.values import is_nan
from qgraph.proof.functions.expression import (
    CONSTANT,
    INPUT,
    TABLE,
    Expr,
    in_order,
    known,
    undefined,
)
from qgraph.proof.functions.interval import RULES
from qgraph.proof.functions.pair import FunctionPair
from qgraph.proof.functions.program import TAKE_ONE_ZERO

_SIZES = np.ldexp(np.float32(1.37), np.arange(-20, 21))
_SAMPLES = np.concatenate([-_SIZES, _SIZES]).astype(np.float32)
"""Inputs of many magnitudes, none of which is a whole number of powers of two."""

_MOST_CHANNELS = 1 << 12
_AT_ONCE = 128
"""Number of pairs whose values are kept in memory."""


def refuted(pairs: Sequence[FunctionPair]) -> list[bool]:
    """Return for each pair whether its functions have different values at one of a few inputs.

    The functions are made by one builder. Results that ONNX does not define are not compared.
    """
    found: list[bool] = []
    for start in range(0, len(pairs), _AT_ONCE):
        some = [pair if _is_small(pair) else None for pair in pairs[start : start + _AT_ONCE]]
        found += _refuted(some)
    return found


def _is_small(pair: FunctionPair) -> bool:
    one, other = pair.functions
    is_real = "BOOL" not in (one.dtype, other.dtype)
    is_alike = one is not other and one.shape == other.shape
    return is_real and is_alike and math.prod(one.shape) <= _MOST_CHANNELS


def _refuted(pairs: Sequence[FunctionPair | None]) -> list[bool]:
    roots = [root for pair in pairs if pair is not None for root in pair.functions]
    order = in_order(roots)
    rank = max((known(e).ndim for e in order if e.op == CONSTANT), default=0)
    x = _SAMPLES.reshape(-1, *(1,) * rank)
    kept = {id(root) for root in roots}
    last = {id(operand): i for i, e in enumerate(order) for operand in e.inputs}
    values: dict[int, _Values | None] = {}
    with np.errstate(all="ignore"):
        for i, e in enumerate(order):
            values[id(e)] = _values(e, [values[id(operand)] for operand in e.inputs], x)
            for operand in e.inputs:
                if last[id(operand)] == i and id(operand) not in kept:
                    values[id(operand)] = None
        ends = [None if pair is None else [values[id(f)] for f in pair.functions] for pair in pairs]
        return [each is not None and _differ(*each) for each in ends]


_Values = tuple[Array, Mask | None]
"""Values of an expression at all inputs, and where ONNX does not define them."""


def _values(e: Expr, operands: Sequence[_Values | None], x: Array) -> _Values | None:
    """Return the values of an expression; None if they are not known."""
    if e.op == INPUT:
        return x, None
    if e.op in (CONSTANT, TABLE):
        return known(e), None
    ready = [operand for operand in operands if operand is not None]
    if len(ready) < len(operands) or e.op not in RULES:
        return None
    numbers, attributes = [each for each, _ in ready], dict(e.attributes)
    masks = [mask for _, mask in ready if mask is not None]
    if e.op in ("Cast", "Gather"):
        masks.append(undefined(e.op, numbers, attributes))
    elif e.op in TAKE_ONE_ZERO:
        # the sign of a zero is not defined if all operands are 0
        masks.append(reduce(np.logical_and, [number == 0 for number in numbers]))
    result = np.asarray(NUMPY[e.op](*numbers, **attributes))
    return result, reduce(np.logical_or, masks) if masks else None


def _differ(one: _Values | None, other: _Values | None) -> bool:
    if one is None or other is None:
        return False
    (a, undefined_here), (b, undefined_there) = one, other
    unlike = (a != b) & ~(is_nan(a) & is_nan(b))
    for mask in (undefined_here, undefined_there):
        unlike = unlike if mask is None else unlike & ~mask
    return bool(unlike.any())

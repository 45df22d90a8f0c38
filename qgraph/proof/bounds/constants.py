"""Operations on constants: what is executed in float32, and what is meant in real arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qgraph.numerics import Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.quantity import Quantity, constant, of_constant
from qgraph.reasons import NO_BOUND, Undecidable

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Min", "Max", "Relu"})
"""Primitives whose results on constants are meant in real arithmetic."""


def folded(name: str, operands: Sequence[Quantity], attributes: Mapping[str, Any]) -> Quantity:
    """Return an operation on constants: executed in float32, and as it is meant."""
    if name in ("Add", "Sub") and _adds_nothing(*operands):
        return operands[0]
    values = [np.asarray(q.value, np.float32) for q in operands]
    if name == "Where" or name in ("Not", "And", "Or"):
        values[0] = values[0] != 0
    with np.errstate(all="ignore"):
        executed = np.asarray(NUMPY[name](*values, **attributes)).astype(np.float64)
        if name not in _ARITHMETIC:
            return constant(executed) if np.isfinite(executed).all() else _unlimited(executed)
        meant = np.asarray(NUMPY[name](*[q.meant.offset for q in operands]))
    quantity = of_constant(executed, meant)
    factors = None
    if name in ("Add", "Sub") and all(_is_whole(q) for q in operands):
        factors = np.ones(()), meant
    elif name in ("Mul", "Div"):
        factors = _factors(name, *operands)
    return replace(quantity, factors=factors)


def _adds_nothing(x: Quantity, y: Quantity) -> bool:
    is_zero = y.numbers.size == 1 and not y.numbers.any() and not y.meant.offset.any()
    return is_zero and y.numbers.ndim <= x.numbers.ndim


def _is_whole(q: Quantity) -> bool:
    return q.factors is not None and bool((q.factors[0] == 1).all())


def _unlimited(executed: Float64) -> Quantity:
    """Return constants that may be infinite, such as the ends of a clip."""
    if np.isnan(executed).any():
        raise Undecidable(NO_BOUND("a constant is NaN"))
    return Quantity(Combination.constant(executed), executed, executed, value=executed)


def _factors(name: str, x: Quantity, y: Quantity) -> tuple[Float64, Float64] | None:
    """Return scales and whole numbers of a product or quotient of constants."""
    if name == "Div":
        return None if x.factors is None else (x.factors[0] / y.meant.offset, x.factors[1])
    is_scale = x.factors is None or (y.factors is not None and x.meant.offset.size == 1)
    scale, codes = (x, y) if is_scale else (y, x)
    if codes.factors is None:
        return None
    return codes.factors[0] * scale.meant.offset, codes.factors[1]

"""Quantities: ideal function, range and error of a tensor; see :mod:`qgraph.ops.approximation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import FEW_NUMBERS, Approximation
from qgraph.proof.bounds.combination import Combination

_TYPES = {"FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}


@dataclass(frozen=True, eq=False)
class Quantity(Approximation[Combination]):
    """A tensor of one model.

    Attributes:
        operation: float32 operation that computes the tensor; None if not known.
    """

    operation: Operation | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of float32, rounded once.

    Attributes:
        name: of the primitive.
        operands: its operands.
        attributes: of the primitive.
        result: its result.
    """

    name: str
    operands: tuple[Quantity, ...]
    attributes: Mapping[str, Any]
    result: Quantity

    def computes(self, q: Quantity) -> bool:
        """Return whether a quantity has the function and the errors of the result."""
        names = "meant", "absolute", "relative"
        return all(getattr(q, name) is getattr(self.result, name) for name in names)


def holds_numbers(array: Array) -> bool:
    """Return whether an array contains only finite real numbers."""
    if array.dtype.kind in "cOSUmM":
        return False
    return bool(np.isfinite(array.astype(np.float64)).all())


def constant(array: npt.ArrayLike) -> Quantity:
    """Return the quantity of a stored constant."""
    stored = np.asarray(array)
    value = stored.astype(np.float64, copy=False)
    factors = None
    if stored.dtype.kind in "iub" or (value.size and _are_whole(value)):
        factors = np.ones(()), narrow(value)
    return of_constant(value, value, factors)


def narrow(numbers: Array) -> Array:
    """Return whole numbers in the narrowest type that can represent them, to save memory."""
    if numbers.size <= FEW_NUMBERS or np.isnan(numbers).any():
        return numbers
    low, high = numbers.min(), numbers.max()
    for kind in (np.int8, np.int16):
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            whole = numbers.astype(kind)
            return whole if (whole == numbers).all() else numbers
    return numbers


def _are_whole(numbers: Float64) -> bool:
    some = numbers.reshape(-1)[:_SAMPLE]
    return bool((some == np.rint(some)).all() and (numbers == np.rint(numbers)).all())


_SAMPLE = 64
"""Number of elements that are tested first."""


def of_constant(
    value: Float64, meant: Float64, factors: tuple[Float64, Array] | None = None
) -> Quantity:
    """Return the quantity of a constant, from its executed and its real elements."""
    return Quantity.of_constant(value, Combination.constant(meant), factors)


def stored(q: Quantity, name: str) -> Quantity:
    """Round a constant to a type; data, and constants of other types, are returned unchanged.

    Args:
        q: the constant or data.
        name: the type.
    """
    dtype = _TYPES.get(name)
    if q.value is None or dtype is None:
        return q
    with np.errstate(over="ignore"):
        value = q.value.astype(dtype).astype(np.float64)
    return of_constant(value, q.meant.offset, q.factors)


def executed_constant(array: Array) -> Float64:
    """Return the elements of an executed array in float64."""
    return np.asarray(array).astype(np.float64)

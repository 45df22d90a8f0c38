"""Quantities: ideal function, range and error of a tensor; see :mod:`qgraph.ops.approximation`.

Operations on constants are computed in float32 as executed, and in real arithmetic. Both results
are computed lazily, because weights are large: the real number before a rounding, and a branch that
a definition does not select, are never needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.approximation import FEW_NUMBERS, Approximation
from qgraph.proof.bounds.combination import Combination
from qgraph.reasons import NO_BOUND, Undecidable

_TYPES = {"FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}


@dataclass(frozen=True, eq=False)
class Quantity(Approximation[Combination]):
    """A tensor of one model, and the float32 operation that computes it, if known."""

    operation: Operation | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of float32 that is rounded once, and its result."""

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
    """Round a constant to a type; data, and constants of other types, are returned unchanged."""
    dtype = _TYPES.get(name)
    if q.value is None or dtype is None:
        return q
    with np.errstate(over="ignore"):
        value = q.value.astype(dtype).astype(np.float64)
    return of_constant(value, q.meant.offset, q.factors)


_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Min", "Max", "Relu"})
"""Primitives on constants that are also evaluated in real arithmetic."""


class Constant:
    """A constant with known elements."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @cached_property
    def executed(self) -> Array:
        """The elements in float32."""
        return np.asarray(self.array, np.float32)

    @cached_property
    def meant(self) -> Float64:
        """The elements in real arithmetic."""
        return self.quantity.meant.offset

    @cached_property
    def quantity(self) -> Quantity:
        """The constant."""
        return constant(self.array)


class Known(Constant):
    """A constant whose quantity is known."""

    def __init__(self, quantity: Quantity) -> None:
        super().__init__(quantity.numbers)
        self.quantity = quantity


class Computed(Constant):
    """The result of a primitive on constants."""

    def __init__(
        self, name: str, operands: Sequence[Constant], attributes: Mapping[str, Any]
    ) -> None:
        self._name = name
        self._operands: Sequence[Constant] = operands
        self._attributes = attributes

    @cached_property
    def executed(self) -> Array:
        """The elements as executed in float32."""
        values = [operand.executed for operand in self._operands]
        if self._name in ("Where", "Not", "And", "Or"):
            values[0] = values[0] != 0
        with np.errstate(all="ignore"):
            result = np.asarray(NUMPY[self._name](*values, **self._attributes))
        if self._name not in _ARITHMETIC:
            self._operands = ()  # are needed no more
        return result

    @cached_property
    def meant(self) -> Float64:
        """The elements in real arithmetic; after a rounding, the executed ones."""
        if self._name not in _ARITHMETIC:
            return self.executed.astype(np.float64)
        with np.errstate(all="ignore"):
            operands = [operand.meant for operand in self._operands]
            return np.asarray(NUMPY[self._name](*operands, **self._attributes))

    @cached_property
    def quantity(self) -> Quantity:
        """The quantity, with scales and whole numbers of a product; raises Undecidable for NaN."""
        if self._name not in _ARITHMETIC:
            is_finite = np.isfinite(self.meant).all()
            return constant(self.meant) if is_finite else _unlimited(self.meant)
        factors: tuple[Float64, Array] | None = None
        if self._name in ("Add", "Sub") and all(_is_whole(o.quantity) for o in self._operands):
            factors = np.ones(()), narrow(self.meant)
        elif self._name in ("Mul", "Div"):
            factors = _factors(self._name, *self._operands)
        executed, meant = self.executed, self.meant
        self._operands = ()  # are needed no more
        return of_constant(executed.astype(np.float64), meant, factors)


class ConstantTracer:
    """Evaluates primitives on constants."""

    def constant(self, array: Any) -> Constant:
        """Return a constant of a definition."""
        return Constant(np.asarray(array))

    def __getattr__(self, name: str) -> Callable[..., Constant]:
        if name.startswith("_") or name not in NUMPY:
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Constant:
        known = [
            operand if isinstance(operand, Constant) else Constant(np.asarray(operand, np.float32))
            for operand in operands
        ]
        if name == "Where":
            chosen = known[0].executed
            if chosen.all() or not chosen.any():
                return known[1 if chosen.all() else 2]
        if name in ("Add", "Sub") and _adds_nothing(*known):
            return known[0]
        return Computed(name, known, attributes)


def folded(name: str, operands: Sequence[Quantity], attributes: Mapping[str, Any]) -> Quantity:
    """Return the result of an operation on constants, in float32 and in real arithmetic."""
    result: Constant = getattr(ConstantTracer(), name)(*map(Known, operands), **attributes)
    return result.quantity


def _adds_nothing(x: Constant, y: Constant) -> bool:
    numbers = y.executed
    is_zero = numbers.size == 1 and not numbers.any() and not y.meant.any()
    return is_zero and numbers.ndim <= x.executed.ndim


def _is_whole(q: Quantity) -> bool:
    return q.factors is not None and bool((q.factors[0] == 1).all())


def _unlimited(executed: Float64) -> Quantity:
    """Return constants that may be infinite, such as the limits of a clip."""
    if np.isnan(executed).any():
        raise Undecidable(NO_BOUND("a constant is NaN"))
    return Quantity(Combination.constant(executed), executed, executed, value=executed)


def _factors(name: str, one: Constant, other: Constant) -> tuple[Float64, Array] | None:
    """Return scales and whole numbers of a product or quotient of constants."""
    x, y = one.quantity, other.quantity
    if name == "Div":
        return None if x.factors is None else (x.factors[0] / y.meant.offset, x.factors[1])
    is_scale = x.factors is None or (y.factors is not None and x.meant.offset.size == 1)
    scale, codes = (x, y) if is_scale else (y, x)
    if codes.factors is None:
        return None
    return codes.factors[0] * scale.meant.offset, codes.factors[1]

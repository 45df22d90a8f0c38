"""Quantities: ideal function, range and error of a tensor; see :mod:`qgraph.ops.approximation`.

Operations on constants are computed in float32 as executed, and in real arithmetic. Both results
are computed lazily, because weights are large: the real number before a rounding, and a branch that
a definition does not select, are never needed. Roundings of data to whole numbers, and maxima
before them, are the events at which two models are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.numerics import Array, Float64
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.primitives import NUMPY
from qgraph.numerics.rounding import Rounding
from qgraph.ops.approximation import FEW_NUMBERS, ZERO, Approximation
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE, Undecidable
from qgraph.records import dataclass, replace

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
_OF_WHOLE_NUMBERS = frozenset({"Add", "Sub", "Min", "Max"})


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
        quantities = [operand.quantity for operand in self._operands]
        if self._name in _OF_WHOLE_NUMBERS and all(map(_is_whole, quantities)):
            factors = np.ones(()), narrow(self.meant)
        elif self._name == "Add":
            factors = _in_steps(*quantities)
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
    return ConstantTracer()._call(name, *map(Known, operands), **attributes).quantity


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


def _in_steps(scaled: Quantity, number: Quantity) -> tuple[Float64, Array] | None:
    """Return scales and whole numbers of a sum if its second term is a multiple of the scales."""
    if scaled.factors is None:
        return None
    scales, codes = scaled.factors
    steps = np.rint(number.meant.offset / scales)
    apart = np.abs(number.meant.offset - steps * scales)
    is_multiple = (apart <= _SAME * np.abs(number.meant.offset)).all()
    return (scales, narrow(codes + steps)) if is_multiple else None


_SAME = 2.0**-50
"""Largest relative difference of float64 numbers that are equal in real arithmetic."""


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


@dataclass(frozen=True, eq=False)
class Event:
    """A rounding of data to whole numbers in one model.

    Attributes:
        kind: "Round", "Floor", "Ceil", another rounding mode, or "Sign", which gives -1 and 1.
        before: the rounded function, in steps.
        node: the node that rounds.
        mantissa: bits of the mantissa of a minifloat, whose smallest step is 1; None for integers.
    """

    kind: str
    before: Quantity
    node: ir.Node
    mantissa: int | None = None

    def rounded(self, numbers: Float64) -> Float64:
        """Return the codes of exact numbers."""
        round_to_whole = _ROUNDINGS.get(self.kind, np.rint)
        if self.mantissa is None:
            return np.asarray(round_to_whole(numbers))
        step = self.spacing(numbers)
        return np.asarray(round_to_whole(numbers / step) * step)

    def spacing(self, numbers: Float64) -> Float64:
        """Return the distance of codes around each number; the larger one at a power of two."""
        if self.mantissa is None:
            return np.ones(())
        _, exponents = np.frexp(np.where(np.isfinite(numbers), numbers, 1.0))
        return np.asarray(np.ldexp(1.0, np.maximum(exponents - 1 - self.mantissa, 0)))

    def place(self, numbers: Float64) -> Float64:
        """Return the index of numbers in the format, linear between two of them, counted from 0."""
        if self.mantissa is None:
            return numbers
        sizes = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
        _, exponents = np.frexp(sizes)
        doublings = np.maximum(exponents - 1 - self.mantissa, 0)
        steps = doublings * 2.0**self.mantissa + np.ldexp(sizes, -doublings)
        return np.asarray(np.where(np.isfinite(numbers), np.sign(numbers) * steps, numbers))


_ROUNDINGS: dict[str, Callable[[Float64], Float64]] = {
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Down": np.trunc,
    "Up": lambda numbers: np.asarray(np.sign(numbers) * np.ceil(np.abs(numbers))),
}
"""Roundings that are not to nearest, by kind."""


@dataclass(frozen=True, eq=False)
class Pending:
    """Whole numbers ``clip(round(before), low, high) + offset`` that are not used yet."""

    event: Event
    low: Float64
    high: Float64
    offset: Float64

    def limited(self, name: str, end: Float64) -> Pending:
        """Return their maximum or minimum with whole numbers."""
        pick = np.maximum if name == "Max" else np.minimum
        code = end - self.offset
        return replace(self, low=pick(self.low, code), high=pick(self.high, code))


Operand = Quantity | Pending
Settle = Callable[[Pending], Quantity]

MINIFLOAT_ROUNDINGS = {
    Rounding.ROUND: "Round",
    Rounding.CEIL: "Ceil",
    Rounding.FLOOR: "Floor",
    Rounding.UP: "Up",
    Rounding.DOWN: "Down",
}
"""Kinds of roundings that commute with divisions by powers of two."""


def expect_inside(codes: Pending, name: str) -> None:
    """Raise Undecidable if whole numbers may leave the range of a type, which ONNX leaves open."""
    form = FORMATS.get(name)
    if not isinstance(form, IntFormat):
        return
    before = codes.event.before
    reach = np.floor(before.low - before.error), np.ceil(before.high + before.error)
    low, high = (np.clip(end, codes.low, codes.high) + codes.offset for end in reach)
    if not ((low >= form.lo).all() and (high <= form.hi).all()):
        raise Undecidable(OUT_OF_RANGE(f"a Cast to {name} of numbers beyond it is not defined"))


def in_order(x: Combination, y: Combination) -> tuple[Combination, Combination]:
    """Return the operands of a commutative function in an order of their own."""
    return (x, y) if x.serials <= y.serials else (y, x)


def extreme(atoms: Atoms, name: str, x: Quantity, y: Quantity) -> Quantity:
    """Return the maximum or minimum of two tensors; ``name`` is "Max" or "Min".

    With a relative error below 1, both ends ``t - e(t)`` and ``t + e(t)`` of what may be executed
    in place of a number t rise with t. So the result lies between the ends of the exact one.
    """
    pick = np.maximum if name == "Max" else np.minimum
    low, high = pick(x.low, y.low), pick(x.high, y.high)
    atom = atoms.make("function", name, in_order(x.meant, y.meant), (low, high))
    unit = None if x.unit is None or y.unit is None else np.minimum(x.unit, y.unit)
    absolute, relative = np.maximum(x.absolute, y.absolute), np.maximum(x.relative, y.relative)
    if not (relative < 1).all():
        absolute, relative = np.maximum(x.error, y.error), ZERO
    overflow = min(x.overflow, y.overflow)
    return Quantity(Combination.of(atom), low, high, absolute, relative, unit, overflow=overflow)


def extreme_codes(
    atoms: Atoms, name: str, codes: tuple[Operand, Operand], node: ir.Node
) -> Pending | None:
    """Return the maximum or minimum of codes as codes of the larger or smaller number.

    Roundings and limits are monotone, so this is the same, if both are equal for both tensors.
    Returns None for other data than codes, and for codes that are rounded or limited in two ways.
    """
    a, b = codes
    if not (isinstance(a, Pending) and isinstance(b, Pending)):
        return None
    ends = [(p.low, p.high, p.offset) for p in (a, b)]
    forms = [(p.event.kind, p.event.mantissa) for p in (a, b)]
    if forms[0] != forms[1] or not all(map(np.array_equal, *ends)):
        return None
    before = extreme(atoms, name, a.event.before, b.event.before)
    return replace(a, event=replace(a.event, before=before, node=node))

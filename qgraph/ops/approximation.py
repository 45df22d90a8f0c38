"""Error bounds of floating-point execution, compared with real arithmetic.

A value has an ideal number, a function in real arithmetic (``meant``), and an executed
floating-point number::

    |executed - meant| <= absolute + relative * |meant|

Each operation rounds once: an exact result y becomes y * (1 + e) with |e| <= u, or is off by half
of the smallest subnormal number. An operation is exact if its result is a whole number of units
that its type represents: sums of codes times a power of two.

The prover and the checker of bounds both use this arithmetic. This module defines neither the ideal
functions nor the operators. ``tests/ops/test_approximation.py`` compares it with fractions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from qgraph.numerics import Array, Float64
from qgraph.reasons import OUT_OF_RANGE, Undecidable
from qgraph.records import dataclass, field, replace

SLACK = 2.0**-44
"""Relative error of float64 numbers that are results of at most 2**8 operations."""

FEW_NUMBERS = 4096
"""Larger constants have one bound for all elements, to save memory."""

ZERO: Float64 = np.zeros(())


def zero() -> Float64:
    """Return 0, as the default of a field."""
    return ZERO


@dataclass(frozen=True)
class FloatType:
    """The rounding of a floating-point type.

    Attributes:
        name: name of the type.
        unit: largest relative error of one operation.
        tiny: largest error of a result that is subnormal.
        whole: the type represents all integers up to this one.
        largest: the largest number.
        chunk: the number of terms of a sum that are added in sequence, before the chunks are added
            in sequence; None for any order.
    """

    name: str
    unit: float
    tiny: float
    whole: float
    largest: float
    chunk: int | None = None

    def roundings(self, counts: Float64) -> Float64:
        """Return the largest number of roundings of a term of a sum of ``counts`` terms."""
        if self.chunk is None:
            return counts
        depth = np.minimum(counts, self.chunk) + np.ceil(counts / self.chunk)
        return np.asarray(np.minimum(counts, depth))

    def represents(self, unit: Float64 | None, reach: Float64) -> bool:
        """Return whether the type has all multiples of a unit, a power of two, up to ``reach``.

        The unit is infinite for 0, and None if it is not known.
        """
        if unit is None:
            return False
        counts = np.where(np.isfinite(unit), reach / unit, 0.0)
        return bool((counts <= self.whole).all() and (unit >= 2 * self.tiny).all())


FLOAT32 = FloatType("FLOAT", 2.0**-24, 2.0**-150, 2.0**24, (2 - 2.0**-23) * 2.0**127)
ARITHMETIC = {
    "FLOAT": FLOAT32,
    "FLOAT16": FloatType("FLOAT16", 2.0**-11, 2.0**-25, 2.0**11, 65504.0),
    "BFLOAT16": FloatType("BFLOAT16", 2.0**-8, 2.0**-134, 2.0**8, (2 - 2.0**-7) * 2.0**127),
}


def coarsest(kinds: Sequence[FloatType]) -> FloatType:
    """Return an arithmetic whose errors are at least those of each given one; float32 for none."""
    if not kinds:
        return FLOAT32
    return FloatType(
        max(kinds, key=lambda each: each.unit).name,
        max(each.unit for each in kinds),
        max(each.tiny for each in kinds),
        min(each.whole for each in kinds),
        min(each.largest for each in kinds),
    )


def product(one: Float64, other: Float64) -> Float64:
    """Return the product; 0 times infinity is 0."""
    with np.errstate(invalid="ignore"):
        result = np.asarray(one * other)
    if np.isnan(result).any():
        return np.where((one == 0) | (other == 0), 0.0, result)
    return result


def largest_of(low: Float64, high: Float64) -> Float64:
    """Return the largest magnitude in a range."""
    return np.maximum(np.abs(low), np.abs(high))


def granules(value: Float64) -> Float64:
    """Return the largest powers of two of which numbers are multiples; infinity for 0."""
    bits = np.asarray(value, np.float64).view(np.int64)
    others = np.asarray(bits & (bits - 1)).view(np.float64)  # without the last bit that is set
    is_power = bits & _MANTISSA == 0
    return np.where(value == 0, np.inf, np.abs(np.where(is_power, value, value - others)))


_MANTISSA = 2**52 - 1


class Meant(Protocol):
    """A function in real arithmetic: multiples of other functions, and an offset."""

    @property
    def offset(self) -> Float64:
        """The constant term."""

    @property
    def range(self) -> tuple[Float64, Float64]:
        """Bounds of the values."""

    def plus(self, other: Self, sign: float = 1.0) -> Self:
        """Return the sum of two functions, or their difference for the sign -1."""

    def times(self, factor: Float64) -> Self:
        """Return a multiple of the function."""


F = TypeVar("F", bound=Meant)
A = TypeVar("A", bound="Approximation[Any]")


@dataclass(frozen=True, eq=False)
class Approximation(Generic[F]):
    """A tensor of one model. All arrays broadcast to it.

    Attributes:
        meant: the ideal function, in real arithmetic.
        low, high: its range.
        absolute, relative: error of execution, see above.
        unit: powers of two of which the executed numbers of data are multiples; None if not known.
        value: the executed numbers of a constant, float64; None for data.
        factors: for a constant: codes, scales and integers whose product is the ideal number.
        overflow: ideal numbers of at least this magnitude may be executed as infinity, so that
            their error is not known. Data of known range does not overflow.
    """

    meant: F
    low: Float64
    high: Float64
    absolute: Float64 = field(default_factory=zero)
    relative: Float64 = field(default_factory=zero)
    unit: Float64 | None = None
    value: Float64 | None = None
    factors: tuple[Float64, Array] | None = None
    overflow: float = math.inf

    @classmethod
    def of_constant(
        cls, value: Float64, meant: F, factors: tuple[Float64, Array] | None = None
    ) -> Self:
        """Return a constant: executed numbers, and ideal ones as a function with an offset only.

        Raises:
            Undecidable: a number is infinite or NaN.
        """
        if not np.isfinite(value).all():
            raise Undecidable(OUT_OF_RANGE("a constant is infinite or NaN"))
        numbers = meant.offset
        apart = ZERO
        if value is not numbers:
            apart = _apart(value, numbers)
        return cls(meant, numbers, numbers, apart, ZERO, None, value, factors)

    @property
    def is_exact(self) -> bool:
        """Whether executed and ideal numbers are equal, and multiples of a unit."""
        return self.unit is not None and not (self.absolute.any() or self.relative.any())

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant."""
        return self.value is not None

    @property
    def numbers(self) -> Float64:
        """The executed numbers of a constant.

        Raises:
            ValueError: it is data.
        """
        if self.value is None:
            raise ValueError("an operand is data, not a constant")
        return self.value

    @functools.cached_property
    def granule(self) -> Float64 | None:
        """Powers of two of which the executed numbers are multiples; None if not known."""
        return self.unit if self.value is None else granules(self.value)

    @property
    def largest(self) -> Float64:
        """The largest magnitude of the ideal numbers."""
        return largest_of(self.low, self.high)

    @property
    def error(self) -> Float64:
        """The largest error of execution."""
        return self.absolute + product(self.relative, self.largest)

    @property
    def reach(self) -> Float64:
        """The largest magnitude of the executed numbers."""
        return self.largest + self.error


def _apart(value: Float64, numbers: Float64) -> Float64:
    """Return the distances of constants; for large constants, only the largest distance."""
    if value.size <= FEW_NUMBERS or numbers.shape != value.shape:
        return np.asarray(np.abs(value - numbers))
    flat = value.reshape(-1), numbers.reshape(-1)
    blocks = (slice(start, start + _BLOCK) for start in range(0, value.size, _BLOCK))
    return np.asarray(max(np.abs(flat[0][b] - flat[1][b]).max() for b in blocks))


_BLOCK = 1 << 15
"""Number of constants that are compared at once."""


def rounded(exact: A, arithmetic: FloatType = FLOAT32, *, times: int = 1) -> A:
    """Return the result of one or more operations that round an exact result on executed operands.

    Raises:
        Undecidable: the result may overflow.
    """
    finite = np.isfinite(exact.reach)
    if (finite & (exact.reach * (1 + 2 * times * arithmetic.unit) >= arithmetic.largest)).any():
        raise Undecidable(OUT_OF_RANGE(f"a result may exceed the range of {arithmetic.name}"))
    if arithmetic.represents(exact.unit, exact.reach):
        return exact
    overflow = exact.overflow
    if not finite.all():
        room = (arithmetic.largest / 2 - exact.absolute) / (1 + exact.relative)
        overflow = min(overflow, float(np.min(np.maximum(room, 0.0))))
    share = arithmetic.unit * times * (1 + times * arithmetic.unit)
    return replace(
        exact,
        absolute=exact.absolute * (1 + share) + arithmetic.tiny * times,
        relative=exact.relative * (1 + share) + share,
        unit=None,
        overflow=overflow,
    )


def first_overflow(*operands: Approximation[Any]) -> float:
    """Return the ``overflow`` of a function of operands of which nothing else is known."""
    return 0.0 if any(math.isfinite(operand.overflow) for operand in operands) else math.inf


def sum_of(a: A, b: A, sign: float = 1.0) -> A:
    """Return the exact sum of two executed operands, or their difference for the sign -1."""
    meant = a.meant.plus(b.meant, sign)
    low, high = meant.range
    granule = None if a.granule is None else b.granule
    unit = None if a.granule is None or granule is None else np.minimum(a.granule, granule)
    if b.is_constant or a.is_constant:
        data, fixed = (a, b) if b.is_constant else (b, a)
        # |data| <= |sum| + |fixed|
        absolute = data.absolute + fixed.absolute + product(data.relative, fixed.largest)
        overflow = _beyond(data, fixed)
        return type(a)(meant, low, high, absolute, data.relative, unit, overflow=overflow)
    for data, other in ((a, b), (b, a)):
        if not np.isfinite(data.error).all() and np.isfinite(other.reach).all():
            # |data| <= |sum| + |other|, so the error is relative to the sum if that is limited
            absolute = data.absolute + other.error + product(data.relative, other.largest)
            overflow = min(_beyond(data, other), first_overflow(other))
            return type(a)(meant, low, high, absolute, data.relative, unit, overflow=overflow)
    overflow = first_overflow(a, b)
    return type(a)(meant, low, high, a.error + b.error, ZERO, unit, overflow=overflow)


def beyond_limits(x: Approximation[Any], low: Float64, high: Float64) -> float:
    """Return the ``overflow`` of limited data; raise Undecidable if it is within the limits."""
    ends = np.broadcast_arrays(np.abs(low), np.abs(high))
    if x.overflow <= np.max(ends, where=np.isfinite(ends), initial=0.0):
        raise Undecidable(OUT_OF_RANGE("a result may overflow before it is limited"))
    return math.inf if np.isfinite(ends).all() else x.overflow


def error_up_to(x: Approximation[Any], reach: Float64) -> Float64:
    """Return the largest error of ideal numbers of a magnitude; infinite if they may overflow."""
    reach = np.minimum(reach, x.largest)
    error = x.absolute + product(x.relative, reach)
    return np.where(reach >= x.overflow, np.inf, error) if math.isfinite(x.overflow) else error


def _beyond(data: Approximation[Any], added: Approximation[Any]) -> float:
    """Return the ``overflow`` of a sum of data that may overflow and of limited numbers."""
    if math.isinf(data.overflow):
        return math.inf
    return max(data.overflow - float(np.max(added.reach)), 0.0)


def multiple_of(a: A, factor: Float64, executed: Float64) -> A:
    """Return the exact product of an executed operand and a constant, ideal and as executed."""
    meant = a.meant.times(factor)
    low, high = meant.range
    apart = np.abs(executed - factor)
    with np.errstate(all="ignore"):
        share = np.where(factor == 0, 0.0, apart / np.abs(factor))
    lost = np.where(factor == 0, product(apart, a.largest), 0.0)
    relative = a.relative * (1 + share) + share
    unit = None if a.granule is None else a.granule * granules(executed)
    absolute, overflow = product(a.absolute, np.abs(executed)) + lost, a.overflow
    if math.isfinite(overflow):
        overflow *= float(np.min(np.minimum(np.abs(factor), np.abs(executed))))
    return type(a)(meant, low, high, absolute, relative, unit, overflow=overflow)

"""What a model computes in one tensor: the function meant, its range, and the error of execution.

The function meant is the one that operators define in real arithmetic on stored constants. The
error is how far a result, as executed, may lie from it::

    |executed - meant| <= absolute + relative * |meant|

Each operation rounds once: an exact result y becomes y * (1 + e) with |e| <= u, or is off by half
of the smallest subnormal number. An operation is exact if its result is a whole number of units
that its type represents: sums of codes times a power of two.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.combination import ZERO, Combination, product, zero
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import OUT_OF_RANGE


@dataclass(frozen=True)
class FloatType:
    """The rounding of a floating-point type.

    Attributes:
        name: of the type.
        unit: largest relative error of one operation.
        tiny: largest error of a result that is subnormal.
        whole: all integers up to this one are numbers of the type.
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
        """Return the largest number of roundings that a term of a sum goes through.

        Args:
            counts: number of terms.
        """
        if self.chunk is None:
            return counts
        depth = np.minimum(counts, self.chunk) + np.ceil(counts / self.chunk)
        return np.asarray(np.minimum(counts, depth))


FLOAT32 = FloatType("FLOAT", 2.0**-24, 2.0**-150, 2.0**24, (2 - 2.0**-23) * 2.0**127)
ARITHMETIC = {
    "FLOAT": FLOAT32,
    "FLOAT16": FloatType("FLOAT16", 2.0**-11, 2.0**-25, 2.0**11, 65504.0),
    "BFLOAT16": FloatType("BFLOAT16", 2.0**-8, 2.0**-134, 2.0**8, (2 - 2.0**-7) * 2.0**127),
}


_TYPES = {"FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}


def coarsest(kinds: Sequence[FloatType]) -> FloatType:
    """Return an arithmetic that is off at least as far as each of several; float32 for none."""
    if not kinds:
        return FLOAT32
    return FloatType(
        max(kinds, key=lambda kind: kind.unit).name,
        max(kind.unit for kind in kinds),
        max(kind.tiny for kind in kinds),
        min(kind.whole for kind in kinds),
        min(kind.largest for kind in kinds),
    )


@dataclass(frozen=True, eq=False)
class Quantity:
    """A tensor of one model. All arrays broadcast to it.

    Attributes:
        meant: the function in real arithmetic.
        low, high: its range.
        absolute, relative: the error of execution, see above.
        unit: powers of two of which the executed numbers of data are multiples; None if not known.
        value: the executed numbers of a constant, float64; None for data.
        factors: for a constant of codes, scales and whole numbers whose product is meant.
        operation: of float32 that computes it; None if not known.
    """

    meant: Combination
    low: Float64
    high: Float64
    absolute: Float64 = field(default_factory=zero)
    relative: Float64 = field(default_factory=zero)
    unit: Float64 | None = None
    value: Float64 | None = None
    factors: tuple[Float64, Float64] | None = None
    operation: Operation | None = None

    @property
    def is_exact(self) -> bool:
        """Whether what is executed is what is meant, and multiples of a unit."""
        return self.unit is not None and not (self.absolute.any() or self.relative.any())

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant."""
        return self.value is not None

    @property
    def numbers(self) -> Float64:
        """The executed numbers of a constant."""
        if self.value is None:
            raise ValueError("data has no numbers")
        return self.value

    @functools.cached_property
    def granule(self) -> Float64 | None:
        """Powers of two of which the executed numbers are multiples; None if not known."""
        return self.unit if self.value is None else granules(self.value)

    @property
    def largest(self) -> Float64:
        """The largest magnitude of what is meant."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def error(self) -> Float64:
        """The largest error of execution."""
        return self.absolute + product(self.relative, self.largest)

    @property
    def reach(self) -> Float64:
        """The largest magnitude of what is executed."""
        return self.largest + self.error


def holds_numbers(array: Array) -> bool:
    """Return whether an array holds finite real numbers."""
    if array.dtype.kind in "cOSUmM":
        return False
    return bool(np.isfinite(array.astype(np.float64)).all())


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of float32, rounded once.

    Attributes:
        name: of the primitive.
        operands: what it is applied to.
        attributes: of the primitive.
        result: what it computes.
    """

    name: str
    operands: tuple[Quantity, ...]
    attributes: Mapping[str, Any]
    result: Quantity

    def computes(self, q: Quantity) -> bool:
        """Return whether a quantity is the result, with the same function and the same errors."""
        names = "meant", "absolute", "relative"
        return all(getattr(q, name) is getattr(self.result, name) for name in names)


def constant(array: npt.ArrayLike) -> Quantity:
    """Return a stored constant."""
    stored = np.asarray(array)
    value = stored.astype(np.float64)
    factors = None
    if stored.dtype.kind in "iub" or (value.size and bool((value == np.rint(value)).all())):
        factors = np.ones(()), value
    return of_constant(value, value, factors)


def of_constant(
    value: Float64, meant: Float64, factors: tuple[Float64, Float64] | None = None
) -> Quantity:
    """Return a constant that operators compute.

    Args:
        value: the executed numbers.
        meant: the numbers in real arithmetic.
        factors: see :class:`Quantity`.
    """
    if not np.isfinite(value).all():
        raise Undecidable(OUT_OF_RANGE("a constant is infinite or NaN"))
    apart = np.abs(value - meant)
    return Quantity(Combination.constant(meant), meant, meant, apart, ZERO, None, value, factors)


def stored(q: Quantity, name: str) -> Quantity:
    """Return a constant as it is stored in a type; data, and other types, stay as they are.

    Args:
        q: what is stored.
        name: of the type.
    """
    kind = _TYPES.get(name)
    if q.value is None or kind is None:
        return q
    with np.errstate(over="ignore"):
        value = q.value.astype(kind).astype(np.float64)
    return of_constant(value, q.meant.offset, q.factors)


def granules(value: Float64) -> Float64:
    """Return the largest powers of two of which numbers are multiples; infinity for 0."""
    mantissas, exponents = np.frexp(value)
    whole = np.abs(mantissas * 2.0**53).astype(np.int64)
    lowest = np.where(whole, whole & -whole, 1).astype(np.float64)
    return np.where(whole, np.ldexp(lowest, exponents - 53), np.inf)


def rounded(exact: Quantity, arithmetic: FloatType = FLOAT32, *, times: int = 1) -> Quantity:
    """Return the result of an operation, or of several, that round an exact result.

    Args:
        exact: the exact result on executed operands, its error that of the operands.
        arithmetic: of the result.
        times: number of roundings.

    Raises:
        Undecidable: the result may overflow.
    """
    finite = np.isfinite(exact.reach)
    if (finite & (exact.reach * (1 + 2 * times * arithmetic.unit) >= arithmetic.largest)).any():
        raise Undecidable(OUT_OF_RANGE(f"a result may exceed the range of {arithmetic.name}"))
    if exact.unit is not None:
        counts = np.where(np.isfinite(exact.unit), exact.reach / exact.unit, 0.0)
        if (counts <= arithmetic.whole).all() and (exact.unit >= 2 * arithmetic.tiny).all():
            return exact
    share = arithmetic.unit * times * (1 + times * arithmetic.unit)
    return replace(
        exact,
        absolute=exact.absolute * (1 + share) + arithmetic.tiny * times,
        relative=exact.relative * (1 + share) + share,
        unit=None,
    )


def sum_of(a: Quantity, b: Quantity, sign: float = 1.0) -> Quantity:
    """Return the exact sum of two executed operands; a difference for the sign -1."""
    meant = a.meant.plus(b.meant, sign)
    low, high = meant.range
    granule = None if a.granule is None else b.granule
    unit = None if a.granule is None or granule is None else np.minimum(a.granule, granule)
    if b.is_constant or a.is_constant:
        data, fixed = (a, b) if b.is_constant else (b, a)
        # |data| <= |sum| + |fixed|
        absolute = data.absolute + fixed.absolute + product(data.relative, fixed.largest)
        return Quantity(meant, low, high, absolute, data.relative, unit)
    return Quantity(meant, low, high, a.error + b.error, ZERO, unit)


def multiple_of(a: Quantity, factor: Float64, executed: Float64) -> Quantity:
    """Return the exact product of an executed operand and a constant.

    Args:
        a: the operand.
        factor: the constant meant.
        executed: the constant as executed.
    """
    meant = a.meant.times(factor)
    low, high = meant.range
    apart = np.abs(executed - factor)
    with np.errstate(all="ignore"):
        share = np.where(factor == 0, 0.0, apart / np.abs(factor))
    lost = np.where(factor == 0, product(apart, a.largest), 0.0)
    relative = a.relative * (1 + share) + share
    unit = None if a.granule is None else a.granule * granules(executed)
    return Quantity(meant, low, high, product(a.absolute, np.abs(executed)) + lost, relative, unit)


def executed_constant(array: Array) -> Float64:
    """Return the numbers of an executed array in float64."""
    return np.asarray(array).astype(np.float64)

"""What a model executes in one tensor, and how far it may lie from what is meant, for the checker.

    |executed - meant| <= absolute + relative * |meant|

The rules are those of docs/certificates.md, written here a second time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from qgraph.errors import UnsupportedError
from qgraph.numerics import Float64
from qgraph.verify.ideals import (
    NOTHING,
    ONE,
    ULP,
    Basis,
    Ideal,
    largest,
    rows_of,
    times,
    total,
)


class Precision(NamedTuple):
    """A floating-point type: relative error, smallest error, whole numbers, largest number."""

    unit: float
    tiny: float
    whole: float
    most: float


PRECISIONS = {
    "FLOAT": Precision(2.0**-24, 2.0**-150, 2.0**24, (2 - 2.0**-23) * 2.0**127),
    "FLOAT16": Precision(2.0**-11, 2.0**-25, 2.0**11, 65504.0),
    "BFLOAT16": Precision(2.0**-8, 2.0**-134, 2.0**8, (2 - 2.0**-7) * 2.0**127),
}
SINGLE = PRECISIONS["FLOAT"]


@dataclass(frozen=True, eq=False)
class Executed:
    """A tensor of a model.

    Attributes:
        meant: the function in real arithmetic.
        low, high: its range.
        absolute, relative: the error, see above.
        granule: powers of two of which the executed numbers are multiples; None if not known.
        value: the executed numbers of a constant, as float64; None for data.
        scale, codes: numbers whose product a constant means; None where it is no such product.
        weak: why errors may be found that are larger than by the rules; else None.
    """

    meant: Ideal
    low: Float64
    high: Float64
    absolute: Float64 = field(default_factory=NOTHING.copy)
    relative: Float64 = field(default_factory=NOTHING.copy)
    granule: Float64 | None = None
    value: Float64 | None = None
    scale: Float64 | None = None
    codes: Float64 | None = None
    weak: str | None = None

    @property
    def largest(self) -> Float64:
        """The largest magnitude of what is meant."""
        return largest(self.low, self.high)

    @property
    def error(self) -> Float64:
        """The largest error."""
        return self.absolute + times(self.relative, self.largest)

    @property
    def reach(self) -> Float64:
        """The largest magnitude that is executed."""
        return self.largest + self.error

    @property
    def numbers(self) -> Float64:
        """The executed numbers of a constant.

        Raises:
            UnsupportedError: it is none.
        """
        if self.value is None:
            raise UnsupportedError("a parameter is not constant")
        return self.value


def fixed(
    value: Float64,
    meant: Float64 | None = None,
    scale: Float64 | None = None,
    codes: Float64 | None = None,
) -> Executed:
    """Return a constant: the executed numbers, and those meant; see :class:`Executed`."""
    if not np.isfinite(value).all():
        raise UnsupportedError("a constant is infinite or NaN")
    meant = value if meant is None else meant
    if codes is None and bool((value == np.rint(value)).all()) and meant is value:
        scale, codes = np.ones(()), value
    apart, ends = np.abs(value - meant), Ideal.fixed(meant)
    granule = granule_of(value)
    return Executed(ends, meant, meant, apart, NOTHING, granule, value, scale, codes)


def granule_of(value: Float64) -> Float64:
    """Return the largest powers of two of which numbers are multiples, infinity for 0."""
    mantissas, exponents = np.frexp(value)
    whole = np.abs(mantissas * 2.0**53).astype(np.int64)
    lowest = np.where(whole == 0, 1, whole & -whole).astype(np.float64)
    return np.where(whole == 0, np.inf, np.ldexp(lowest, exponents - 53))


def is_exact(granule: Float64 | None, reach: Float64, precision: Precision) -> bool:
    """Return whether a type holds all multiples of granules up to a magnitude."""
    if granule is None:
        return False
    counts = np.where(np.isfinite(granule), reach / granule, 0.0)
    return bool((counts <= precision.whole).all() and (granule >= 2 * precision.tiny).all())


def rounded(x: Executed, precision: Precision, count: int = 1) -> Executed:
    """Return an exact result after one rounding, or several."""
    known = np.isfinite(x.reach)
    if (known & (x.reach * (1 + 2 * count * precision.unit) >= precision.most)).any():
        raise UnsupportedError("a result may overflow")
    if is_exact(x.granule, x.reach, precision):
        return x
    share = precision.unit * count * (1 + count * precision.unit)
    return replace(
        x,
        absolute=x.absolute * (1 + share) + precision.tiny * count,
        relative=x.relative * (1 + share) + share,
        granule=None,
    )


def added(a: Executed, b: Executed, sign: float = 1.0) -> Executed:
    """Return the exact sum of executed operands, or the difference for the sign -1."""
    if a.value is not None and b.value is None:
        a, b = (b, a) if sign > 0 else (scaled(b, -np.ones(())), a)
        sign = 1.0
    meant = a.meant.plus(b.meant, sign)
    granule = None
    if a.granule is not None and b.granule is not None:
        granule = np.minimum(a.granule, b.granule)
    absolute, relative = a.error + b.error, NOTHING
    if b.value is not None:  # |data| <= |sum| + |constant|
        absolute = a.absolute + b.absolute + times(a.relative, b.largest)
        relative = a.relative
    weak = a.weak or b.weak
    return Executed(meant, *meant.range, absolute, relative, granule, weak=weak)


def scaled(
    x: Executed, factor: Float64, executed: Float64 | None = None, roundings: int = 1
) -> Executed:
    """Return the exact product with a constant, meant and executed.

    ``roundings`` counts those of the float64 arithmetic in ``factor`` and in the product.
    """
    executed = factor if executed is None else executed
    meant = x.meant.scaled(factor, roundings)
    apart = np.abs(executed - factor)
    with np.errstate(all="ignore"):
        share = np.where(factor == 0, 0.0, apart / np.abs(factor))
    lost = np.where(factor == 0, times(apart, x.largest), 0.0)
    granule = None if x.granule is None else x.granule * granule_of(executed)
    absolute = times(x.absolute, np.abs(executed)) + lost
    relative = x.relative * (1 + share) + share
    return Executed(meant, *meant.range, absolute, relative, granule, weak=x.weak)


def limited(x: Executed, low: Float64, high: Float64) -> Executed:
    """Return data between two ends."""
    if (x.low >= low).all() and (x.high <= high).all():
        return x
    ends = np.clip(x.low, low, high), np.clip(x.high, low, high)
    granule = None
    if x.granule is not None:
        own = [granule_of(np.where(np.isfinite(end), end, 0.0)) for end in (low, high)]
        granule = np.minimum(x.granule, np.minimum(*own))
    basis = Basis(("limit",), *ends, x.meant, ends=(low, high))
    meant = replace(Ideal.of(basis), depth=x.meant.depth)
    return replace(x, meant=meant, low=ends[0], high=ends[1], granule=granule)


@dataclass(frozen=True)
class SumLayout:
    """Which elements a sum of products reads; weights are ``[rows, taps, *places]``.

    Attributes:
        kind: operator, strides, padding and the like.
        groups: into which rows and channels are divided.
        trailing: axes of data and result behind the channels.
        has_padding: whether zeros may stand for data.
    """

    kind: tuple[Hashable, ...]
    groups: int = 1
    trailing: int = 0
    has_padding: bool = False

    def by_tap(self, array: Float64, weights: Float64) -> Float64:
        """Return numbers of the data as an array that broadcasts to the weights."""
        if array.size == 1:
            return array.reshape((1,) * weights.ndim)
        axis = array.ndim - 1 - self.trailing
        if axis < 0 or array.size != array.shape[axis]:
            raise UnsupportedError("numbers of the data differ within a channel of a sum")
        rows, taps = weights.shape[:2]
        parts = array.reshape(self.groups, 1, taps)
        spread = np.broadcast_to(parts, (self.groups, rows // self.groups, taps))
        return spread.reshape(rows, taps, *(1,) * (weights.ndim - 2))

    def by_row(self, array: Float64) -> Float64:
        """Return numbers ``[rows]`` as an array that broadcasts to the result."""
        return array.reshape(-1, *(1,) * self.trailing)


class Adding(NamedTuple):
    """How sums are added: the type, and the number of terms in a chunk (None for any order)."""

    precision: Precision
    chunk: int | None

    def noise(self, x: Executed, counts: Float64, reach: Float64) -> Executed:
        """Return a sum as it is executed, from the numbers and magnitudes of its terms."""
        if is_exact(x.granule, reach, self.precision):
            return x
        depth = counts
        if self.chunk is not None:
            sequence = np.minimum(counts, self.chunk) + np.ceil(counts / self.chunk)
            depth = np.minimum(counts, sequence)
        share = depth * self.precision.unit
        if (share >= 0.5).any() or not np.isfinite(reach).all():
            raise UnsupportedError("a sum has too many terms, or data of unknown range")
        if (reach * (1 + 2 * share) >= self.precision.most).any():
            raise UnsupportedError("a sum may overflow")
        lost = share / (1 - share) * reach + counts * self.precision.tiny
        return replace(x, absolute=(x.absolute + lost) * (1 + 4 * ULP), granule=None)


def products(
    data: Executed,
    weights: Executed,
    layout: SumLayout,
    adding: Adding | None,
    bias: Executed | None = None,
) -> Executed:
    """Return sums of products with weights ``[rows, taps, *places]``, and of a bias.

    ``adding`` is None for integers, whose sums are not rounded.
    """
    value = weights.numbers
    meant = np.broadcast_to(weights.meant.offset, value.shape)
    low, high = (layout.by_tap(end, value) for end in (data.low, data.high))
    if layout.has_padding:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    reach, error = largest(low, high), layout.by_tap(data.error, value)
    if not np.isfinite(reach).all():
        raise UnsupportedError("the range of the data of a sum is not known")
    function = _sum(data.meant, weights, layout)
    off = layout.by_row(total(np.abs(value) * error + reach * np.abs(value - meant)))
    granule = None
    if data.granule is not None and weights.granule is not None:
        parts = weights.granule * layout.by_tap(data.granule, value)
        granule = layout.by_row(
            np.broadcast_to(parts, value.shape).reshape(len(value), -1).min(axis=1)
        )
    result = Executed(function, *function.range, off, NOTHING, granule, weak=data.weak)
    counts = np.count_nonzero(value.reshape(len(value), -1), axis=1).astype(np.float64)
    counts, size = layout.by_row(counts), layout.by_row(total(np.abs(value) * (reach + error)))
    if bias is not None:
        result = added(result, bias)
        counts, size = counts + 1, size + bias.reach
    return result if adding is None else adding.noise(result, counts, size)


def _sum(data: Ideal, weights: Executed, layout: SumLayout) -> Ideal:
    """Return sums as multiples of one basis for each term of the data."""
    value = weights.numbers
    numbers, scale = np.broadcast_to(weights.meant.offset, value.shape), np.ones(len(value))
    if weights.scale is not None and weights.codes is not None:
        wide = np.broadcast_to(weights.scale, value.shape).reshape(len(value), -1)
        if (wide == wide[:, :1]).all():
            numbers, scale = np.broadcast_to(weights.codes, value.shape), wide[:, 0]
    made, terms = Ideal(), list(data.terms)
    if data.offset.any() and layout.has_padding:
        terms.append((data.offset, ONE))
    elif data.offset.any():
        parts = np.broadcast_to(weights.meant.offset, value.shape)
        parts = (parts * layout.by_tap(data.offset, value)).reshape(len(value), -1)
        size = np.abs(parts).sum(axis=1) * parts.shape[1]  # of the roundings of the sum
        made = Ideal((), layout.by_row(parts.sum(axis=1)), layout.by_row(size))
    for factor, basis in terms:
        made = made.plus(_sum_of_basis(factor, basis, (numbers, scale), layout))
    return replace(made, depth=data.depth + weights.meant.depth + 6)


def _sum_of_basis(
    factor: Float64, basis: Basis, weights: tuple[Float64, Float64], layout: SumLayout
) -> Ideal:
    numbers, scale = weights
    if factor.size == 1:
        scale = scale * rows_of(factor, 1)
    else:
        numbers = numbers * layout.by_tap(factor, numbers)
    ends = [layout.by_tap(end, numbers) for end in (basis.low, basis.high)]
    if layout.has_padding:
        ends = [np.minimum(ends[0], 0.0), np.maximum(ends[1], 0.0)]
    parts = [np.broadcast_to(numbers * end, numbers.shape) for end in ends]
    low, high = np.minimum(*parts), np.maximum(*parts)
    slack = total(largest(low, high)) * low[0].size * ULP
    if all((part == np.rint(part)).all() for part in parts) and (slack < 1).all():
        slack = np.zeros(())  # whole numbers below 2**52 are added without rounding
    bounds = [end.reshape(len(end), -1).sum(axis=1) for end in (low, high)]
    reach = np.broadcast_to(largest(*ends), numbers.shape)
    made = Basis(
        ("sum", *layout.kind, layout.trailing),
        layout.by_row(bounds[0] - slack),
        layout.by_row(bounds[1] + slack),
        Ideal.of(basis),
        numbers,
        reach,
    )
    return Ideal(((layout.by_row(scale), made),))

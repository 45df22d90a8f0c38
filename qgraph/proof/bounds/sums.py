"""Sums of products of data and constant weights, in any order of additions.

Whatever the order, and whether operations are fused or not, a float sum of n products x * w is off
by at most n * u * sum |x * w| (Jeannerod and Rump 2013; here with 1 / (1 - n u), which covers fused
operations and types of few bits). Sums of whole numbers of units that stay below 2**24 units are
exact.

The function meant is an atom: the sum of the products of the codes and the whole numbers that the
weights are multiples of. Scales, signs and common divisors of a channel are its coefficient, so a
model in which a BatchNormalization is folded into the scales of the weights has the same atom.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import BORDER, SLACK, ZERO, Atom, Atoms, Combination, product
from qgraph.proof.bounds.quantity import FloatType, Quantity, rounded, sum_of
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE

_WHOLE = 2.0**53


@dataclass(frozen=True)
class Taps:
    """Which elements of the data a sum reads, for weights ``[rows, taps, *places]``.

    Attributes:
        geometry: operator, strides, paddings and the like; equal for equal sums.
        groups: into which rows and channels are divided.
        channel: axis of the data from the last (0), along which the taps run.
        trailing: axes behind the rows in the result.
        is_padded: whether zeros may stand for data.
    """

    geometry: Hashable
    groups: int
    channel: int
    trailing: int
    is_padded: bool

    def by_tap(self, array: Float64, weights: Float64) -> Float64:
        """Return an array that broadcasts to the data as one that broadcasts to the weights."""
        if array.size == 1:
            return array.reshape((1,) * weights.ndim)
        axis = array.ndim - 1 - self.channel
        if axis < 0 or array.size != array.shape[axis]:
            raise Undecidable(NO_BOUND("numbers of the data differ within a channel of a sum"))
        rows, taps = weights.shape[:2]
        parts = array.reshape(self.groups, 1, taps)
        spread = np.broadcast_to(parts, (self.groups, rows // self.groups, taps))
        return spread.reshape(rows, taps, *(1,) * (weights.ndim - 2))

    def by_row(self, array: Float64) -> Float64:
        """Return an array ``[rows]`` as one that broadcasts to the result."""
        return array.reshape(-1, *(1,) * self.trailing)


def sum_of_products(
    atoms: Atoms,
    data: Quantity,
    weights: Quantity,
    layout: Taps,
    arithmetic: FloatType,
    *,
    bias: Quantity | None = None,
    more: int = 0,
    is_integer: bool = False,
) -> Quantity:
    """Return the sums of products of data and weights.

    Args:
        atoms: makes the atoms.
        data: what is summed.
        weights: constant, ``[rows, taps, *places]``.
        layout: which elements of the data take part.
        arithmetic: in which products and sums are rounded.
        bias: one more term, which broadcasts to the result.
        more: roundings of each term besides those of its product and of additions.
        is_integer: whether integers are added, without rounding.

    Raises:
        Undecidable: the data is unbounded, or scales differ within a channel.
    """
    value, meant = weights.value, weights.meant.offset
    if value is None:
        raise AssertionError("weights are constant")
    value, meant = (np.broadcast_to(array, value.shape) for array in (value, meant))
    low, high = (layout.by_tap(end, value) for end in (data.low, data.high))
    if layout.is_padded:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise Undecidable(OUT_OF_RANGE("the range of the data of a sum is not known"))
    function = _meant(atoms, data.meant, weights, layout)
    bottom, top = _ends(meant, low, high, layout)
    error = layout.by_tap(data.error, value)
    largest = np.maximum(np.abs(low), np.abs(high))
    off = _total(np.abs(value) * error + largest * np.abs(value - meant), layout)
    unit = None
    if data.granule is not None:
        granule = _least(granules_of(weights) * layout.by_tap(data.granule, value))
        unit = layout.by_row(granule)
    result = Quantity(function, bottom, top, off, ZERO, unit)
    if bias is not None:
        result = sum_of(result, bias)
    if is_integer:
        return result
    counts = np.count_nonzero(value.reshape(len(value), -1), axis=1).astype(np.float64)
    reach = _total(np.abs(value) * (largest + error), layout)
    if bias is not None:
        counts, reach = counts + 1, reach + bias.reach
    return added_up(result, layout.by_row(counts), reach, arithmetic, more=more)


def granules_of(weights: Quantity) -> Float64:
    """Return the granules of constant weights."""
    if weights.granule is None or weights.value is None:
        raise AssertionError("constants have units")
    return np.broadcast_to(weights.granule, weights.value.shape)


def added_up(
    exact: Quantity, counts: Float64, reach: Float64, arithmetic: FloatType, *, more: int = 0
) -> Quantity:
    """Return an exact sum as it is executed in any order.

    Args:
        exact: the sum, its error that of the operands.
        counts: number of terms.
        reach: sum of the magnitudes of the executed terms.
        arithmetic: in which products and sums are rounded.
        more: roundings of each term besides those of its product and of additions.

    Raises:
        Undecidable: the sum may overflow, or has too many terms.
    """
    if exact.unit is not None:
        whole = np.where(np.isfinite(exact.unit), reach / exact.unit, 0.0)
        if (whole <= arithmetic.whole).all() and (exact.unit >= 2 * arithmetic.tiny).all():
            return exact
    share = (arithmetic.roundings(counts) + more) * arithmetic.unit
    if (share >= 0.5).any():
        raise Undecidable(NO_BOUND(f"a sum of {counts.max():g} terms in {arithmetic.name}"))
    if not np.isfinite(reach).all():
        raise Undecidable(NO_BOUND("a sum of data of unknown range"))
    if (reach * (1 + 2 * share) >= arithmetic.largest).any():
        raise Undecidable(NO_BOUND(f"a sum may exceed the range of {arithmetic.name}"))
    noise = share / (1 - share) * reach + counts * arithmetic.tiny
    total = (exact.absolute + noise) * (1 + SLACK)
    return Quantity(exact.meant, exact.low, exact.high, total, exact.relative)


def _total(parts: Float64, layout: Taps) -> Float64:
    """Return sums of magnitudes over taps, rounded up."""
    sums = parts.reshape(len(parts), -1).sum(axis=1)
    return layout.by_row(sums * (1 + parts[0].size * 2.0**-52))


def _least(parts: Float64) -> Float64:
    return np.asarray(parts.reshape(len(parts), -1).min(axis=1))


def _ends(weights: Float64, low: Float64, high: Float64, layout: Taps) -> tuple[Float64, Float64]:
    """Return bounds of sums of products of weights and data between two ends."""
    first, second = product(weights, low), product(weights, high)
    parts = weights[0].size
    ends = []
    for pick, sign in ((np.minimum, -1.0), (np.maximum, 1.0)):
        terms = pick(first, second).reshape(len(weights), -1)
        with np.errstate(invalid="ignore"):
            slack = np.abs(terms).sum(axis=1) * parts * 2.0**-52
            end = terms.sum(axis=1)
        whole = (np.abs(end) < _WHOLE) & (terms == np.rint(terms)).all(axis=1)
        ends.append(layout.by_row(np.where(whole, end, end + sign * slack)))
    return ends[0], ends[1]


def _meant(atoms: Atoms, data: Combination, weights: Quantity, layout: Taps) -> Combination:
    """Return sums as multiples of atoms, one for each term of the data."""
    result = Combination()
    for coefficient, atom in data.terms:
        result = result.plus(_of_atom(atoms, coefficient, atom, weights, layout))
    if not data.offset.any():
        return result
    array = np.broadcast_to(weights.meant.offset, weights.numbers.shape)
    if layout.is_padded:
        one = atoms.make("one", None, (), (np.ones(()), np.ones(())))
        return result.plus(_of_atom(atoms, data.offset, one, weights, layout))
    offsets = layout.by_tap(data.offset, array)
    terms = (array * offsets).reshape(len(array), -1)
    added = Combination(
        (), layout.by_row(terms.sum(axis=1)), layout.by_row(np.abs(terms).sum(axis=1))
    )
    return result.plus(added)


def _of_atom(
    atoms: Atoms, coefficient: Float64, atom: Atom, weights: Quantity, layout: Taps
) -> Combination:
    shape = weights.numbers.shape
    numbers, scale = np.broadcast_to(weights.meant.offset, shape), None
    if weights.factors is not None:
        scales, codes = weights.factors
        wide = np.broadcast_to(scales, shape).reshape(shape[0], -1)
        if (wide == wide[:, :1]).all():
            numbers, scale = np.broadcast_to(codes, shape), wide[:, 0]
    if scale is None:
        scale = np.ones(shape[0])
    if coefficient.size == 1:
        scale = scale * coefficient.reshape(())
    else:
        numbers = numbers * layout.by_tap(coefficient, numbers)
    numbers, divisor = _reduced(numbers)
    scale = scale * divisor
    low, high = (layout.by_tap(end, numbers) for end in (atom.low, atom.high))
    if layout.is_padded:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    reach = np.maximum(np.abs(low), np.abs(high))
    made = atoms.make(
        BORDER if atom.kind == "one" else "sum",
        (layout.geometry, layout.trailing),
        (Combination.of(atom),),
        _ends(numbers, low, high, layout),
        (numbers, np.broadcast_to(reach, numbers.shape) if reach.size > 1 else reach),
    )
    return Combination(((layout.by_row(scale), made),))


def _reduced(numbers: Float64) -> tuple[Float64, Float64]:
    """Return weights without the sign and the common divisor of each row, and what was divided.

    Weights that are no whole numbers are returned as they are.
    """
    rows = numbers.reshape(len(numbers), -1)
    ones = np.ones(len(numbers))
    if not (rows == np.rint(rows)).all() or np.abs(rows).max(initial=0) >= _WHOLE:
        return numbers, ones
    whole = rows.astype(np.int64)
    divisor = np.gcd.reduce(whole, axis=1)
    first = whole[np.arange(len(whole)), (whole != 0).argmax(axis=1)]
    divisor = np.where(divisor == 0, 1, divisor) * np.where(first < 0, -1, 1)
    return (whole // divisor[:, None]).astype(np.float64).reshape(numbers.shape), divisor.astype(
        np.float64
    )


def mean_of(
    atoms: Atoms,
    data: Quantity,
    attributes: Hashable,
    count: int,
    arithmetic: FloatType,
    *,
    places: Sequence[int] = (),
    has_zeros: bool = False,
) -> Quantity:
    """Return means of elements of the data.

    Args:
        atoms: makes the atoms.
        data: what is averaged.
        attributes: which elements; equal for equal means.
        count: the largest number of elements.
        arithmetic: in which sums are rounded.
        places: axes of the elements of a mean, counted from the last.
        has_zeros: whether padding counts as zeros.
    """

    def along(low: Float64, high: Float64) -> tuple[Float64, Float64]:
        low, high = _over(np.minimum, low, places), _over(np.maximum, high, places)
        return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if has_zeros else (low, high)

    low, high = along(data.low, data.high)
    meant = data.meant
    numbers = [*(coefficient for coefficient, _ in meant.terms), meant.offset]
    if any(array.shape != _over(np.minimum, array, places).shape for array in numbers):
        function = Combination.of(atoms.make("mean", attributes, (meant,), (low, high)))
    else:
        terms = []
        for coefficient, atom in meant.terms:
            ends = along(atom.low, atom.high)
            made = atoms.make("mean", attributes, (Combination.of(atom),), ends)
            terms.append((coefficient, made))
        function = Combination(tuple(terms), meant.offset, meant.size)
    error, reach = (_over(np.maximum, part, places) for part in (data.error, data.reach))
    unit = None if data.unit is None else _over(np.minimum, data.unit, places)
    exact = Quantity(function, low, high, count * error, unit=unit)
    total = added_up(exact, np.asarray(float(count)), count * reach, arithmetic)
    # Runtimes divide, or multiply by a rounded reciprocal.
    return rounded(Quantity(function, low, high, total.absolute / count), arithmetic, times=2)


def _over(pick: np.ufunc, array: Float64, places: Sequence[int]) -> Float64:
    """Return the smallest or largest numbers along axes, of which one element is left."""
    axes = tuple(place for place in places if -place <= array.ndim)
    return np.asarray(pick.reduce(array, axis=axes, keepdims=True)) if axes else array

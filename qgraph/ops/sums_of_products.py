"""Sums of products of data and constant weights, in any order of additions.

Whatever the order, and whether operations are fused or not, a float sum of n products x * w is off
by at most n * u * sum |x * w| (Jeannerod and Rump 2013; here with 1 / (1 - n u), which covers fused
operations and types of few bits). Sums of whole numbers of units that stay below 2**24 units are
exact.

The prover and the checker of bounds both use this arithmetic, each with its own functions meant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import (
    SLACK,
    ZERO,
    A,
    F,
    FloatType,
    granules,
    largest_of,
    product,
    sum_of,
)
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE, Undecidable

_WHOLE = 2.0**53


@dataclass(frozen=True)
class Taps:
    """Which elements of the data a sum reads, for weights ``[rows, taps, *places]``.

    Attributes:
        geometry: operator, strides, paddings and the like; equal for equal sums.
        groups: into which rows and channels are divided.
        channel: axis of the data from the last (0), along which the taps run.
        trailing: axes after the rows in the result.
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
        if self.groups > 1:
            parts = np.broadcast_to(parts, (self.groups, rows // self.groups, taps))
        return parts.reshape(-1, taps, *(1,) * (weights.ndim - 2))

    def ends_by_tap(self, low: Float64, high: Float64, weights: Float64) -> tuple[Float64, Float64]:
        """Return ends of the data by tap; zeros of the padding lie between them."""
        low, high = self.by_tap(low, weights), self.by_tap(high, weights)
        return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if self.is_padded else (low, high)

    def by_row(self, array: Float64) -> Float64:
        """Return an array ``[rows]`` as one that broadcasts to the result."""
        return array.reshape(-1, *(1,) * self.trailing)


def products(
    meant: Callable[[F, A, Taps], F],
    data: A,
    weights: A,
    layout: Taps,
    arithmetic: FloatType | None,
    *,
    bias: A | None = None,
    more: int = 0,
) -> A:
    """Return the sums of products of data and weights.

    Args:
        meant: returns the function of the sums from that of the data, the weights and the layout.
        data: what is summed.
        weights: constant, ``[rows, taps, *places]``.
        layout: which elements of the data take part.
        arithmetic: in which products and sums are rounded; None for integers.
        bias: one more term, which broadcasts to the result.
        more: roundings of each term besides those of its product and of additions.

    Raises:
        Undecidable: the data is unbounded, or scales differ within a channel.
    """
    value = weights.numbers
    ideal = np.broadcast_to(weights.meant.offset, value.shape)
    low, high = layout.ends_by_tap(data.low, data.high, value)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        text = "the range of the data of a sum is not known"
        raise Undecidable(OUT_OF_RANGE(f"{text}; give --range NAME=LOW:HIGH of real inputs"))
    function = meant(data.meant, weights, layout)
    ends = ends_of_sums(ideal, low, high, layout)
    error, largest = layout.by_tap(data.error, value), largest_of(low, high)

    def lost(value: Float64, ideal: Float64, largest: Float64, error: Float64) -> Float64:
        return _total(np.abs(value) * error + largest * np.abs(value - ideal))

    off = layout.by_row(_in_blocks(lost, value, ideal, largest, error))
    unit = None
    if data.granule is not None:
        granule = layout.by_tap(data.granule, value)
        unit = layout.by_row(_in_blocks(_least_granule, value, granule))
    result = type(data)(function, *ends, off, ZERO, unit)
    if bias is not None:
        result = sum_of(result, bias)
    if arithmetic is None:
        return result
    counts = np.count_nonzero(value.reshape(len(value), -1), axis=1).astype(np.float64)
    terms = _in_blocks(lambda value, far: _total(np.abs(value) * far), value, largest + error)
    reach = layout.by_row(terms)
    if bias is not None:
        counts, reach = counts + 1, reach + bias.reach
    return added_up(result, layout.by_row(counts), reach, arithmetic, more=more)


def added_up(
    exact: A, counts: Float64, reach: Float64, arithmetic: FloatType, *, more: int = 0
) -> A:
    """Return an exact sum of ``counts`` terms as it is executed in any order.

    ``reach`` is the sum of the magnitudes of the executed terms. Each term has ``more`` roundings
    besides those of its product and of additions.

    Raises:
        Undecidable: the sum may overflow, or has too many terms.
    """
    if arithmetic.represents(exact.unit, reach):
        return exact
    share = (arithmetic.roundings(counts) + more) * arithmetic.unit
    if (share >= 0.5).any():
        terms = f"a sum of {counts.max():g} terms in {arithmetic.name}"
        raise Undecidable(
            NO_BOUND(
                f"{terms}, whose roundings may add up to the whole sum; give --accumulate float32 "
                "or --order chunk:N if a runtime adds so"
            )
        )
    if not np.isfinite(reach).all():
        raise Undecidable(NO_BOUND("a sum of data of unknown range"))
    if (reach * (1 + 2 * share) >= arithmetic.largest).any():
        raise Undecidable(NO_BOUND(f"a sum may exceed the range of {arithmetic.name}"))
    noise = share / (1 - share) * reach + counts * arithmetic.tiny
    total = (exact.absolute + noise) * (1 + SLACK)
    return type(exact)(exact.meant, exact.low, exact.high, total, exact.relative)


def ends_of_sums(
    weights: Float64, low: Float64, high: Float64, layout: Taps
) -> tuple[Float64, Float64]:
    """Return bounds of sums of products of weights and data between two ends, by tap."""
    least, most = _in_blocks(_ends, weights, low, high)
    return layout.by_row(least), layout.by_row(most)


def _ends(weights: Float64, low: Float64, high: Float64) -> Float64:
    """Return the bounds for each row of weights, ``[2, rows]``."""
    above, below = np.maximum(weights, 0.0), np.minimum(weights, 0.0)
    parts = weights[0].size
    ends = []
    for first, second, sign in ((low, high, -1.0), (high, low, 1.0)):
        # one of both products is 0
        terms = (product(above, first) + product(below, second)).reshape(len(weights), -1)
        with np.errstate(invalid="ignore"):
            size, end = np.abs(terms).sum(axis=1), terms.sum(axis=1)
        whole = (size < _WHOLE) & (terms == np.rint(terms)).all(axis=1)
        slack = np.where(whole, 0.0, size * parts * 2.0**-52)
        ends.append(end + sign * slack)
    return np.stack(ends)


def _total(parts: Float64) -> Float64:
    """Return the sum of magnitudes of each row, rounded up."""
    sums = parts.reshape(len(parts), -1).sum(axis=1)
    return np.asarray(sums * (1 + parts[0].size * 2.0**-52))


def _least_granule(value: Float64, granule: Float64) -> Float64:
    """Return the smallest lowest bit of the products of each row."""
    parts = granules(value) * granule
    return np.asarray(parts.reshape(len(parts), -1).min(axis=1))


def _in_blocks(function: Callable[..., Float64], weights: Float64, *others: Float64) -> Float64:
    """Return a function of rows of weights, of so few at once that they stay in the cache.

    The last axis of its result are the rows. ``others`` are arrays by tap, for each row or for all.
    """
    rows = len(weights)
    step = max(1, _BLOCK // max(1, weights[0].size))
    blocks = [slice(start, start + step) for start in range(0, rows, step)]
    parts = [
        function(weights[block], *(each[block] if len(each) == rows else each for each in others))
        for block in blocks
    ]
    return np.concatenate(parts, axis=-1)


_BLOCK = 1 << 15
"""Number of weights that are looked at at once."""

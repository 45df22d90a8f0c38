"""Ideal values of a model as functions of codes in real arithmetic, their distance, and roundings.

A function is a linear combination of bases, plus an offset. A basis depends on codes alone: codes,
the sum of their products with weights, a limited sum, a mean, moved elements. Both models share the
codes, so the distance of two functions follows from their coefficients.

Numbers are float64. ``depth`` counts the roundings of a factor or an offset, so the relative error
of this arithmetic is at most ``depth * 2**-52``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

import numpy as np

from qgraph.errors import UnsupportedError
from qgraph.numerics import Float64
from qgraph.numerics.values import fingerprint, ratios_of_rows
from qgraph.ops.approximation import Approximation, beyond_limits, granules, largest_of, product
from qgraph.ops.moved_elements import MovedElements
from qgraph.ops.sums_of_products import Taps, ends_of_sums
from qgraph.records import dataclass, field, replace
from qgraph.verify.reading import need

ULP = 2.0**-52
NOTHING: Float64 = np.zeros(())
ENDLESS: Float64 = np.full((), np.inf)


@dataclass(frozen=True, eq=False)
class Basis:
    """A function of codes and its range. Its argument ``inner`` is None for codes.

    A sum has weights ``[rows, taps, *places]`` and the largest magnitudes of their data.
    """

    kind: tuple[Hashable, ...]
    low: Float64
    high: Float64
    inner: Ideal | None = None
    weights: Float64 | None = None
    reach: Float64 = field(default_factory=NOTHING.copy)
    ends: tuple[Float64, Float64] | None = None
    movement: MovedElements | None = None

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal for functions that differ only in numbers."""
        return self.kind, None if self.inner is None else self.inner.key

    @cached_property
    def identity(self) -> Hashable:
        """A key that is equal for equal functions."""
        numbers = [*(self.ends or ()), *(() if self.weights is None else (self.weights,))]
        return self if self.inner is None else (self.kind, self.inner.identity, *_keys(numbers))

    def has_inner_of(self, other: Basis) -> bool:
        """Return whether it has the same argument as another basis."""
        own, inner = self.inner, other.inner
        return own is not None and inner is not None and own.identity == inner.identity

    @property
    def largest(self) -> Float64:
        """The largest magnitude."""
        return largest_of(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Ideal:
    """A function in real arithmetic: factors of bases, and an offset.

    ``size`` is the largest sum of magnitudes whose sum is the offset, and ``depth`` the number of
    roundings of each factor and of the offset.
    """

    terms: tuple[tuple[Float64, Basis], ...] = ()
    offset: Float64 = field(default_factory=NOTHING.copy)
    size: Float64 = field(default_factory=NOTHING.copy)
    depth: int = 1

    @classmethod
    def of(cls, basis: Basis) -> Ideal:
        """Return a basis as a function."""
        return cls(((np.ones(()), basis),))

    @classmethod
    def fixed(cls, numbers: Float64) -> Ideal:
        """Return a constant."""
        return cls((), numbers, np.abs(numbers))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """The keys of the bases."""
        own = [basis for _, basis in self.terms]
        # without sums over what is not padding
        return tuple(b.key for b in own if b.inner is None or b.inner.key != (ONE.key,))

    @cached_property
    def identity(self) -> Hashable:
        """A key that is equal for equal functions."""
        numbers = _keys([self.offset, *(factor for factor, _ in self.terms)])
        return (*numbers, *(basis.identity for _, basis in self.terms))

    @property
    def range(self) -> tuple[Float64, Float64]:
        """Bounds of the values."""
        low = high = self.offset
        for factor, basis in self.terms:
            ends = product(factor, basis.low), product(factor, basis.high)
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        return low, high

    def plus(self, other: Ideal, sign: float = 1.0) -> Ideal:
        """Return a sum, or a difference for the sign -1."""
        terms = {id(basis): (factor, basis) for factor, basis in self.terms}
        for factor, basis in other.terms:
            before = terms.get(id(basis), (NOTHING, basis))[0]
            is_sum = (before * factor * sign >= 0).all()
            need(is_sum, "multiples of one function are subtracted")
            terms[id(basis)] = before + sign * factor, basis
        depth = max(self.depth, other.depth) + 1
        offset, size = self.offset + sign * other.offset, self.size + other.size
        return Ideal(tuple(terms.values()), offset, size, depth)

    def times(self, factor: Float64) -> Ideal:
        """Return a multiple; the factor may be a quotient."""
        terms = tuple((before * factor, basis) for before, basis in self.terms)
        return Ideal(terms, self.offset * factor, self.size * np.abs(factor), self.depth + 2)


def _keys(arrays: Sequence[Float64]) -> list[Hashable]:
    return [fingerprint(array + 0.0) for array in arrays]  # without zeros of either sign


ONE = Basis(("one",), np.ones(()), np.ones(()))
"""Basis that is 1 for each element, and 0 in padding."""


@dataclass(frozen=True, eq=False)
class Executed(Approximation[Ideal]):
    """A tensor of a model."""


def fixed(
    value: Float64, meant: Float64 | None = None, factors: tuple[Float64, Float64] | None = None
) -> Executed:
    """Return a constant, from its executed and its ideal numbers."""
    ideal = value if meant is None else meant
    if factors is None and (value == np.rint(value)).all() and np.array_equal(value, ideal):
        factors = np.ones(()), value
    return Executed.of_constant(value, Ideal.fixed(ideal), factors)


def changed(x: Executed, change: Callable[[Float64], Float64]) -> Executed:
    """Return a constant with its axes changed."""
    arrays = x.meant.offset, *(x.factors or ())
    meant, *factors = (change(np.broadcast_to(a, x.numbers.shape)) for a in arrays)
    return fixed(change(x.numbers), meant, (factors[0], factors[1]) if factors else None)


def limited(x: Executed, low: Float64, high: Float64) -> Executed:
    """Return data limited to a range."""
    if (x.low >= low).all() and (x.high <= high).all():
        return x
    if x.value is not None:
        return fixed(np.clip(x.value, low, high), np.clip(x.meant.offset, low, high))
    overflow = beyond_limits(x, low, high)
    ends = np.clip(x.low, low, high), np.clip(x.high, low, high)
    unit = None
    if x.unit is not None:
        own = [granules(np.where(np.isfinite(end), end, 0.0)) for end in (low, high)]
        unit = np.minimum(x.unit, np.minimum(*own))
    basis = Basis(("limit",), *ends, x.meant, ends=(low, high))
    meant = replace(Ideal.of(basis), depth=x.meant.depth)
    low, high = ends
    return replace(x, meant=meant, low=low, high=high, unit=unit, overflow=overflow)


def sums(data: Ideal, weights: Executed, layout: Taps) -> Ideal:
    """Return sums of products with weights, as multiples of one basis for each term of the data."""
    shape = weights.numbers.shape
    meant = np.broadcast_to(weights.meant.offset, shape)
    numbers, scale = meant, np.ones(shape[0])
    if weights.factors is not None:
        wide = np.broadcast_to(weights.factors[0], shape).reshape(shape[0], -1)
        if (wide == wide[:, :1]).all():
            numbers, scale = np.broadcast_to(weights.factors[1], shape), wide[:, 0]
    total, terms = Ideal(), list(data.terms)
    if data.offset.any() and layout.is_padded:
        terms.append((data.offset, ONE))
    elif data.offset.any():
        parts = (meant * layout.by_tap(data.offset, meant)).reshape(shape[0], -1)
        size = np.abs(parts).sum(axis=1) * parts.shape[1]  # of the roundings of the sum
        total = Ideal((), layout.by_row(parts.sum(axis=1)), layout.by_row(size))
    for factor, basis in terms:
        rows, codes = scale, numbers
        if factor.size == 1:
            rows = scale * rows_of(factor, 1)
        else:
            codes = numbers * layout.by_tap(factor, numbers)
        ends = layout.ends_by_tap(basis.low, basis.high, codes)
        reach = np.broadcast_to(largest_of(*ends), shape)
        identity = "sum", layout.geometry, layout.trailing
        bounds = ends_of_sums(codes, *ends, layout)
        term = Basis(identity, *bounds, Ideal.of(basis), codes, reach)
        total = total.plus(Ideal(((layout.by_row(rows), term),)))
    return replace(total, depth=data.depth + weights.meant.depth + 6)


def rows_of(numbers: Float64, count: int) -> Float64:
    """Return numbers that broadcast to the rows of a sum, as one number or ``count`` numbers."""
    need(numbers.size in (1, count), "factors differ within a channel of a sum")
    return numbers.reshape(-1)


def unlimited(function: Ideal) -> tuple[Ideal, Float64, Float64]:
    """Return a function without the limits of its values, and these limits."""
    low, high = np.full((), -np.inf), np.full((), np.inf)
    while len(function.terms) == 1 and function.terms[0][1].ends is not None:
        ((factor, basis),) = function.terms
        ends: Sequence[Float64] = [product(factor, e) + function.offset for e in basis.ends or ()]
        low, high = (np.clip(pick(*ends), low, high) for pick in (np.minimum, np.maximum))
        inner = Ideal() if basis.inner is None else basis.inner
        shift = Ideal((), function.offset, function.size, function.depth)
        function = inner.times(factor).plus(shift)
    return function, low, high


_Term = tuple[Float64, Basis]

WHOLE = {"Round": np.rint, "Floor": np.floor, "Ceil": np.ceil}

UNKNOWN = Basis(("unknown",), -ENDLESS, ENDLESS)
"""Unknown data before rounding."""


@dataclass(frozen=True, eq=False)
class TracedRounding:
    """A rounding of data in steps to codes; ``function`` is ideal, without limits.

    The first and the last code are ``clips`` within the limits, ``ends`` of those that occur, and
    ``reach`` without limits.
    """

    kind: str
    before: Executed
    function: Ideal
    clips: tuple[Float64, Float64]
    ends: tuple[Float64, Float64]
    reach: tuple[Float64, Float64]
    codes: Ideal = field(default_factory=Ideal)


def rounding_of(kind: str, before: Executed, limits: tuple[Float64, Float64]) -> TracedRounding:
    """Return the rounding of data in steps to codes between limits."""
    function, bottom, top = unlimited(before.meant)
    clips = np.clip(WHOLE[kind](bottom), *limits), np.clip(WHOLE[kind](top), *limits)
    for limit in (np.asarray(bottom), np.asarray(top)):
        # 64 roundings of float32; one in a type with fewer digits adds its unit to the error
        share = np.maximum(2.0**-18, 2 * before.relative)
        near = np.minimum(before.error, share * (np.abs(limit) + function.size))
        near = np.where(np.isfinite(limit), near + np.abs(limit) * 64 * ULP, 0.0)
        is_sure = WHOLE[kind](limit - near) == WHOLE[kind](limit + near)
        need(bool(np.all(is_sure)), "a limit of the data is near a tie")
    off = before.error + (before.error + before.largest) * 64 * ULP
    reach = before.low - off, before.high + off
    first, last = (np.clip(WHOLE[kind](end), *clips) for end in reach)
    bare = function.range
    off = before.absolute + product(before.relative + 64 * ULP, largest_of(*bare))
    far = WHOLE[kind](bare[0] - off), WHOLE[kind](bare[1] + off)
    return TracedRounding(kind, before, function, clips, (first, last), far)


def distance(one: Ideal, other: Ideal, window: tuple[Float64, Float64] | None = None) -> Float64:
    """Return a bound of the distance of two functions, for values of the first in a window.

    If all sums of the second are r times those of the first, the distance is ``|(r - 1) * (one -
    its offset) + difference of the offsets|`` there, plus terms for the border of padded data.
    """
    one, other = _summed(one), _summed(other)
    pairs, noise = _pairs(one, other), max(one.depth, other.depth) * ULP
    apart = np.abs(one.offset - other.offset)
    total = apart + noise * (one.size + other.size)
    for pair in pairs:
        total = total + _apart(*pair, noise)
    plain = np.asarray(total * (1 + 64 * ULP))
    sizes = [float(np.max(product(np.abs(c), p.largest))) for (c, p), _ in pairs]
    main = int(np.argmax(sizes)) if sizes else 0
    ratio = _ratio(*pairs[main]) if window and pairs else None
    if window is None or ratio is None:
        return plain
    reach = largest_of(*(end - one.offset for end in window))
    total = product(np.abs(ratio - 1), reach) + apart
    total = total + 4 * noise * (reach + one.size + other.size)
    for (c, p), second in pairs[:main] + pairs[main + 1 :]:
        total = total + _apart((ratio * c, p), second, 4 * noise)
    usable = np.isfinite(total) & np.isfinite(ratio) & (ratio > 0)
    return np.minimum(plain, np.where(usable, total * (1 + 64 * ULP), np.inf))


def _summed(function: Ideal) -> Ideal:
    """Return a function with all sums of products of the same data joined to one sum."""
    terms: list[_Term] = []
    for factor, basis in function.terms:
        same = (t for t in terms if t[1].kind == basis.kind and t[1].has_inner_of(basis))
        before = next(same, None)
        if before is None or before[1].weights is None or basis.weights is None:
            terms.append((factor, basis))
            continue
        parts = before, (factor, basis)
        rows = max(len(before[1].weights), len(basis.weights))
        one, other = (_weighted(*part, rows) for part in parts)
        need(one.shape == other.shape, "the weights of the models have different shapes")
        total, (low, high) = one + other, Ideal(parts).range
        reach = np.maximum(before[1].reach, basis.reach)
        joined = replace(basis, low=low, high=high, weights=total, reach=reach)
        terms[[t is before for t in terms].index(True)] = np.ones(()), joined
    # a product of factor and weight, and a sum, for each that was joined
    depth = function.depth + 2 * (len(function.terms) - len(terms))
    return replace(function, terms=tuple(terms), depth=depth)


def _weighted(factor: Float64, basis: Basis, rows: int = 1) -> Float64:
    """Return the weights of a sum, times its factor of each row; one row may stand for several."""
    weights = NOTHING[None] if basis.weights is None else basis.weights
    weights = np.broadcast_to(weights, (max(rows, len(weights)), *weights.shape[1:]))
    return rows_of(factor, len(weights)).reshape(-1, *(1,) * (weights.ndim - 1)) * weights


def _pairs(one: Ideal, other: Ideal) -> list[tuple[_Term, _Term]]:
    """Return pairs of terms of two functions; one without a counterpart is paired with 0."""
    rest = list(other.terms)
    pairs: list[tuple[_Term, _Term]] = []
    for term in one.terms:
        partner = next((t for t in rest if t[1].key == term[1].key), (NOTHING, term[1]))
        rest = [t for t in rest if t is not partner]
        pairs.append((term, partner))
    return pairs + [((NOTHING, basis), (factor, basis)) for factor, basis in rest]


def _ratio(first: _Term, second: _Term) -> Float64 | None:
    """Return the ratio of the second term and the first, by channel, if they are proportional."""
    (c, p), (d, q) = first, second
    share = _share(p, q)
    if share is None or not np.any(c):
        return None
    with np.errstate(all="ignore"):
        return np.where(c == d * share, 1.0, d * share / c)


def _share(p: Basis, q: Basis) -> Float64 | None:
    """Return the ratio of the second basis and the first, by channel; None if there is none."""
    if p.identity == q.identity:
        return np.ones(())
    if p.weights is None or q.weights is None or not p.has_inner_of(q):
        return None
    ratio = ratios_of_rows(p.weights, q.weights)
    return ratio.reshape(p.low.shape) if ratio is not None and ratio.size == p.low.size else None


def _apart(first: _Term, second: _Term, noise: float) -> Float64:
    """Return a bound of the distance of two terms; ``noise`` is the relative error of factors."""
    (c, p), (d, q) = first, second
    share = _share(p, q)
    if share is not None:
        slack = noise * product(np.abs(c) + np.abs(d), np.maximum(p.largest, q.largest))
        return np.asarray(product(np.abs(c - d * share), p.largest) + slack)
    if p.weights is None or q.weights is None or not p.has_inner_of(q):
        raise UnsupportedError("the models compute it from different codes")
    one, other = _weighted(c, p), _weighted(d, q)
    need(one.shape == other.shape, "the weights of the models have different shapes")
    rows = (np.abs(one - other) + noise * (np.abs(one) + np.abs(other))) * p.reach
    rows = rows.reshape(len(rows), -1)
    return np.asarray(rows.sum(axis=1) * (1 + rows.shape[1] * ULP)).reshape(p.low.shape)

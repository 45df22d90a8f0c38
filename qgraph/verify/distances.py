"""Bound the distance of two functions, one of each model, of the same codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qgraph.errors import UnsupportedError
from qgraph.numerics import Float64
from qgraph.numerics.values import ratios_of_rows
from qgraph.ops.approximation import largest_of, product
from qgraph.verify.findings import need
from qgraph.verify.ideals import NOTHING, ULP, Basis, Ideal, rows_of

_ELEMENTWISE = ("limit", "LeakyRelu")

_Term = tuple[Float64, Basis]


def distance(one: Ideal, other: Ideal, window: tuple[Float64, Float64] | None = None) -> Float64:
    """Return a bound of the distance of two functions, for values of the first in a window.

    If all sums of the second are r times those of the first, the distance is ``|(r - 1) * (one -
    its offset) + difference of the offsets|`` there. Terms for the border of padded data may
    remain.
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
    """Return pairs of terms of two functions; border terms may have no counterpart."""
    rest = list(other.terms)
    pairs: list[tuple[_Term, _Term]] = []
    for term in one.terms:
        alike = [t for t in rest if t[1].key == term[1].key]
        is_paired = len(alike) == 1 or (term[1].is_border and not alike)
        need(is_paired, "the models compute it by different operators")
        rest = [t for t in rest if not alike or t is not alike[0]]
        pairs.append((term, alike[0] if alike else (NOTHING, term[1])))
    are_borders = all(basis.is_border for _, basis in rest)
    need(are_borders, "the models compute it by different operators")
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
    slack = noise * product(np.abs(c) + np.abs(d), np.maximum(p.largest, q.largest))
    share = _share(p, q)
    if share is not None:
        return np.asarray(product(np.abs(c - d * share), p.largest) + slack)
    if p.inner is None or q.inner is None:
        raise UnsupportedError("the models compute it from different codes")
    inner = NOTHING if p.has_inner_of(q) else distance(p.inner, q.inner)
    if p.weights is not None and q.weights is not None:
        return _sums_apart(first, second, float(np.max(inner)), noise)
    if p.movement is not None:
        inner = p.movement.of(inner)
    elif p.kind[0] not in _ELEMENTWISE:
        inner = np.asarray(np.max(inner))
    elif p.ends is not None and q.ends is not None:
        moved = [np.abs(a - b) for a, b in zip(p.ends, q.ends, strict=True)]
        inner = np.maximum(inner, np.fmax(np.fmax(*moved), 0.0))  # equal infinities give NaN
    return np.asarray(product(np.abs(c - d), p.largest) + product(np.abs(d), inner) + slack)


def _sums_apart(first: _Term, second: _Term, inner: float, noise: float) -> Float64:
    (c, p), (d, q) = first, second
    one, other = _weighted(c, p), _weighted(d, q)
    need(one.shape == other.shape, "the weights of the models have different shapes")
    parts = np.abs(one - other) * p.reach + noise * (np.abs(one) + np.abs(other)) * p.reach
    rows = (parts + np.abs(other) * inner).reshape(len(parts), -1)
    return np.asarray(rows.sum(axis=1) * (1 + rows.shape[1] * ULP)).reshape(p.low.shape)

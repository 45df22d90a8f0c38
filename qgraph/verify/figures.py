"""Recompute the figures of a bound: errors, and the distance of two functions of the same codes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qgraph.bound import STEPS_OF_OUTPUT, Against, Bound
from qgraph.errors import UnsupportedError
from qgraph.numerics import Float64
from qgraph.numerics.values import ratios_of_rows
from qgraph.ops.approximation import largest_of, product
from qgraph.text import amount
from qgraph.verify import need
from qgraph.verify.ideals import NOTHING, ULP, Basis, Executed, Ideal, TracedRounding, rows_of

_Term = tuple[Float64, Basis]
_MOST_STEPS = 2.0**31


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
    elif p.kind != ("limit",):
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


class Figures(NamedTuple):
    """Figures of a bound: errors and shift by channel, in steps; steps between codes."""

    reference_error: Float64
    candidate_error: Float64
    ideal_shift: Float64
    max_steps: float
    levels: float
    absolute: float | None = None
    ulps: float | None = None


def of_roundings(one: TracedRounding, other: TracedRounding, bound: Bound) -> Figures:
    """Return the bound of two roundings, whose codes differ by a constant shift."""
    need(one.kind == other.kind, "the models round in different ways")
    delta = np.asarray(float(bound.code_shift))
    # Beyond these values both codes are clipped, each to its own limit.
    low, high = _hull(one.ends, other.ends, delta)
    window, moved = (low - 1, high + 1), (low + delta - 1, high + delta + 1)
    shift = distance(one.function.plus(Ideal.fixed(delta)), other.function, moved)
    ours, theirs = _error(one.before, window), _error(other.before, moved)
    apart = [
        np.abs(np.clip(end, *one.clips) + delta - np.clip(end + delta, *other.clips))
        for end in _hull(one.reach, other.reach, delta)
    ]
    extra = np.nan_to_num(np.maximum(*apart), nan=0.0, posinf=np.inf)
    far = _counted(bound, ours) + theirs + shift
    # Codes n steps apart, with limits m steps apart, differ by at most max(n, m) steps.
    steps = np.max(np.maximum(np.where(far > 0, np.floor(far) + 1, 0.0), extra))
    levels = float(np.max(one.ends[1] - one.ends[0]))
    # Limits of codes that differ shift what both models mean.
    return Figures(ours, theirs, shift + extra, float(min(steps, _MOST_STEPS)), levels)


def _hull(
    one: tuple[Float64, Float64], other: tuple[Float64, Float64], delta: Float64
) -> tuple[Float64, Float64]:
    """Return the ends of codes of both models, in the numbering of the reference."""
    return np.minimum(one[0], other[0] - delta), np.maximum(one[1], other[1] - delta)


def _error(before: Executed, window: tuple[Float64, Float64]) -> Float64:
    reach = np.minimum(largest_of(*window), before.largest)
    return before.absolute + product(before.relative, reach)


def _counted(bound: Bound, ours: Float64) -> Float64:
    """Return the error of the reference, or 0 if bounds are against its ideal values."""
    return ours if bound.against == Against.EXECUTION else np.zeros_like(ours)


def of_output(ours: Executed, theirs: Executed, bound: Bound, is_whole: bool) -> Figures:
    """Return the bound of two outputs, in steps of whole numbers or of the range of the first."""
    parts, span = (
        (ours.error, theirs.error, distance(ours.meant, theirs.meant)),
        ours.high - ours.low,
    )
    unit, levels = np.ones(()), float(np.max(span))
    if not is_whole:
        unit, levels = np.where(span > 0, span, np.inf) / STEPS_OF_OUTPUT, float(STEPS_OF_OUTPUT)
    far = _counted(bound, parts[0]) + parts[1] + parts[2]
    ulps = float(np.max(far / np.spacing(ours.largest.astype(np.float32))))
    steps = min((np.floor if is_whole else np.ceil)(np.max(far / unit)), _MOST_STEPS)
    one, other, shift = (part / unit for part in parts)
    return Figures(one, other, shift, float(steps), levels, float(np.max(far)), ulps)


def problem_of(figures: Figures, bound: Bound) -> str | None:
    """Return which figure of a bound is smaller than the recomputed one; None if none is."""
    ours, theirs, shift = figures[:3]
    least: dict[str, float | None] = {
        "deviation_steps": float(np.max(_counted(bound, ours) + theirs + shift)),
        "tie_distance_steps": float(np.max(np.maximum(_counted(bound, ours), theirs + shift))),
        "reference_error": float(np.max(ours)),
        "candidate_error": float(np.max(theirs)),
        "ideal_shift": float(np.max(shift)),
        **{name: getattr(figures, name) for name in ("max_steps", "absolute", "ulps")},
    }
    for name, number in least.items():
        stated = getattr(bound, name)
        is_enough = None not in (number, stated) and stated >= number
        if not (is_enough or number is stated is None):
            texts = amount(number, 12), amount(stated, 12)
            return f"{name.replace('_', ' ')}: {texts[0]} was found, not {texts[1]}"
    if not bound.levels <= figures.levels:  # NaN is not
        return f"levels: {figures.levels:g} were found, not {bound.levels:g}"
    if not bound.channels:
        return None
    rows = np.stack([np.ravel(part) for part in np.broadcast_arrays(ours, theirs, shift)], axis=1)
    listed = np.asarray(bound.channels, np.float64)
    if len(rows) > 1 and len(listed) not in (1, len(rows)):
        return f"{len(rows)} channels were found, not {len(listed)}"
    return None if (listed >= rows).all() else "an error of a channel is too small"

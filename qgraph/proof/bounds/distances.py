"""Bounds on the distance of two real functions, for all values of their atoms."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import SLACK, ZERO, largest_of, product
from qgraph.proof.bounds.combination import BORDER, Atom, Combination
from qgraph.proof.bounds.pieces import ELEMENTWISE, apart_on_pieces

_NO_MATCH = np.full((), np.inf)

Window = tuple[Float64, Float64]
"""Interval of reference values to compare; values outside are clipped alike in both models."""


def distance(one: Combination, other: Combination, window: Window | None = None) -> Float64:
    """Return a bound of the distance of two functions, infinite where none is known.

    Values of ``one`` outside of the window are clipped alike in both models.
    """
    if _are_moved_alike(one, other):
        # zeros may have been inserted
        apart = distance(_moved_back(one), _moved_back(other), window)
        return np.asarray(max(np.max(apart), np.max(np.abs(one.offset - other.offset))))
    key = one.key, other.key  # of atoms that stay, unlike those of joined sums
    one, other = joined(one), joined(other)
    pairs = _paired(one, other)
    if pairs is None:
        on_pieces = apart_on_pieces(one, other, key, window)
        return _NO_MATCH if on_pieces is None else on_pieces
    apart = np.abs(one.offset - other.offset)
    slack = SLACK * (one.size + other.size)
    plain = apart + slack
    for (c, atom), (d, counterpart) in pairs:
        plain = plain + _term_distance(c, atom, d, counterpart)
        slack = slack + SLACK * product(np.abs(c), atom.largest)
        if counterpart is not atom:
            slack = slack + SLACK * product(np.abs(d), counterpart.largest)
    plain = plain + slack
    if window is None or not pairs or (np.isfinite(plain).all() and _differ(pairs)):
        return plain
    return np.minimum(plain, _in_window(one, other, pairs, window))


def _are_moved_alike(one: Combination, other: Combination) -> bool:
    """Return whether both are multiples, of one sign, of elements that are moved alike."""
    if len(one.terms) != 1 or len(other.terms) != 1:
        return False
    ((c, atom),), ((d, counterpart),) = one.terms, other.terms
    alike = [(a.kind, a.attributes) for a in (atom, counterpart)]
    numbers = (c, d, one.offset, other.offset)
    return (
        atom is not counterpart
        and alike[0] == alike[1]
        and atom.kind == "moved as one"
        and all(number.size == 1 for number in numbers)
        and bool((c * d > 0).all())
    )


def _moved_back(function: Combination) -> Combination:
    """Return a function before its elements were moved, up to its sign."""
    ((c, atom),) = function.terms
    offset = Combination((), function.offset.reshape(()), function.size.max())
    return atom.arguments[0].times(c.reshape(())).plus(offset)


def joined(function: Combination) -> Combination:
    """Return a function with all sums of products of the same data joined to one sum.

    Weights may be split into two tensors, such as codes without zero points and a correction.
    """
    groups: dict[Hashable, list[tuple[Float64, Atom]]] = {}
    for number, (coefficient, atom) in enumerate(function.terms):
        is_sum = atom.kind in ("sum", BORDER) and len(atom.numbers) == 2
        arguments = tuple(argument.key for argument in atom.arguments)
        key = (atom.kind, atom.attributes, arguments) if is_sum else number
        groups.setdefault(key, []).append((coefficient, atom))
    if len(groups) == len(function.terms):
        return function
    terms = [terms[0] if len(terms) == 1 else _one_sum(terms) for terms in groups.values()]
    if None in terms:
        return function
    return replace(function, terms=tuple(term for term in terms if term is not None))


def _one_sum(terms: Sequence[tuple[Float64, Atom]]) -> tuple[Float64, Atom] | None:
    """Return one sum with the weights of several added.

    None if coefficients vary within rows, or numbers of channels differ, as behind two paddings.
    """
    first = max((atom for _, atom in terms), key=lambda atom: len(atom.numbers[0]))
    shape = np.shape(first.numbers[0])
    rows, weights = (-1, *(1,) * (len(shape) - 1)), np.zeros(shape)
    for coefficient, atom in terms:
        count, *taps = np.shape(atom.numbers[0])
        is_alike = {coefficient.size, count} <= {1, shape[0]} and taps == list(shape[1:])
        if not is_alike:
            return None
        weights = weights + coefficient.reshape(rows) * atom.numbers[0]
    reach = reduce(np.maximum, (atom.numbers[1] for _, atom in terms))
    low, high = Combination(tuple(terms)).range
    return np.ones(()), replace(first, low=low, high=high, numbers=(weights, reach))


_Pair = tuple[tuple[Float64, Atom], tuple[Float64, Atom]]


def _differ(pairs: Sequence[_Pair]) -> bool:
    return any(atom is not other for (_, atom), (_, other) in pairs)


def _in_window(
    one: Combination, other: Combination, pairs: Sequence[_Pair], window: Window
) -> Float64:
    """Return the distance for values of ``one`` in a window.

    With the ratio r of the coefficients of one atom, ``other - one`` is ``(r - 1) * (one - offset
    of one) + difference of offsets`` plus terms of the other atoms.
    """
    sizes = [np.max(product(np.abs(c), a.largest)) for (c, a), _ in pairs]
    main = int(np.argmax(sizes))
    (c, atom), (d, counterpart) = pairs[main]
    if atom is not counterpart:
        return _NO_MATCH
    with np.errstate(all="ignore"):
        ratio = np.where(c == d, 1.0, d / c)
    ends = [np.abs(end - one.offset) for end in window]
    reach = np.maximum(*ends)
    total = product(np.abs(ratio - 1), reach) + np.abs(other.offset - one.offset)
    for index, ((c, atom), (d, counterpart)) in enumerate(pairs):
        if index != main:
            total = total + _term_distance(ratio * c, atom, d, counterpart)
            total = total + SLACK * product(np.abs(c), atom.largest)
            total = total + SLACK * product(np.abs(d), counterpart.largest)
    total = total + SLACK * (reach + one.size + other.size)
    return np.where(np.isfinite(ratio) & (ratio > 0), total, np.inf)


def _paired(one: Combination, other: Combination) -> list[_Pair] | None:
    """Return pairs of terms of two functions with the same atom, or otherwise the same form."""
    rest = list(other.terms)
    pairs: list[_Pair] = []
    left = []
    for term in one.terms:
        same = [t for t in rest if t[1] is term[1]]
        if same:
            pairs.append((term, same[0]))
            rest = [t for t in rest if t is not same[0]]
        else:
            left.append(term)
    for term in left:
        alike = [t for t in rest if t[1].form == term[1].form] or [
            t for t in rest if t[1].leaves == term[1].leaves and _operation(t) == _operation(term)
        ]
        if not alike and term[1].kind == BORDER:
            pairs.append((term, (ZERO, term[1])))
            continue
        if not alike:
            return None
        pairs.append((term, alike[0]))
        rest = [t for t in rest if t is not alike[0]]
    if any(atom.kind != BORDER for _, atom in rest):
        return None
    return pairs + [((ZERO, atom), (d, atom)) for d, atom in rest]


def _operation(term: tuple[Float64, Atom]) -> Hashable:
    return term[1].kind, term[1].attributes, len(term[1].arguments)


def _term_distance(c: Float64, atom: Atom, d: Float64, other: Atom) -> Float64:
    if atom is other:
        return product(np.abs(c - d), atom.largest)
    if (atom.kind, atom.attributes) != (other.kind, other.attributes):
        return _NO_MATCH
    if atom.kind in ("sum", BORDER):
        return sum_distance(c, atom, d, other)
    if atom.kind in _OF_TWO:
        apart = _OF_TWO[atom.kind](atom, other)
        return product(np.abs(c - d), atom.largest) + product(np.abs(d), apart)
    if atom.attributes in ("Max", "Min") and (c * d > 0).all():
        # multiples of the larger one are the larger ones of multiples
        ours, theirs = (
            [each.times(np.abs(by)) for each in whole.arguments]
            for by, whole in ((c, atom), (d, other))
        )
        return _arguments_apart(ours, theirs, in_any_order=True)
    in_any_order = len(atom.arguments) > 1 and atom.kind in ELEMENTWISE
    apart = _arguments_apart(atom.arguments, other.arguments, in_any_order=in_any_order)
    ends = [np.abs(a - b) for a, b in zip(atom.numbers, other.numbers, strict=True)]
    with np.errstate(invalid="ignore"):
        moved = reduce(np.maximum, (np.where(np.isnan(e), 0.0, e) for e in ends), ZERO)
        moved = reduced(atom, moved)
    within = np.maximum(max(atom.slope, other.slope) * reduced(atom, apart), moved)
    return product(np.abs(c - d), atom.largest) + product(np.abs(d), within)


def _arguments_apart(
    ours: Sequence[Combination], theirs: Sequence[Combination], *, in_any_order: bool
) -> Float64:
    apart = reduce(np.maximum, (distance(a, b) for a, b in zip(ours, theirs, strict=True)))
    if not in_any_order:
        return apart
    return np.minimum(apart, _arguments_apart(ours, theirs[::-1], in_any_order=False))


def _products_apart(atom: Atom, other: Atom) -> Float64:
    in_order = _sums_apart(atom, other)
    turned = replace(other, arguments=other.arguments[::-1])
    return np.minimum(in_order, _sums_apart(atom, turned))


def _sums_apart(atom: Atom, other: Atom) -> Float64:
    """Return a bound of the distance of two sums of products; the slope is the number of terms."""
    (a, b), (x, y) = atom.arguments, other.arguments
    parts = [distance(a, x), largest_of(*b.range), distance(b, y), largest_of(*x.range)]
    if atom.kind not in ELEMENTWISE:
        parts = [np.asarray(np.max(part)) for part in parts]
    return atom.slope * (product(parts[0], parts[1]) + product(parts[2], parts[3]))


def _quotients_apart(atom: Atom, other: Atom) -> Float64:
    """Bound the distance of two quotients: ``|a - x| / |b| + |x / y| |b - y| / |b|``."""
    (a, b), (x, y) = atom.arguments, other.arguments
    apart = distance(a, x) + product(other.largest, distance(b, y))
    return apart / np.minimum(*map(np.abs, b.range))


_OF_TWO = {
    "product": _products_apart,
    "matmul": _sums_apart,
    "quotient": _quotients_apart,
}
"""Bounds of the distance of atoms of two arguments, by kind."""


def reduced(atom: Atom, bound: Float64) -> Float64:
    """Turn a bound on arguments into one on a result, for all elements if it mixes them."""
    return bound if atom.kind in ELEMENTWISE else np.asarray(np.max(bound))


def sum_distance(c: Float64, atom: Atom, d: Float64, other: Atom) -> Float64:
    """Return a bound of the distance of multiples of two sums with different weights."""
    (x,), (y,) = atom.arguments, other.arguments
    if len(atom.numbers) != 2 or atom.numbers[0].shape != other.numbers[0].shape:
        return _NO_MATCH
    (weights, reach), (others, far) = atom.numbers, other.numbers
    rows = (-1, *(1,) * (weights.ndim - 1))
    first, second = _by_row(c, rows, atom), _by_row(d, rows, other)
    if first is None or second is None:
        return _NO_MATCH
    one, two = first * weights, second * others
    apart = np.abs(one - two) * reach
    moved = np.max(distance(x, y)) if x is not y else 0.0
    if moved:
        apart = apart + np.abs(two) * moved
    total = apart.reshape(len(weights), -1).sum(axis=1) * (1 + SLACK)
    factor = _largest_ratio(one, two)
    if moved and factor not in (0.0, 1.0):
        # one * x - two * y = one * (x - factor * y) + (factor * one - two) * y
        moved = np.max(distance(x, y.times(np.asarray(factor))))
        scaled = np.abs(one) * moved + np.abs(factor * one - two) * far
        total = np.minimum(total, scaled.reshape(len(weights), -1).sum(axis=1) * (1 + SLACK))
    shape = np.shape(atom.low)
    return np.asarray(total.reshape(shape) if math.prod(shape) == len(weights) else total)


def _largest_ratio(one: Float64, two: Float64) -> float:
    """Return the ratio of two arrays at the largest element of the first; 0 if it is not known."""
    index = np.argmax(np.abs(one))
    ratio = two.flat[index] / one.flat[index] if one.flat[index] else 0.0
    return float(ratio) if np.isfinite(ratio) else 0.0


def _by_row(coefficient: Float64, rows: tuple[int, ...], atom: Atom) -> Float64 | None:
    count = len(atom.numbers[0])
    if coefficient.size == 1:
        return coefficient.reshape(())
    return coefficient.reshape(rows) if coefficient.size == count else None

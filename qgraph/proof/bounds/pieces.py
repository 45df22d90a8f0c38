"""Bound the distance of two functions of one number on many small pieces of its range.

A function such as ``x * sigmoid(x)`` may be written as ``x / (1 + exp(-x))`` in the other model.
They have no common atom, but both are elementwise functions of one number. The range of this number
is divided into pieces, or into single numbers if it is one of a few codes. Both functions are
bounded on each piece.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import SLACK, largest_of, product
from qgraph.proof.bounds.combination import Atom, Combination
from qgraph.proof.bounds.executed import is_whole
from qgraph.records import dataclass, field

ELEMENTWISE = frozenset({"clip", "product", "function", "quotient"})
"""Kinds of elementwise atoms."""

_MOST_PIECES = 1 << 16
_MOST_NUMBERS = 1 << 21
"""Maximum numbers of pieces, and of pieces in all channels."""

_MOST_FUNCTIONS = 32
"""Maximum number of functions that are bounded on all pieces."""

_NEAR = 2.0**-30
"""Offsets whose relative difference is at most this are treated as equal, plus an error."""

_Ends = tuple[Float64, Float64]


class _NoPiecesError(Exception):
    """A function has no bound on a piece, or is not a function of the same number."""


def apart_on_pieces(
    one: Combination, other: Combination, key: Hashable, window: _Ends | None = None
) -> Float64 | None:
    """Bound the distance of two functions; None if they are not functions of one number.

    ``key`` is equal for equal pairs of functions only, also after these were deleted. Values of
    ``one`` outside of the window are clipped alike in both models.
    """
    source = argument_of(one)
    if source is None:
        return None
    (_, first), *_ = one.terms
    limits = tuple(map(_key, window or ()))
    known, place = _KNOWN.setdefault(first, {}), (key, limits)
    if place not in known:
        known[place] = _apart(source, one, other, window)
    return known[place]


_KNOWN: WeakKeyDictionary[Atom, dict[Hashable, Float64 | None]] = WeakKeyDictionary()
"""Distances by an atom: its registry keeps all atoms of a key. Models are compared repeatedly."""


def _key(array: Float64) -> Hashable:
    return np.shape(array), np.asarray(array).tobytes()


def _apart(
    source: Combination, one: Combination, other: Combination, window: _Ends | None
) -> Float64 | None:
    try:
        pieces = _Intervals.of(source, (one, other), window or ())
        with np.errstate(all="ignore"):
            ours, theirs = pieces.ends(one), pieces.ends(other)
            if window is not None:
                ours, theirs = (
                    (np.clip(low, *window), np.clip(high, *window)) for low, high in (ours, theirs)
                )
            apart = np.maximum(ours[1] - theirs[0], theirs[1] - ours[0])
    except _NoPiecesError:
        return None
    largest = np.asarray(apart.max(axis=0))
    return largest if np.isfinite(largest).all() else None


def argument_of(function: Combination) -> Combination | None:
    """Return the first linear function of atoms without arguments that a function depends on."""
    inner = (a for _, atom in function.terms if _is_function(atom) for a in atom.arguments)
    sources = (source for argument in inner if (source := argument_of(argument)) is not None)
    return next(sources, function if _linear(function) else None)


def _is_function(atom: Atom) -> bool:
    return atom.kind in ELEMENTWISE


def _linear(function: Combination) -> list[tuple[Float64, Atom]]:
    return [(c, atom) for c, atom in function.terms if not _is_function(atom)]


@dataclass(frozen=True, eq=False)
class _Intervals:
    """Pieces of the range of a number, the source, with ends ``[pieces, 1, ...]``."""

    source: Combination
    low: Float64
    high: Float64
    _known: dict[Atom, _Ends] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: Combination, functions: Sequence[Combination], limits: Sequence[Float64]
    ) -> _Intervals:
        seen: set[Atom] = set()
        numbers = [number for each in functions for number in _numbers(each, seen)]
        shape = np.broadcast_shapes(*map(np.shape, (*numbers, *limits)))
        behind = (-1, *(1,) * len(shape))
        points = _points(source)
        if points is not None:
            return cls(source, points.reshape(behind), points.reshape(behind))
        bottom, top = (np.asarray(end) for end in source.range)
        count = min(_MOST_PIECES, _MOST_NUMBERS // max(int(np.prod(shape)), 1))
        if not (np.isfinite(bottom).all() and np.isfinite(top).all() and count > 1):
            raise _NoPiecesError
        ends = np.linspace(bottom.min(), top.max(), count + 1)
        return cls(source, ends[:-1].reshape(behind), ends[1:].reshape(behind))

    def ends(self, function: Combination) -> _Ends:
        low, high = self._multiple(function)
        size = largest_of(low, high) + function.size
        for coefficient, atom in function.terms:
            if _is_function(atom):
                first, second = (product(coefficient, end) for end in self._results(atom))
                low, high = low + np.minimum(first, second), high + np.maximum(first, second)
                size = size + largest_of(first, second)
        return low - SLACK * size, high + SLACK * size

    def _multiple(self, function: Combination) -> _Ends:
        """Return bounds of the part of a function that is a multiple of the source."""
        terms = {id(atom): (c, atom) for c, atom in _linear(function)}
        if not terms:
            return function.offset, function.offset
        own = {id(atom): (c, atom) for c, atom in self.source.terms}
        ratio = _ratio(own, terms)
        unlike = np.zeros(())
        for key in {**own, **terms}:
            atom = (own.get(key) or terms[key])[1]
            c, d = (each[key][0] if key in each else np.zeros(()) for each in (own, terms))
            unlike = unlike + product(np.abs(d - ratio * c), atom.largest)
        offset = function.offset - ratio * self.source.offset
        size = function.size + np.abs(ratio) * self.source.size
        unlike = unlike + SLACK * (
            size + np.abs(ratio) * np.maximum(*map(np.abs, self.source.range))
        )
        if offset.size > 1 and np.ptp(offset) <= _NEAR * np.max(size):
            unlike = unlike + np.ptp(offset)
            offset = offset.reshape(-1)[0]
        ends = ratio * self.low, ratio * self.high
        unlike = np.asarray(np.max(unlike))
        return np.minimum(*ends) + offset - unlike, np.maximum(*ends) + offset + unlike

    def _results(self, atom: Atom) -> _Ends:
        if atom in self._known:
            return self._known[atom]
        if len(self._known) == _MOST_FUNCTIONS:
            raise _NoPiecesError
        low, high = self.ends(atom.arguments[0])
        if atom.kind == "clip":
            result = np.clip(low, *atom.numbers), np.clip(high, *atom.numbers)
        elif atom.between is not None:
            result = atom.between(low, high)
        elif atom.attributes == "Abs":
            least = np.maximum(np.maximum(low, -high), 0.0)
            result = least, largest_of(low, high)
        else:
            other = self.ends(atom.arguments[1])
            result = _of_two(atom, (low, high), other)
        self._known[atom] = result
        return result


def _of_two(atom: Atom, one: _Ends, other: _Ends) -> _Ends:
    if atom.attributes in ("Max", "Min"):
        pick = np.maximum if atom.attributes == "Max" else np.minimum
        return pick(one[0], other[0]), pick(one[1], other[1])
    if atom.kind == "quotient":
        if not ((other[0] > 0) | (other[1] < 0)).all():
            raise _NoPiecesError
        other = 1 / other[1], 1 / other[0]
    corners = [product(x, y) for x in one for y in other]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


def _numbers(function: Combination, seen: set[Atom]) -> Iterator[Float64]:
    """Yield the numbers whose bounds on pieces are needed; each atom once."""
    yield function.offset
    for coefficient, atom in function.terms:
        if _is_function(atom):
            yield coefficient
            if atom not in seen:
                seen.add(atom)
                yield from atom.numbers
                for argument in atom.arguments:
                    yield from _numbers(argument, seen)


def _points(source: Combination) -> Float64 | None:
    """Return all values of a multiple of whole numbers, if they are few; else None."""
    if len(source.terms) != 1 or source.offset.size != 1:
        return None
    ((factor, atom),) = source.terms
    low, high = float(np.min(atom.low)), float(np.max(atom.high))
    if factor.size != 1 or not is_whole(atom) or not high - low < _MOST_PIECES:
        return None
    return np.asarray(np.arange(low, high + 1) * factor.reshape(()) + source.offset.reshape(()))


def _ratio(own: dict[int, tuple[Float64, Atom]], terms: dict[int, tuple[Float64, Atom]]) -> float:
    """Return the ratio of a function and the source, from the atom with the largest share."""
    common = [key for key in own if key in terms]
    if not common:
        raise _NoPiecesError
    main = max(
        common, key=lambda key: float(np.max(product(np.abs(own[key][0]), own[key][1].largest)))
    )
    c, d = np.broadcast_arrays(own[main][0], terms[main][0])
    index = int(np.argmax(np.abs(c)))
    return float(d.flat[index] / c.flat[index]) if c.flat[index] else 0.0

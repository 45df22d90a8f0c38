"""Functions in real arithmetic, as sums of multiples of atoms, and how far two of them lie apart.

An atom is a function of codes or inputs that both models share: the codes of a quantizer, a sum of
their products with weights, the result of a Sigmoid. Atoms of equal meaning are one object, in
whichever model they occur. So two functions with the same atoms differ in coefficients only, which
are numbers:

    reference  0.013 * sum + 0.5          bound of the difference, for |sum| <= 100:
    candidate  0.012 * sum + 0.5          0.001 * 100

All arrays are float64 and broadcast to the tensor: shape ``[C, 1, 1]`` for channels of an image.
Numbers are computed in float64, with a few operations each; distances contain :data:`SLACK` for the
rounding of these operations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from qgraph.numerics import Float64

BORDER = "border"
"""Kind of the sums of weights whose data is not padding: an offset of the data, summed."""

SLACK = 2.0**-44
"""Relative error of coefficients and offsets: they are results of at most 2**8 operations."""

ZERO = np.zeros(())


def zero() -> Float64:
    """Return 0, as the default of a field."""
    return ZERO


_NO_MATCH = np.full((), np.inf)


@dataclass(frozen=True, eq=False)
class Atom:
    """A function in real arithmetic. Atoms are compared by identity; see :class:`Atoms`.

    Attributes:
        kind: what it computes, such as "codes", "sum" or "Sigmoid".
        attributes: what distinguishes it from others of its kind, apart from numbers.
        arguments: what it is computed from.
        low, high: bounds of its values.
        form: equal for atoms that differ in numbers only.
        numbers: weights of a sum, bounds of a clip.
        slope: the largest ratio of a change of the result and of an argument.
        serial: its number among all atoms, in the order in which they were made.
    """

    kind: str
    attributes: Hashable
    arguments: tuple[Combination, ...]
    low: Float64
    high: Float64
    form: int
    numbers: tuple[Float64, ...] = ()
    slope: float = 1.0
    serial: int = 0

    @property
    def largest(self) -> Float64:
        """The largest magnitude."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True, eq=False)
class Combination:
    """A sum of multiples of atoms, and an offset.

    Attributes:
        terms: coefficients and atoms; no atom occurs twice.
        offset: what is added.
        size: at least the magnitude of every number that was added to get the offset.
    """

    terms: tuple[tuple[Float64, Atom], ...] = ()
    offset: Float64 = field(default_factory=zero)
    size: Float64 = field(default_factory=zero)

    @classmethod
    def constant(cls, array: Float64) -> Combination:
        """Return a constant function."""
        return cls((), array, np.abs(array))

    @classmethod
    def of(cls, atom: Atom) -> Combination:
        """Return an atom as a function."""
        return cls(((np.ones(()), atom),))

    def plus(self, other: Combination, sign: float = 1.0) -> Combination:
        """Return the sum of two functions, or their difference for the sign -1."""
        terms = {id(atom): (coefficient, atom) for coefficient, atom in self.terms}
        for coefficient, atom in other.terms:
            before = terms.get(id(atom), (ZERO, atom))[0]
            terms[id(atom)] = before + sign * coefficient, atom
        return Combination(
            tuple(terms.values()),
            self.offset + sign * other.offset,
            self.size + other.size,
        )

    def times(self, factor: Float64) -> Combination:
        """Return a multiple of the function."""
        terms = tuple((coefficient * factor, atom) for coefficient, atom in self.terms)
        return Combination(terms, self.offset * factor, self.size * np.abs(factor))

    @property
    def range(self) -> tuple[Float64, Float64]:
        """Bounds of the values."""
        low = high = self.offset
        for coefficient, atom in self.terms:
            ends = product(coefficient, atom.low), product(coefficient, atom.high)
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        return low, high

    @property
    def form(self) -> int:
        """A number that is equal for functions that differ in numbers only."""
        forms = (atom.form for _, atom in self.terms if atom.kind != BORDER)
        return hash(tuple(sorted(forms)))

    @property
    def serials(self) -> list[int]:
        """The numbers of the atoms."""
        return sorted(atom.serial for _, atom in self.terms)

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal functions."""
        terms = ((id(atom), _bytes(coefficient)) for coefficient, atom in self.terms)
        return tuple(sorted(terms)), _bytes(self.offset)


class Atoms:
    """Makes atoms, each only once.

    Attributes:
        conditions: what their values and errors take for granted.
    """

    def __init__(self) -> None:
        self.conditions: set[str] = set()
        self._known: dict[Hashable, Atom] = {}

    def make(
        self,
        kind: str,
        attributes: Hashable,
        arguments: Sequence[Combination],
        ends: tuple[Float64, Float64],
        numbers: Sequence[Float64] = (),
        slope: float = 1.0,
    ) -> Atom:
        """Return the atom with these attributes and arguments."""
        digests = tuple(map(_bytes, numbers))
        key = (kind, attributes, tuple(argument.key for argument in arguments), digests)
        if key not in self._known:
            form = hash((kind, attributes, tuple(argument.form for argument in arguments)))
            self._known[key] = Atom(
                kind, attributes, tuple(arguments), *ends, form, tuple(numbers), slope,
                len(self._known),
            )  # fmt: skip
        return self._known[key]


def _bytes(array: Float64) -> Hashable:
    made = np.ascontiguousarray(array)
    return made.shape, made.tobytes() if made.nbytes < 1 << 12 else hash_of(made)


def hash_of(array: Float64) -> bytes:
    """Return a digest of an array."""
    return hashlib.sha256(array.tobytes()).digest()


def product(one: Float64, other: Float64) -> Float64:
    """Return the product, where 0 times infinity is 0."""
    with np.errstate(invalid="ignore"):
        return np.where((one == 0) | (other == 0), 0.0, one * other)


Window = tuple[Float64, Float64]
"""Ends of the values of the reference that matter; beyond them both results are clipped alike."""


def distance(one: Combination, other: Combination, window: Window | None = None) -> Float64:
    """Return a bound of the distance of two functions, infinite where none is known.

    Args:
        one: a function of the reference.
        other: a function of the candidate.
        window: values of ``one`` that matter, where both are continued by their ends.
    """
    pairs = _paired(one, other)
    if pairs is None:
        return _NO_MATCH
    apart = np.abs(one.offset - other.offset)
    slack = SLACK * (one.size + other.size)
    plain = apart + slack
    for (c, atom), (d, counterpart) in pairs:
        plain = plain + _term_distance(c, atom, d, counterpart)
        slack = slack + SLACK * product(np.abs(c), atom.largest)
    plain = plain + slack
    if window is None or not all(a is b for (_, a), (_, b) in pairs) or not pairs:
        return plain
    return np.minimum(plain, _in_window(one, other, pairs, window))


_Pair = tuple[tuple[Float64, Atom], tuple[Float64, Atom]]


def _in_window(
    one: Combination, other: Combination, pairs: Sequence[_Pair], window: Window
) -> Float64:
    """Return the distance where the values of ``one`` lie in a window.

    With the ratio r of the coefficients of one atom, ``other - one`` is
    ``(r - 1) * (one - its offset) + offsets' difference`` plus what the other atoms leave.
    """
    sizes = [np.max(product(np.abs(c), a.largest)) for (c, a), _ in pairs]
    main = int(np.argmax(sizes))
    (c, _), (d, _) = pairs[main]
    with np.errstate(all="ignore"):
        ratio = np.where(c == d, 1.0, d / c)
    ends = [np.abs(end - one.offset) for end in window]
    reach = np.maximum(*ends)
    found = product(np.abs(ratio - 1), reach) + np.abs(other.offset - one.offset)
    for index, ((c, atom), (d, _)) in enumerate(pairs):
        if index != main:
            found = found + product(np.abs(d - ratio * c), atom.largest)
            found = found + SLACK * product(np.abs(c), atom.largest)
    found = found + SLACK * (reach + one.size + other.size)
    return np.where(np.isfinite(ratio) & (ratio > 0), found, np.inf)


def _paired(one: Combination, other: Combination) -> list[_Pair] | None:
    """Return the terms of two functions in pairs of the same atom, or else of the same form."""
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
        alike = [t for t in rest if t[1].form == term[1].form]
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


def _term_distance(c: Float64, atom: Atom, d: Float64, other: Atom) -> Float64:
    """Return a bound of ``|c * atom - d * other|``."""
    if atom is other:
        return product(np.abs(c - d), atom.largest)
    if (atom.kind, atom.attributes) != (other.kind, other.attributes):
        return _NO_MATCH
    if atom.kind in ("sum", BORDER):
        return sum_distance(c, atom, d, other)
    if atom.kind in _OF_TWO:
        apart = _OF_TWO[atom.kind](atom, other)
        return product(np.abs(c - d), atom.largest) + product(np.abs(d), apart)
    apart = _arguments_apart(atom.arguments, other.arguments)
    if len(atom.arguments) > 1 and atom.kind in ELEMENTWISE:  # these are commutative
        turned = _arguments_apart(atom.arguments, other.arguments[::-1])
        apart = np.minimum(apart, turned)
    ends = [np.abs(a - b) for a, b in zip(atom.numbers, other.numbers, strict=True)]
    with np.errstate(invalid="ignore"):
        moved = reduce(np.maximum, (np.where(np.isnan(e), 0.0, e) for e in ends), ZERO)
        moved = reduced(atom, moved)
    within = np.maximum(max(atom.slope, other.slope) * reduced(atom, apart), moved)
    return product(np.abs(c - d), atom.largest) + product(np.abs(d), within)


def _arguments_apart(ours: Sequence[Combination], theirs: Sequence[Combination]) -> Float64:
    return reduce(np.maximum, (distance(a, b) for a, b in zip(ours, theirs, strict=True)))


def _products_apart(atom: Atom, other: Atom) -> Float64:
    """Return how far products of elements lie apart."""
    in_order = _sums_apart(atom, other)
    turned = replace(other, arguments=other.arguments[::-1])
    return np.minimum(in_order, _sums_apart(atom, turned))


def _sums_apart(atom: Atom, other: Atom) -> Float64:
    """Return how far sums of as many products as the slope says lie apart."""
    (a, b), (x, y) = atom.arguments, other.arguments
    parts = [distance(a, x), largest(b), distance(b, y), largest(x)]
    if atom.kind not in ELEMENTWISE:
        parts = [np.asarray(np.max(part)) for part in parts]
    return atom.slope * (product(parts[0], parts[1]) + product(parts[2], parts[3]))


def _quotients_apart(atom: Atom, other: Atom) -> Float64:
    """Return how far quotients lie apart: ``|a - x| / |b| + |x / y| |b - y| / |b|``."""
    (a, b), (x, y) = atom.arguments, other.arguments
    apart = distance(a, x) + product(other.largest, distance(b, y))
    return apart / np.minimum(*map(np.abs, b.range))


_OF_TWO = {
    "product": _products_apart,
    "matmul": _sums_apart,
    "quotient": _quotients_apart,
}
"""How far atoms of two arguments lie apart."""


def largest(function: Combination) -> Float64:
    """Return the largest magnitude of a function."""
    low, high = function.range
    return np.maximum(np.abs(low), np.abs(high))


def reduced(atom: Atom, bound: Float64) -> Float64:
    """Return a bound on the arguments of an atom as one on its result.

    Atoms that mix elements of different places have one bound for all.
    """
    return bound if atom.kind in ELEMENTWISE else np.asarray(np.max(bound))


ELEMENTWISE = frozenset({"clip", "product", "function", "quotient"})
"""Kinds of atoms whose elements depend on the elements of the same place only."""


def sum_distance(c: Float64, atom: Atom, d: Float64, other: Atom) -> Float64:
    """Return a bound of the distance of multiples of two sums with different weights."""
    (x,), (y,) = atom.arguments, other.arguments
    if len(atom.numbers) != 2 or atom.numbers[0].shape != other.numbers[0].shape:
        return _NO_MATCH
    (weights, reach), (others, _) = atom.numbers, other.numbers
    rows = (-1, *(1,) * (weights.ndim - 1))
    first, second = _by_row(c, rows, atom), _by_row(d, rows, other)
    if first is None or second is None:
        return _NO_MATCH
    apart = np.abs(first * weights - second * others) * reach
    moved = np.max(distance(x, y)) if x is not y else 0.0
    if moved:
        apart = apart + np.abs(second * others) * moved
    total = apart.reshape(len(weights), -1).sum(axis=1) * (1 + SLACK)
    return np.asarray(total.reshape(_shape_of_rows(atom, len(weights))))


def _by_row(coefficient: Float64, rows: tuple[int, ...], atom: Atom) -> Float64 | None:
    count = len(atom.numbers[0])
    if coefficient.size == 1:
        return coefficient.reshape(())
    return coefficient.reshape(rows) if coefficient.size == count else None


def _shape_of_rows(atom: Atom, count: int) -> tuple[int, ...]:
    shape = np.shape(atom.low)
    return shape if int(np.prod(shape)) == count else (count,)

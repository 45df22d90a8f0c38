"""Real functions of the inputs of a segment, as linear combinations of atoms.

An atom is a function of codes or inputs that both models share: the codes of a quantizer, a sum of
their products with weights, the result of a Sigmoid. Atoms of equal meaning are one object in both
models. So two functions of the same atoms differ only in their coefficients, which are numbers:

    reference  0.013 * sum + 0.5          bound of the difference, for |sum| <= 100:
    candidate  0.012 * sum + 0.5          0.001 * 100

Each atom of a part of concatenated tensors is an atom of the whole that is 0 outside of the part::

    whole = placed(part one) + placed(part two)

All arrays are float64 and broadcast to the tensor: shape ``[C, 1, 1]`` for channels of an image.
Numbers are computed in float64, with a few operations each; distances contain :data:`SLACK` for the
rounding of these operations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qgraph.conditions import Condition
from qgraph.numerics import Float64
from qgraph.ops.approximation import FEW_NUMBERS, ZERO, largest_of, product, zero
from qgraph.records import dataclass, field

BORDER = "border"
"""Kind of an atom: the sum of the weights whose data is not padding, for data with an offset."""

ONE = "one"
"""Kind of an atom: 1 for each element, which padding replaces by 0."""


Between = Callable[..., tuple[Float64, Float64]]


@dataclass(frozen=True, eq=False)
class Atom:
    """A function in real arithmetic. Atoms are compared by identity; see :class:`Atoms`.

    Attributes:
        kind: the function, such as "codes", "sum" or "Sigmoid".
        attributes: distinguish it from other atoms of its kind and numbers.
        arguments: the functions that it is computed from.
        low, high: bounds of its values.
        form: a number that is equal for atoms that differ only in numbers.
        numbers: weights of a sum, limits of a clip.
        slope: Lipschitz constant: the largest change of the result divided by the change of an
            argument.
        leaves: serial numbers of the atoms without arguments that it is computed from.
        between: returns bounds of its values from bounds of its argument; None if they follow from
            kind and attributes.
        serial: its number among all atoms, in the order of creation.
    """

    kind: str
    attributes: Hashable
    arguments: tuple[Combination, ...]
    low: Float64
    high: Float64
    form: int
    numbers: tuple[Float64, ...] = ()
    slope: float = 1.0
    between: Between | None = None
    leaves: frozenset[int] = frozenset()
    serial: int = 0

    @property
    def largest(self) -> Float64:
        """The largest magnitude."""
        return largest_of(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Combination:
    """A linear combination of atoms, of which none occurs twice, plus an offset.

    ``size`` is an upper bound on the magnitudes of the numbers whose sum is the offset.
    """

    terms: tuple[tuple[Float64, Atom], ...] = ()
    offset: Float64 = field(default_factory=zero)
    size: Float64 = field(default_factory=zero)

    @classmethod
    def constant(cls, array: Float64) -> Combination:
        """Return a constant function."""
        if array.size > FEW_NUMBERS:
            return cls((), array, np.asarray(max(array.max(), -array.min())))
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
    def factored(self) -> tuple[Float64, Combination]:
        """A factor and the rest, so that functions of other scales have the same rest."""
        numbers = [c for c, _ in self.terms]
        if not numbers or numbers[0].size != 1 or not numbers[0].all():
            return np.ones(()), self
        factor = numbers[0].reshape(())
        return factor, self.times(1 / factor)

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
        """A number that is equal for functions that differ in numbers, or in the number of sums."""
        forms = [atom.form for _, atom in self.terms if atom.kind not in ("sum", BORDER)]
        sums = {atom.form for _, atom in self.terms if atom.kind == "sum"}
        return hash(tuple(sorted([*forms, *sums])))

    @property
    def leaves(self) -> frozenset[int]:
        """The serial numbers of the atoms without arguments that it is computed from."""
        return frozenset[int]().union(*(atom.leaves for _, atom in self.terms))

    @property
    def serials(self) -> list[int]:
        """The serial numbers of its atoms."""
        return sorted(atom.serial for _, atom in self.terms)

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal functions."""
        terms = ((id(atom), _bytes(coefficient)) for coefficient, atom in self.terms)
        return tuple(sorted(terms)), _bytes(self.offset)


class Atoms:
    """Creates atoms; equal atoms are one object. Their values and errors have conditions."""

    def __init__(self) -> None:
        self.conditions: set[Condition] = set()
        self._known: dict[Hashable, Atom] = {}

    def make(
        self,
        kind: str,
        attributes: Hashable,
        arguments: Sequence[Combination],
        ends: tuple[Float64, Float64],
        numbers: Sequence[Float64] = (),
        slope: float = 1.0,
        between: Between | None = None,
    ) -> Atom:
        """Return the atom with these attributes and arguments."""
        digests = tuple(map(_bytes, numbers))
        key = (kind, attributes, tuple(argument.key for argument in arguments), digests)
        if key not in self._known:
            form = hash((kind, attributes, tuple(argument.form for argument in arguments)))
            leaves = frozenset[int]().union(*(argument.leaves for argument in arguments))
            if not arguments and kind != ONE:
                leaves = frozenset([len(self._known)])
            self._known[key] = Atom(
                kind, attributes, tuple(arguments), *ends, form, tuple(numbers), slope,
                between, leaves, len(self._known),
            )  # fmt: skip
        return self._known[key]

    def multiple(
        self,
        kind: str,
        arguments: Sequence[Combination],
        factor: Float64,
        ends: tuple[Float64, Float64],
    ) -> Combination:
        """Return a multiple of an atom that has these bounds."""
        low, high = (end / factor for end in ends)
        limits = np.minimum(low, high), np.maximum(low, high)
        return Combination.of(self.make(kind, None, arguments, limits)).times(factor)

    def carried(
        self,
        atom: Atom,
        moved: Atom,
        change: Callable[[Float64], Float64],
        again: Callable[[Any], Any],
    ) -> Combination:
        """Return the function of a moved atom; ``again`` moves quantities as ``change`` does
        arrays.
        """
        return Combination.of(moved)


def _bytes(array: Float64) -> Hashable:
    whole = np.ascontiguousarray(array)
    data = whole.tobytes()
    return whole.shape, data if whole.nbytes < 1 << 12 else hashlib.sha256(data).digest()


class AxisPart(NamedTuple):
    """Interval of a part along an axis, which is counted from the last."""

    axis: int
    start: int
    size: int
    total: int

    def of(self, array: Float64) -> Float64:
        """Extend an array from the part to the whole, with zeros."""
        wide = spread(array, self.size, self.axis)
        edges = [(0, 0)] * wide.ndim
        edges[self.axis] = self.start, self.total - self.start - self.size
        return np.pad(wide, edges)

    def part(self, array: Float64) -> Float64:
        """Return the part of an array that broadcasts to the whole."""
        if array.ndim < -self.axis or array.shape[self.axis] == 1:
            return array
        return np.take(array, range(self.start, self.start + self.size), self.axis)


def places(sizes: Sequence[int], axis: int) -> list[AxisPart]:
    """Return the intervals of tensors along an axis, from their sizes."""
    starts = np.cumsum([0, *sizes]).tolist()
    return [
        AxisPart(axis, start, size, sum(sizes)) for start, size in zip(starts, sizes, strict=False)
    ]


def spread(array: Float64, size: int, axis: int) -> Float64:
    """Broadcast an array to its full size along an axis, which is counted from the last."""
    wide = array.reshape(*(1,) * (-axis - array.ndim), *array.shape)
    shape = list(wide.shape)
    shape[axis] = size
    return np.broadcast_to(wide, shape)


def placed(atoms: Atoms, parts: Sequence[tuple[AxisPart, Combination]]) -> Combination:
    """Return the function of a concatenation from the functions of its tensors."""
    whole = _whole_of(parts)
    meant = Combination() if whole is None else whole
    for place, function in parts:
        offset = Combination((), place.of(function.offset), place.of(function.size))
        meant = meant.plus(offset)
        for coefficient, atom in function.terms if whole is None else ():
            ends = place.of(atom.low), place.of(atom.high)
            each = atoms.make("placed", place, (Combination.of(atom),), ends)
            term = coefficient if coefficient.size == 1 else place.of(coefficient)
            meant = meant.plus(Combination(((term, each),)))
    return meant


def _whole_of(parts: Sequence[tuple[AxisPart, Combination]]) -> Combination | None:
    """Return the atom whose parts are concatenated again; None if there is none."""
    wholes = []
    for place, function in parts:
        for _, atom in function.terms:
            if len(function.terms) == 1 and (atom.kind, atom.attributes) == (
                "moved",
                ("part", place),
            ):
                wholes.append(atom.arguments[0].terms[0][1])
    if len(wholes) != len(parts) or any(atom is not wholes[0] for atom in wholes):
        return None
    factor = ZERO
    for place, function in parts:
        factor = factor + place.of(function.terms[0][0])
    return Combination(((factor, wholes[0]),))


def part_of(atoms: Atoms, place: AxisPart, codes: Combination) -> Combination:
    """Return one part of concatenated codes."""
    ((_, atom),) = codes.terms
    ends = place.part(atom.low), place.part(atom.high)
    return Combination.of(atoms.make("moved", ("part", place), (codes,), ends))

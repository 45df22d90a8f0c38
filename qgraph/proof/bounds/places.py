"""Roundings at other places in the two models: of parts of a tensor, or of moved elements.

Each atom of a part of concatenated tensors is an atom of the whole that is 0 outside of the part::

    whole = placed(part one) + placed(part two)

So the rounding of concatenated tensors is also a rounding of each of them.

A quantizer can be exchanged with an operator that moves elements or takes maxima::

    reference  f --[MaxPool]--> round --> codes
    candidate  g --> round --[MaxPool]--> codes

So moved codes equal the rounding of moved data. Both models are compared on the moved codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import ZERO
from qgraph.proof.bounds.combination import Atom, Atoms, Combination
from qgraph.proof.bounds.quantity import Pending, Quantity
from qgraph.proof.bounds.roundings import RoundedData, rounding_of
from qgraph.reasons import Undecidable

_PLACED, _PART = "placed", "part"


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
            each = atoms.make(_PLACED, place, (Combination.of(atom),), ends)
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
                (_PART, place),
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
    return Combination.of(atoms.make("moved", (_PART, place), (codes,), ends))


def parts_of(atoms: Atoms, data: RoundedData) -> list[tuple[AxisPart, RoundedData]]:
    """Return the roundings of the parts of a concatenation; empty if the data is not one."""
    before, event = data.event.before, data.event
    beside = sorted(_places(before.meant))
    if len(beside) < 2 or event.mantissa is not None:
        return []
    if beside != places([place.size for place in beside], beside[0].axis):
        return []
    parts = []
    for place in beside:
        own = Quantity(
            _part(atoms, place, before.meant),
            place.part(before.low),
            place.part(before.high),
            place.part(before.absolute),
            place.part(before.relative),
            None if before.unit is None else place.part(before.unit),
        )
        limits = place.part(data.low), place.part(data.high)
        rounding = rounding_of(Pending(replace(event, before=own), *limits, ZERO))
        parts.append((place, replace(rounding, origin=data)))
    return parts


def _places(function: Combination) -> set[AxisPart]:
    """Return the intervals of the parts of a function; empty if a term belongs to no part."""
    found: set[AxisPart] = set()
    for _, atom in function.terms:
        own = {atom.attributes} if atom.kind == _PLACED else set()
        inner = _places(atom.arguments[0]) if atom.kind == "clip" else own
        if not inner:
            return set()
        found |= {place for place in inner if isinstance(place, AxisPart)}
    return found


def _part(atoms: Atoms, place: AxisPart, function: Combination) -> Combination:
    """Return the part of a function on an interval."""
    terms = []
    for coefficient, atom in function.terms:
        if atom.kind == "clip":
            ends = place.part(atom.low), place.part(atom.high)
            numbers = [place.part(number) for number in atom.numbers]
            inner = _part(atoms, place, atom.arguments[0])
            atom = atoms.make("clip", None, (inner,), ends, numbers)
        elif atom.attributes == place:
            ((_, atom),) = atom.arguments[0].terms
        else:
            continue
        terms.append((place.part(coefficient), atom))
    return Combination(tuple(terms), place.part(function.offset), place.part(function.size))


@dataclass(eq=False)
class _Root:
    """A rounding, or the rounding of moved data that equals its moved codes.

    ``first`` is the rounding in the model; ``moved`` are the functions for the moved codes, by
    their atoms.
    """

    data: RoundedData
    first: Atom
    moved: dict[Atom, Combination] = field(default_factory=dict)


Found = Callable[[Atom, RoundedData], Combination | None]
"""Returns the codes that both models have for a rounding of moved data; None if there are none
yet."""


class MovingAtoms(Atoms):
    """Creates atoms, follows codes through movements, and calls ``found`` with moved roundings."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found
        self._roots: dict[Atom, _Root] = {}

    def follow(self, atom: Atom, data: RoundedData) -> None:
        """Start to follow the codes of a rounding."""
        self._roots[atom] = _Root(data, atom)

    def leave(self) -> None:
        """Stop following codes."""
        self._roots.clear()

    def carried(
        self,
        atom: Atom,
        moved: Atom,
        change: Callable[[Float64], Float64],
        again: Callable[[Any], Any],
    ) -> Combination:
        """Return moved elements of an atom; moved codes of both models become common codes."""
        root = self._roots.get(atom)
        if root is None or moved in self._roots:
            return Combination.of(moved)
        if moved not in root.moved:
            data = _moved(root.data, change, again, moved)
            if data is None:
                return Combination.of(moved)
            codes = self.found(root.first, data)
            root.moved[moved] = Combination.of(moved) if codes is None else codes
            if codes is None:
                self._roots[moved] = _Root(data, root.first)
        return root.moved[moved]


def _moved(
    data: RoundedData,
    change: Callable[[Float64], Float64],
    again: Callable[[Any], Any],
    moved: Atom,
) -> RoundedData | None:
    """Return the rounding of moved data; None if it may give other codes than the moved codes."""
    try:
        event = replace(data.event, before=again(data.event.before))
        low, high = change(data.low), change(data.high)
    except Undecidable:
        return None
    # zeros may be inserted, which have to be rounded to 0
    if event.kind == "Sign" or (low > 0).any() or (high < 0).any():
        return None
    rounding = rounding_of(Pending(event, low, high, ZERO))
    return replace(rounding, codes=Combination.of(moved), origin=data.origin or data)

"""Quantities after operators that move elements.

Coefficients, ranges and errors move with the elements; arrays that are equal for all elements do
not change. A function of moved data has moved atoms. If coefficients differ and cannot be moved,
the moved function is a single atom, with one range and one error for all elements.

A quantizer can be exchanged with an operator that moves elements or takes maxima::

    reference  f --[MaxPool]--> round --> codes
    candidate  g --> round --[MaxPool]--> codes

So moved codes equal the rounding of moved data. Both models are compared on the moved codes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import ZERO
from qgraph.ops.sums_of_products import RIGHT, pointwise_taps
from qgraph.proof.bounds.combination import Atom, Atoms, Combination
from qgraph.proof.bounds.quantity import Pending, Quantity, of_constant
from qgraph.proof.bounds.roundings import RoundedData, rounding_of
from qgraph.reasons import AT_RUN_TIME, Undecidable
from qgraph.records import dataclass, field, replace

_MATRIX_PRODUCT = RIGHT.geometry, RIGHT.trailing

Change = Callable[[Float64], Float64]
"""Moves an array that broadcasts to the data; raises :class:`Undecidable` if it cannot."""

Shape = tuple[Any, ...]
"""Sizes, and texts for open ones."""


@dataclass(frozen=True)
class ElementMove:
    """A movement of the elements of data, possibly with inserted zeros.

    Attributes:
        atoms: makes the atoms.
        attributes: describe the movement.
        change: moves an array that broadcasts to the data.
        has_zeros: whether zeros are inserted.
        again: moves another quantity in the same way; None for this movement itself.
    """

    atoms: Atoms
    attributes: Hashable
    change: Change
    has_zeros: bool = False
    again: Callable[[Quantity], Quantity] | None = None

    def of(self, x: Quantity) -> Quantity:
        """Return a quantity with all its arrays moved."""
        change, again = self.change, self.again or self.of
        if x.value is not None:
            shape = x.value.shape
            parts = [np.broadcast_to(part, shape) for part in (x.value, x.meant.offset)]
            return of_constant(change(parts[0]), change(parts[1]), _factors(x, shape, change))
        try:
            meant = Combination((), change(x.meant.offset), change(x.meant.size))
            for c, atom in x.meant.terms:
                moved = self.atoms.carried(atom, self._moved(atom), change, again)
                meant = meant.plus(moved.times(change(c)))
        except Undecidable:
            return self.as_one(x)
        absolute, relative = (_widest(np.max, change, each) for each in (x.absolute, x.relative))
        low, high = _widest(np.min, change, x.low), _widest(np.max, change, x.high)
        unit = None if x.unit is None else _widest(np.min, change, x.unit)
        ends, own = self._with_zeros(low, high), x.overflow
        return Quantity(meant, *ends, absolute, relative, unit, overflow=own)

    def as_one(self, x: Quantity) -> Quantity:
        """Return moved data as a single atom, with one range and one error."""
        ends = self._with_zeros(np.asarray(x.low.min()), np.asarray(x.high.max()))
        atom = self.atoms.make("moved as one", self.attributes, (x.meant,), ends)
        unit = None if x.unit is None else np.asarray(x.unit.min())
        error = np.asarray(np.max(x.error))
        return Quantity(Combination.of(atom), *ends, error, unit=unit, overflow=x.overflow)

    def _moved(self, atom: Atom) -> Atom:
        """Return an atom of moved elements; two movements of one kind are composed.

        Limits are written after movements, so that both orders of a Relu give the same atom.
        """
        attributes, is_product = self.attributes, atom.attributes == _MATRIX_PRODUCT
        limits = _widest(np.min, self.change, atom.low), _widest(np.max, self.change, atom.high)
        match atom.kind, atom.attributes, attributes:
            case "clip", _, _ if not self.has_zeros and all(n.size == 1 for n in atom.numbers):
                numbers = [number.reshape(()) for number in atom.numbers]
                return self.atoms.make("clip", None, (self._again(atom),), limits, numbers)
            # Between two movements, elements may be broadcast to a larger shape.
            case "moved", ("Reshape", first, last), ("Reshape", before, after) if last == before:
                ((_, inner),) = atom.arguments[0].terms
                both = "Reshape", first, after
                return inner if first == after else self._once(inner, limits, both)
            case "moved", ("Transpose", tuple() as p), ("Transpose", tuple() as q):
                ((_, inner),) = atom.arguments[0].terms
                if len(p) == len(q):
                    axes = tuple(p[axis] for axis in q)
                    is_whole = axes == tuple(range(len(axes)))
                    return inner if is_whole else self._once(inner, limits, ("Transpose", axes))
            case "sum", _, ("Transpose", order) if is_product and (layout := pointwise_taps(order)):
                # rows of a matrix product, transposed to channels first, are a 1 x 1 Conv
                places, key = (1,) * layout.trailing, (layout.geometry, layout.trailing)
                numbers = [each.reshape(*each.shape, *places) for each in atom.numbers]
                return self.atoms.make("sum", key, (self._again(atom),), limits, numbers)
            case "sum", _, ("Reshape", tuple() as before, tuple() as after) if (
                count := _dropped_ones(before, after)
            ) and atom.attributes == _pointwise(count):
                # a 1 x 1 Conv of one place is a matrix product
                _, taps, *ones = atom.numbers[0].shape
                (data,), first = atom.arguments, after[0]
                whole = Quantity(data, *data.range)
                moved = reshaped(self.atoms, whole, (first, taps, *ones), (first, taps)).meant
                numbers = [each.reshape(each.shape[:-count]) for each in atom.numbers]
                return self.atoms.make("sum", _MATRIX_PRODUCT, (moved,), limits, numbers)
            case "sum", _, ("Reshape", tuple() as before, tuple() as after) if is_product:
                product = self._reshaped_product(atom, before, after, limits)
                return product or self._once(atom, limits, attributes)
        return self._once(atom, limits, attributes)

    def _again(self, atom: Atom) -> Combination:
        data = atom.arguments[0]
        return (self.again or self.of)(Quantity(data, *data.range)).meant

    def _reshaped_product(
        self, atom: Atom, before: Shape, after: Shape, limits: tuple[Float64, Float64]
    ) -> Atom | None:
        """Return reshaped rows of a matrix product, as a product of reshaped data.

        If the last axis is kept, the data is reshaped instead. If the data was reshaped already,
        both Reshapes become one Reshape of the product. None in other cases. ``before`` and
        ``after`` are the shapes of its rows.
        """
        data, (weights, _) = atom.arguments[0], atom.numbers
        rows, taps = weights.shape
        if _kept_last(before, after):
            whole = Quantity(data, *data.range)
            moved = reshaped(self.atoms, whole, (*before[:-1], taps), (*after[:-1], taps)).meant
            return self.atoms.make("sum", atom.attributes, (moved,), limits, atom.numbers)
        if data.key != Combination.of(data.terms[0][1]).key:
            return None
        inner = data.terms[0][1]
        match inner.kind, inner.attributes:
            case "moved", ("Reshape", (*first, last), (*middle, _)):
                if last != taps or tuple(middle) != before[:-1]:
                    return None
                ends, key = (atom.low, atom.high), atom.attributes
                own = self.atoms.make("sum", key, inner.arguments, ends, atom.numbers)
                shape = (*first, rows)
                return own if shape == after else self._once(own, limits, ("Reshape", shape, after))
        return None

    def _once(self, atom: Atom, limits: tuple[Float64, Float64], attributes: Hashable) -> Atom:
        ends = self._with_zeros(*limits)
        return self.atoms.make("moved", attributes, (Combination.of(atom),), ends)

    def _with_zeros(self, low: Float64, high: Float64) -> tuple[Float64, Float64]:
        return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if self.has_zeros else (low, high)


def mapped(weights: Quantity, change: Callable[[Float64], Float64]) -> Quantity:
    """Return a constant with its axes changed."""
    shape = weights.numbers.shape

    def changed(array: Float64) -> Float64:
        return change(np.broadcast_to(array, shape))

    factors = None
    if weights.factors is not None:
        factors = changed(weights.factors[0]), changed(weights.factors[1])
    return of_constant(changed(weights.numbers), changed(weights.meant.offset), factors)


def reshaped(atoms: Atoms, x: Quantity, before: Shape, after: Shape) -> Quantity:
    """Return a quantity in another shape."""
    if before == after:
        return x

    def change(array: Float64) -> Float64:
        return array.reshape(_known(after)) if x.is_constant else _reshaped(array, before, after)

    return ElementMove(atoms, ("Reshape", before, after), change).of(x)


def _widest(extreme: Callable[[Float64], Any], change: Change, array: Float64) -> Float64:
    """Return a changed array, or its extreme element if it cannot be changed."""
    try:
        return change(array)
    except Undecidable:
        return np.asarray(extreme(array))


def _factors(x: Quantity, shape: tuple[int, ...], change: Change) -> tuple[Float64, Array] | None:
    if x.factors is None:
        return None
    scales, codes = (change(np.broadcast_to(part, shape)) for part in x.factors)
    return scales, codes


def _reshaped(array: Float64, before: Shape, after: Shape) -> Float64:
    """Return an array in the new shape of the data; it is equal for all samples of a batch."""
    if array.size == 1:
        return array.reshape(())
    wide = widened(array, len(before))
    first = next(axis for axis, size in enumerate(wide.shape) if size > 1)
    if first >= len(before) - _kept_last(before, after):
        return wide.reshape(wide.shape[first:])
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    kept = min(kept, first)
    spread = np.broadcast_to(wide[(0,) * kept], _known(before[kept:]))
    return spread.reshape(_known(after[kept:]))


def _dropped_ones(before: Shape, after: Shape) -> int:
    """Return how many axes of one element a Reshape to a matrix drops behind its columns."""
    is_kept = len(after) == len(("rows", "columns")) and before[: len(after)] == after
    ones = before[len(after) :]
    return len(ones) if is_kept and set(ones) == {1} else 0


def _pointwise(count: int) -> Hashable:
    """Return the attributes of sums of a Conv of one place along some axes."""
    layout = pointwise_taps((0, count + 1, *range(1, count + 1)))
    return None if layout is None else (layout.geometry, layout.trailing)


def _known(shape: Shape) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in shape):
        raise Undecidable(AT_RUN_TIME("a shape is not known"))
    return shape


def _kept_last(before: Shape, after: Shape) -> int:
    kept = 0
    for size, other in zip(before[::-1], after[::-1], strict=False):
        if size != other or not isinstance(size, int):
            break
        kept += 1
    return kept


def widened(array: Float64, rank: int) -> Float64:
    """Return an array with as many axes as the data."""
    return array.reshape(*(1,) * (rank - array.ndim), *array.shape)


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

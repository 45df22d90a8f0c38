"""Compare codes if one model moves elements after rounding, and the other before it.

A quantizer can be exchanged with an operator that moves elements or takes maxima::

    reference  f --[MaxPool]--> round --> codes
    candidate  g --> round --[MaxPool]--> codes

So moved codes equal the rounding of moved data. Both models are compared on the moved codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from qgraph.numerics import Float64
from qgraph.ops.approximation import ZERO
from qgraph.proof.bounds.combination import Atom, Atoms, Combination
from qgraph.proof.bounds.events import Pending
from qgraph.proof.bounds.roundings import RoundedData, rounding_of
from qgraph.reasons import Undecidable


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
    """Creates atoms, and follows codes through movements of elements.

    ``found`` is called with each rounding of moved data.
    """

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

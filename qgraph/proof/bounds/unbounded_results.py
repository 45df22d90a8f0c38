"""Results of the reference without a bound, at which segments begin.

For example, the result of an LSTM has no bound. If the candidate computes an equal result, both
models get one atom for it. If not, the segments that follow have no bound either, for the same
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.evaluate import entered
from qgraph.proof.bounds.quantity import Quantity
from qgraph.reasons import OVERFLOW, ExplainedReason


@dataclass(frozen=True, eq=False)
class _Result:
    """A result of the reference without a bound, and the reason.

    ``sources`` are numbers of the atoms without arguments that it is computed from.
    """

    value: ir.Value
    quantity: Quantity
    sources: frozenset[int]
    reason: ExplainedReason


class UnboundedResults:
    """The results of the reference without a bound."""

    def __init__(self, atoms: Atoms) -> None:
        self._atoms = atoms
        self._results: dict[int, _Result] = {}

    def add(self, value: ir.Value, sources: frozenset[int], reason: ExplainedReason) -> Quantity:
        """Register a result and return its quantity; see :class:`_Result`."""
        quantity = entered(self._atoms, value, ("opaque", str(value.name)))
        ((_, atom),) = quantity.meant.terms
        self._results[atom.serial] = _Result(value, quantity, self._behind(sources), reason)
        return quantity

    def equal_to(self, value: ir.Value, equal: Callable[[str, str], bool]) -> Quantity | None:
        """Return the quantity of a result that equals a value of the candidate, by their names."""
        for result in self._results.values():
            if _operator(result.value) == _operator(value) and equal(
                str(result.value.name), str(value.name)
            ):
                return result.quantity
        return None

    def reason(self, ours: Combination, theirs: Combination) -> ExplainedReason | None:
        """Return why two functions cannot be compared because of results without a bound.

        Returns None if neither depends on such results, or both depend on equal ones.
        """
        are_alike = self._behind(ours.leaves) == self._behind(theirs.leaves)
        return self.first(ours, theirs) if are_alike else None

    def first(self, ours: Combination, theirs: Combination) -> ExplainedReason | None:
        """Return why the first result has no bound from which only the reference is computed."""
        own = [self._results[n] for n in sorted(ours.leaves - theirs.leaves) if n in self._results]
        return own[0].reason if own else None

    def _behind(self, leaves: frozenset[int]) -> frozenset[int]:
        """Replace the serial numbers of unbounded results by those of their sources."""
        parts = (self._results[n].sources if n in self._results else {n} for n in leaves)
        return frozenset[int]().union(*parts)


def overflow_of(*functions: Combination) -> ExplainedReason | None:
    """Return which sum wraps around, if any of these functions is a multiple of one."""
    atoms = (atom for function in functions for _, atom in function.terms)
    return next((OVERFLOW(str(a.attributes)) for a in atoms if a.kind == "wrapped"), None)


def _operator(value: ir.Value) -> str:
    node = value.producer()
    return "" if node is None else node.op_type

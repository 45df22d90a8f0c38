"""Which values of two models are equal if some claims hold, and no other one.

A matching takes every claim for granted, so that later differences are found too. What follows from
the claims that were proved is less, and found here: classes start from the forms of the models, and
a claim joins its values only once its entries are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qgraph.matching.match import Matching, Pair


@dataclass(frozen=True)
class Fact:
    """Two values that are equal if all entries are."""

    values: Pair
    entries: Sequence[Pair] = ()


class Closure:
    """Equal values of two models.

    Args:
        matching: of the models; its claims are not taken over.
        facts: what holds.
    """

    def __init__(self, matching: Matching, facts: Iterable[Fact]) -> None:
        self._classes = matching.without_claims()
        self._pending = [*facts, *(Fact(*pairs) for pairs in matching.runs_graphs)]
        self._settle()

    def equal(self, pair: Pair) -> bool:
        """Return whether it follows that two values are equal."""
        return self._classes.equal(*pair)

    def all_equal(self, pairs: Iterable[Pair]) -> bool:
        """Return whether it follows that the values of each pair are equal."""
        return all(map(self.equal, pairs))

    def _settle(self) -> None:
        """Join the values of all facts whose entries are equal, until nothing more follows."""
        before = -1
        while len(self._pending) != before:
            before = len(self._pending)
            waiting = []
            for fact in self._pending:
                if self.all_equal(fact.entries):
                    self._classes.merge(fact.values)
                else:
                    waiting.append(fact)
            self._pending = waiting

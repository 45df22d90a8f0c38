"""Deduce equal and corresponding values of two models from some facts alone.

``Closure`` decides which values are equal if only some claims hold. ``Context`` decides whether
both models are the same function of values that differ: the reference is C[u], the candidate is
C[v], and u and v are the only difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qgraph.graph.interface import Pair
from qgraph.proof.matching.match import Matching

_MOST_PAIRS = 200_000


@dataclass(frozen=True)
class Implication:
    """Two values that are equal if all pairs of entries are equal."""

    values: Pair
    entries: Sequence[Pair] = ()


class Closure:
    """The equality of values that follows by congruence from facts alone, and not from claims."""

    def __init__(self, matching: Matching, facts: Iterable[Implication]) -> None:
        self._classes = matching.without_claims()
        self._pending = [*facts, *(Implication(*pairs) for pairs in matching.runs_graphs)]
        self._conclude()

    def assume(self, pair: Pair) -> None:
        """Add that two values are equal to the facts."""
        self._classes.merge(pair)
        self._conclude()

    def _conclude(self) -> None:
        before = -1
        while len(self._pending) != before:  # merge facts until nothing more follows
            before = len(self._pending)
            waiting = []
            for fact in self._pending:
                if self.all_equal(fact.entries):
                    self._classes.merge(fact.values)
                else:
                    waiting.append(fact)
            self._pending = waiting

    def equal(self, pair: Pair) -> bool:
        """Return whether two values are equal if the facts hold."""
        return self._classes.equal(pair)

    def all_equal(self, pairs: Iterable[Pair]) -> bool:
        """Return whether the values of each pair are equal if the facts hold."""
        return all(map(self.equal, pairs))


class Ways:
    """The ways in which two values of two models may correspond.

    Two values correspond if they are proved equal, or if equal operators compute them from
    corresponding values.
    """

    def __init__(self, matching: Matching, closure: Closure, proved: Sequence[Implication]) -> None:
        self._matching = matching
        self._closure = closure
        self._proved: dict[Pair, list[Implication]] = {}
        for fact in proved:
            self._proved.setdefault(fact.values, []).append(fact)
        self._known: dict[Pair, list[list[Pair]]] = {}

    def of(self, pair: Pair) -> list[list[Pair]]:
        """Return lists of pairs; two values correspond if all pairs of one list do."""
        if pair not in self._known:
            claimed = [list(fact.entries) for fact in self._proved.get(pair, ())]
            equal = self._closure.equal(pair)
            self._known[pair] = [[]] if equal else claimed + self._matching.ways(pair)
        return self._known[pair]


class Context:
    """The correspondence of values of two models that differ in some pairs of values only.

    Unlike equality, this is not transitive. ``differing`` pairs correspond although they differ.
    """

    def __init__(self, ways: Ways, differing: Iterable[Pair]) -> None:
        self._ways = ways
        self._corresponds: dict[Pair, bool] = dict.fromkeys(differing, True)

    def holds(self, pair: Pair) -> bool:
        """Return whether two values correspond."""
        stack = [pair]
        while stack:
            top = stack[-1]
            if top not in self._corresponds:
                if len(self._corresponds) > _MOST_PAIRS:
                    return False
                ways = self._ways.of(top)
                undecided = [p for way in ways for p in way if p not in self._corresponds]
                if undecided:
                    stack += undecided
                    continue
                self._corresponds[top] = any(all(self._corresponds[p] for p in w) for w in ways)
            stack.pop()
        return self._corresponds[pair]

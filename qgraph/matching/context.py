"""Whether two models are the same function of two values that may differ.

If the reference is C[u] and the candidate C[v], with one context C, then u and v are all in which
they differ: nothing else can make up for it. Values correspond here if they are equal by what was
proved, if they are such a pair, or if one operator makes them of values that correspond. Unlike
equality that is not transitive: it does not follow that u corresponds to what equals v elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qgraph.matching.closure import Closure, Fact
from qgraph.matching.match import Matching, Pair

_MOST_PAIRS = 200_000


class Context:
    """Corresponding values of two models.

    Args:
        matching: of the models.
        closure: what is equal by what was proved.
        proved: the claims that were proved.
        differing: pairs that are let correspond, though they differ.
    """

    def __init__(
        self,
        matching: Matching,
        closure: Closure,
        proved: Sequence[Fact],
        differing: Iterable[Pair],
    ) -> None:
        self._matching = matching
        self._closure = closure
        self._proved: dict[Pair, list[Fact]] = {}
        for fact in proved:
            self._proved.setdefault(fact.values, []).append(fact)
        self._found: dict[Pair, bool] = dict.fromkeys(differing, True)

    def holds(self, pair: Pair) -> bool:
        """Return whether two values correspond."""
        stack = [pair]
        while stack:
            top = stack[-1]
            if top not in self._found:
                if len(self._found) > _MOST_PAIRS:
                    return False
                ways = self._ways(top)
                open_ = [p for way in ways for p in way if p not in self._found]
                if open_:
                    stack += open_
                    continue
                self._found[top] = any(all(self._found[p] for p in way) for way in ways)
            stack.pop()
        return self._found[pair]

    def _ways(self, pair: Pair) -> list[list[Pair]]:
        if self._closure.equal(pair):
            return [[]]
        claimed = [list(fact.entries) for fact in self._proved.get(pair, ())]
        return claimed + self._matching.ways(pair)

"""Conclusions from facts, for classes of numbered values."""

from __future__ import annotations

import random
from typing import Any

import pytest

from qgraph.proof.bounds.closure import Closure, Implication
from qgraph.proof.matching.classes import Congruence

Numbers = tuple[int, int]


class Values:
    """Classes of numbered values, some of which are functions of others."""

    def __init__(self, count: int) -> None:
        self.compared = 0
        self._congruence = Congruence(lambda label: False)
        self._values = [self._congruence.new() for _ in range(count)]
        for number in range(count):
            operands = self._values[number], self._values[(7 * number + 1) % count]
            result = self._congruence.apply(number % 3, operands)
            self._congruence.merge(result, self._values[(5 * number + 2) % count])

    def absorbed(self) -> list[int]:
        return self._congruence.absorbed

    def classes(self, pair: Numbers) -> Numbers:
        self.compared += 1
        ours, theirs = (self._congruence.find(self._values[number]) for number in pair)
        return ours, theirs

    def equal(self, pair: Numbers) -> bool:
        ours, theirs = self.classes(pair)
        return ours == theirs

    def merge(self, pair: Numbers) -> None:
        self._congruence.merge(*self.classes(pair))


class Matching:
    """Stands in for the matching of two models."""

    runs_graphs = ()

    def __init__(self, count: int) -> None:
        self.values = Values(count)

    def without_claims(self) -> Values:
        return self.values


def closure(count: int, facts: list[Implication]) -> tuple[Any, Values]:
    matching: Any = Matching(count)
    return Closure(matching, facts), matching.values


def concluded(values: Values, facts: list[Implication]) -> None:
    """Merge what follows, by going through all facts until nothing changes."""
    before = -1
    while before != len(values.absorbed()):
        before = len(values.absorbed())
        for fact in facts:
            if all(map(values.equal, fact.entries)):
                values.merge(fact.values)


@pytest.mark.parametrize("seed", range(40))
def test_everything_that_follows_is_concluded(seed):
    chosen = random.Random(seed)
    count = chosen.randint(30, 60)

    def pair() -> Any:
        return chosen.randrange(count), chosen.randrange(count)

    facts = [
        Implication(pair(), [pair() for _ in range(chosen.randint(1, 3))])
        for _ in range(chosen.randint(1, 60))
    ]
    ours, _ = closure(count, facts)
    expected = Values(count)
    concluded(expected, facts)
    for _ in range(8):
        assumed = pair()
        ours.assume(assumed)
        expected.merge(assumed)
        concluded(expected, facts)
        for one in range(count):
            assert ours.equal((0, one)) == expected.equal((0, one))
            assert ours.equal((one, count - 1)) == expected.equal((one, count - 1))


def test_each_assumption_visits_only_facts_that_wait_for_it():
    count = 300
    values = [(3 * number, 3 * number + 1) for number in range(count)]
    facts: Any = [Implication(pair, [pair]) for pair in values]  # each waits for its own pair
    ours, classes = closure(3 * count, facts)
    classes.compared = 0
    for pair in values:
        ours.assume(pair)
    assert classes.compared < 100 * count

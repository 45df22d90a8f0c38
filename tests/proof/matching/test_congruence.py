"""Equal operators on equal operands have equal results, whenever that becomes known."""

from __future__ import annotations

import itertools

import numpy as np

from qgraph.proof.matching.classes import Congruence


def classes() -> Congruence:
    return Congruence(lambda label: label == "Add")


def test_equal_applications_share_a_class():
    known = classes()
    a, b = known.new(), known.new()
    assert known.apply("Sub", [a, b]) == known.apply("Sub", [a, b])
    assert known.apply("Sub", [a, b]) != known.apply("Sub", [b, a])
    assert known.apply("Add", [a, b]) == known.apply("Add", [b, a])


def test_merging_operands_merges_results_all_the_way():
    known = classes()
    a, b = known.new(), known.new()
    tops = []
    for start in (a, b):
        top = start
        for _ in range(50):
            top = known.apply("Exp", [known.apply("Add", [top, start])])
        tops.append(top)
    assert known.find(tops[0]) != known.find(tops[1])
    known.merge(a, b)
    assert known.find(tops[0]) == known.find(tops[1])


def test_random_merges_agree_with_a_closure_by_repetition():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        known = classes()
        values = [known.new() for _ in range(4)]
        terms = []
        for _ in range(25):
            label = ("Add", "Sub", "Mul")[rng.integers(3)]
            operands = [values[i] for i in rng.integers(len(values), size=2)]
            values.append(known.apply(label, operands))
            terms.append((label, operands, values[-1]))
        pairs = [rng.integers(len(values), size=2) for _ in range(4)]
        for one, other in pairs:
            known.merge(values[one], values[other])
        group = {value: value for value in values}

        def unite(one: int, other: int, group: dict[int, int] = group) -> bool:
            old, new = group[one], group[other]
            for value, member in group.items():
                group[value] = new if member == old else member
            return old != new

        for one, other in pairs:
            unite(values[one], values[other])
        changed = True
        while changed:
            changed = False
            for (f, a, x), (g, b, y) in itertools.combinations(terms, 2):
                ours, theirs = ([group[v] for v in operands] for operands in (a, b))
                same = ours == theirs or (f == "Add" and ours == theirs[::-1])
                if f == g and same and group[x] != group[y]:
                    changed |= unite(x, y)
        for one, other in itertools.combinations(values, 2):
            assert (known.find(one) == known.find(other)) == (group[one] == group[other])

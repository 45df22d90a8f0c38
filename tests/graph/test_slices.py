"""Slices of a graph: ancestors, nodes between values, fronts and dominators."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.slices import (
    Dominators,
    ancestors,
    between,
    dominators,
    nearest_cut,
    reached,
    sources,
)

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[2] x, bool c) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
    [a] a = Neg (x)
    [b] b, unused = TwoOutputs (a, w)
    [l] l = Abs (b)
    [r] r = Mul (b, b)
    [j] j = Add (l, r)
    [i] i = If (c) <
        then_branch = p () => (float[2] u) { [in] u = If (c) <
            then_branch = pp () => (float[2] uu) { uu = Add (a, w) },
            else_branch = qq () => (float[2] o) { o = Neg (r) }> },
        else_branch = q () => (float[2] v) { v = Neg (w) }>
    [y] y = Add (j, i)
    [z] z = Neg (x)
}"""


@pytest.fixture
def values() -> dict[str, ir.Value]:
    graph = ir.from_onnx_text(TEXT).graph
    return dict(ir.convenience.create_value_mapping(graph))


def names(found: list[ir.Value] | list[ir.Node]) -> list[str]:
    return [str(each.name) for each in found]


def test_sources_are_operands_and_what_subgraphs_use_and_return(values) -> None:
    assert names(sources(values["b"])) == ["a", "w"]
    assert sorted(names(sources(values["i"]))) == ["a", "c", "r", "u", "v", "w"]
    assert sources(values["x"]) == []


def test_ancestors_come_nearest_first(values) -> None:
    assert names(ancestors([values["j"]])) == ["j", "l", "r", "b", "a", "w", "x"]
    assert names(ancestors([values["l"], values["z"]])) == ["l", "z", "b", "x", "a", "w"]
    inside = set(names(ancestors([values["y"]])))
    assert inside == {"y", "j", "i", "l", "r", "c", "a", "w", "u", "v", "b", "x", "uu", "o"}


def test_a_walk_stops_when_enough_values_are_reached(values) -> None:
    ways = reached([values["y"]], sources, most=3)
    assert names(list(ways)) == ["y", "j", "i"]
    assert [names(following) for following in ways.values()] == [["j", "i"], [], []]


def test_a_walk_may_follow_users(values) -> None:
    def users(value: ir.Value) -> list[ir.Value]:
        return [output for node in value.consumers() for output in node.outputs]

    assert set(names(ancestors([values["b"]], users))) == {"b", "l", "r", "j", "o", "y"}


def test_between_returns_operands_first(values) -> None:
    found = names(between(values["j"], [values["b"]]) or [])
    assert sorted(found[:2]) == ["l", "r"]
    assert found[2:] == ["j"]
    assert names(between(values["z"], [values["x"]]) or []) == ["z"]


def test_nothing_lies_between_a_value_and_itself(values) -> None:
    assert between(values["b"], [values["b"]]) == []


def test_between_refuses_what_other_values_take_part_in(values) -> None:
    assert between(values["b"], [values["a"]]) is None
    assert names(between(values["b"], [values["a"], values["w"]]) or []) == ["b"]


def test_the_front_holds_the_nearest_values_of_a_kind(values) -> None:
    squares = nearest_cut(values["y"], lambda value: value.name in ("l", "r", "a", "c", "w"))
    assert sorted(names(squares or [])) == ["a", "c", "l", "r", "w"]
    assert nearest_cut(values["j"], lambda value: value.name == "l") is None
    assert nearest_cut(values["l"], lambda value: value.name in ("l", "b")) == [values["b"]]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("y", ["y", "a", "x"]), ("b", ["b", "a", "x"]), ("z", ["z"]), ("x", ["x"])],
)
def test_every_way_passes_the_dominators(start: str, expected: list[str]) -> None:
    made = {
        "y": ["b", "c"],
        "b": ["a"],
        "c": ["a", "b"],
        "a": ["x"],
        "x": [],
        "z": ["b", "w"],
        "w": [],
    }
    values = {name: ir.Value(name=name) for name in made}

    def step(value: ir.Value) -> list[ir.Value]:
        return [values[name] for name in made[str(value.name)]]

    assert names(dominators(values[start], step)) == expected


@pytest.mark.cases(fast=7, slow=13)
@pytest.mark.parametrize("seed", range(20))
def test_dominators_are_those_of_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [ir.Value(name=f"v{n}") for n in range(100)]
    following = {
        # operands are near, as in a chain of residual blocks, and a few values have none
        value: [values[n] for n in sorted({min(n + int(k), 99) for k in rng.integers(1, 5, count)})]
        for n, value in enumerate(values)
        for count in [int(rng.choice([0, 1, 2, 3], p=[0.02, 0.5, 0.4, 0.08]))]
        if n < 99
    }
    chains = Dominators(lambda value: following.get(value, []))
    for value in values:
        ways = ancestors([value], lambda value: following.get(value, []))
        flow = nx.DiGraph([("origin", each) for each in ways if not following.get(each)])
        flow.add_edges_from((one, each) for each in ways for one in following.get(each, []))
        immediate = nx.immediate_dominators(flow, "origin")
        expected = [value]
        while immediate[expected[-1]] != "origin":
            expected.append(immediate[expected[-1]])
        assert list(chains.of(value)) == expected


def test_dominators_far_behind_a_fork_count() -> None:
    first, second = ([ir.Value(name=f"{side}{n}") for n in range(200)] for side in "ab")
    end, start = ir.Value(name="end"), ir.Value(name="start")
    following = {end: [first[0], second[0]], first[-1]: [start], second[-1]: [start]}
    for side in (first, second):
        following |= {a: [b] for a, b in itertools.pairwise(side)}
    assert dominators(end, lambda value: following.get(value, [])) == [end, start]


def test_chains_that_meet_share_their_end() -> None:
    line = [ir.Value(name=f"v{n}") for n in range(5000)]
    following = {a: [b] for a, b in itertools.pairwise(line)} | {line[-1]: []}
    seen: list[ir.Value] = []

    def step(value: ir.Value) -> list[ir.Value]:
        seen.append(value)
        return following[value]

    found = Dominators(step)
    chains = [found.of(value) for value in (line[2500], line[0], line[1])]
    assert [list(chain) for chain in chains] == [line[2500:], line, line[1:]]
    assert {chain.last for chain in chains} == {line[-1]}
    assert len(seen) == len(line)

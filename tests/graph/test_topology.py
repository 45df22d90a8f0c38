"""Dependencies between nodes, as a graph of networkx."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.graph.topology import bottlenecks, cone, gates, graph_of

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
def graph() -> ir.Graph:
    return ir.from_onnx_text(TEXT).graph


def names(nodes: object) -> list[str]:
    return [node.name for node in nodes]  # type: ignore[attr-defined]


def test_edges_are_values_in_use(graph: ir.Graph) -> None:
    edges = [
        (source.name, target.name, attributes["value"].name)
        for source, target, attributes in graph_of(graph).edges(data=True)
    ]
    assert sorted(edges) == [
        ("a", "b", "a"),
        ("a", "i", "a"),
        ("b", "l", "b"),
        ("b", "r", "b"),
        ("i", "y", "i"),
        ("j", "y", "j"),
        ("l", "j", "l"),
        ("r", "i", "r"),
        ("r", "j", "r"),
    ]


def test_nodes_inside_branches_are_no_vertices(graph: ir.Graph) -> None:
    assert names(graph_of(graph)) == ["a", "b", "l", "r", "j", "i", "y", "z"]


def test_cone_ends_at_its_leaves(graph: ir.Graph) -> None:
    picture, values = graph_of(graph), ir.convenience.create_value_mapping(graph)
    assert names(cone(picture, values["j"], [values["b"]])) == ["l", "r", "j"]
    assert names(cone(picture, values["j"], [])) == ["a", "b", "l", "r", "j"]
    assert cone(picture, values["b"], [values["b"]]) == []
    assert cone(picture, values["x"], []) == []
    assert names(cone(picture, values["i"], [values["r"]])) == ["a", "i"]


def test_bottlenecks_are_passed_by_every_path(graph: ir.Graph) -> None:
    picture = graph_of(graph)
    assert names(bottlenecks(picture, graph.node("j"))) == ["b", "a"]
    assert names(bottlenecks(picture, graph.node("y"))) == ["a"]
    assert bottlenecks(picture, graph.node("a")) == []


def test_paths_from_two_beginnings_have_no_bottleneck(graph: ir.Graph) -> None:
    graph.node("j").replace_input_with(0, graph.node("z").outputs[0])
    assert bottlenecks(graph_of(graph), graph.node("j")) == []


def test_gates_are_what_all_ways_pass():
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

    def names(start):
        chain = gates(values[start], lambda value: [values[name] for name in made[value.name]])
        return [value.name for value in chain]

    assert names("y") == ["y", "a", "x"]
    assert names("b") == ["b", "a", "x"]
    assert names("z") == ["z"]
    assert names("x") == ["x"]

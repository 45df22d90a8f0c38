"""Names must lead to the values that are meant."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import qgraph
from qgraph.errors import ModelError
from qgraph.graph.scopes import bodies, check_names, check_origins, subgraphs

MODEL = """
<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, -2}> {
    t = local.twice (x)
    y = If (c) <then_branch = a () => (float[2] p) { p = Add (t, w) },
                else_branch = b () => (float[2] q) { s = Mul (t, w) q = Neg (s) }>
}
<domain: "local", opset_import: ["": 21]> twice (v) => (r) { r = Add (v, v) }
"""


BRANCHES = ("then_branch", "else_branch")


@pytest.fixture
def model() -> ir.Model:
    return ir.from_onnx_text(MODEL)


def find(model: ir.Model, op_type: str) -> ir.Node:
    nodes = [node for body in bodies(model) for node in body if node.op_type == op_type]
    return nodes[0]


def test_a_model_with_branches_and_functions_is_sound(model: ir.Model) -> None:
    check_names(model)


def test_bodies_are_the_graph_its_subgraphs_and_functions(model: ir.Model) -> None:
    assert [body.name for body in bodies(model)] == ["g", "a", "b", "twice"]


def test_two_values_of_one_name_are_refused(model: ir.Model) -> None:
    find(model, "Mul").outputs[0].name = "q"
    with pytest.raises(ModelError, match=r"graph 'b' the name 'q' is given to two values"):
        check_names(model)


def test_an_inner_name_that_hides_an_outer_value_in_use_is_refused(model: ir.Model) -> None:
    find(model, "Mul").outputs[0].name = "w"
    with pytest.raises(ModelError, match=r"Mul .* input 'w' has the name of another value"):
        check_names(model)


def test_names_of_sibling_branches_and_of_functions_are_their_own(model: ir.Model) -> None:
    find(model, "Neg").outputs[0].name = "p"
    model.functions["local", "twice", ""].inputs[0].name = "x"
    check_names(model)


@pytest.mark.parametrize("check", [check_names, check_origins, qgraph.load])
def test_a_value_that_nothing_defines_is_refused(model: ir.Model, check) -> None:
    check_origins(model)
    find(model, "Neg").replace_input_with(0, ir.Value(name="gone"))
    with pytest.raises(ModelError, match=r"Neg .* input 'gone' is not defined in a visible scope"):
        check(model)


def test_a_value_of_a_branch_is_out_of_reach_outside(model: ir.Model) -> None:
    find(model, "twice").replace_input_with(0, find(model, "Mul").outputs[0])
    with pytest.raises(ModelError, match=r"input 's' is not defined in a visible scope"):
        check_names(model)


def test_a_value_without_a_name_is_refused_where_it_is_used(model: ir.Model) -> None:
    find(model, "Mul").outputs[0].name = None
    with pytest.raises(ModelError, match=r"Neg .* input has no name"):
        check_names(model)


def test_an_output_that_nothing_produces_is_refused(model: ir.Model) -> None:
    model.graph.outputs.append(ir.Value(name="z"))
    with pytest.raises(ModelError, match=r"graph 'g' the output 'z' is not defined"):
        check_names(model)
    with pytest.raises(ModelError, match=r"The output 'z' is not defined"):
        check_origins(model)


def test_subgraphs_are_those_that_an_attribute_holds_itself(model: ir.Model) -> None:
    branches = [find(model, "If").attributes[name].as_graph() for name in BRANCHES]
    assert subgraphs(ir.AttrGraphs("both", branches)) == tuple(branches)
    assert subgraphs(ir.AttrGraph("one", branches[0])) == (branches[0],)
    assert subgraphs(ir.AttrInt64("none", 1)) == ()
    assert subgraphs(ir.RefAttr("later", "given", ir.AttributeType.GRAPH)) == ()

"""Drafts: nothing happens before they are committed, and nothing is left behind after."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.edit import Editor, Region

TWO_IN_A_ROW = """
    <ir_version: 8, opset_import: ["": 13]>
    g (float[4] x) => (float[4] y) <float a = {2}, float unused = {7}> {
        t = Mul (x, a)
        y = Mul (t, a)
    }"""


def region_of(node: ir.Node) -> Region:
    return Region(node.inputs[0], node.outputs[0], (node,))


def doubled(editor: Editor, node: ir.Node):
    draft = editor.draft(region_of(node))
    draft.y = draft.op.Add(draft.x, draft.x)
    return draft


def test_a_draft_leaves_the_graph_alone():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    before = ir.to_onnx_text(model)
    draft = doubled(Editor(model), model.graph[0])
    assert draft.spelling == "Add"
    assert ir.to_onnx_text(model) == before
    assert len(model.graph.inputs[0].uses()) == 1


def test_commit_keeps_the_name_of_the_output_and_drops_what_it_made_unused():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    editor = Editor(model)
    drafts = [doubled(editor, node) for node in list(model.graph)]
    for draft in reversed(drafts):
        draft.commit()
    assert [node.op_type for node in model.graph] == ["Add", "Add"]
    assert [node.outputs[0].name for node in model.graph] == ["t", "y"]
    assert model.graph.outputs[0].name == "y"
    # what was unused before is none of the edit's business
    assert list(model.graph.initializers) == ["unused"]


def test_an_output_keeps_shape_type_and_metadata():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    old = model.graph[0].outputs[0]
    old.shape, old.type = ir.Shape([4]), ir.TensorType(ir.DataType.FLOAT)
    old.metadata_props["origin"] = "layer 1"
    doubled(Editor(model), model.graph[0]).commit()
    new = model.graph[0].outputs[0]
    assert (new.name, new.shape, new.dtype) == ("t", ir.Shape([4]), ir.DataType.FLOAT)
    assert new.metadata_props == {"origin": "layer 1"}


def test_equal_constants_become_one_initializer():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    editor = Editor(model)
    drafts = []
    for node in list(model.graph):
        draft = editor.draft(region_of(node))
        draft.y = draft.op.Mul(draft.x, np.float32(3))
        drafts.append(draft)
    for draft in reversed(drafts):
        draft.commit()
    assert model.graph[0].inputs[1] is model.graph[1].inputs[1]


def test_operators_on_constants_are_computed():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    draft = Editor(model).draft(region_of(model.graph[0]))
    half = draft.op.Div(np.float32(1), 2.0)
    assert half == np.float32(0.5)
    assert draft.op.Where(np.bool_(True).reshape(()), draft.x, half) is draft.x
    assert not draft.nodes


def test_the_lowest_opset_of_a_draft_is_known():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    draft = Editor(model).draft(region_of(model.graph[0]))
    draft.op.Add(draft.x, 1.0)
    assert draft.opset == 7
    draft.op.Round(draft.x)
    assert draft.opset == 11


BRANCHED = """
    <ir_version: 8, opset_import: ["": 13, "local": 1]>
    g (float[4] x, bool c) => (float[4] y) <float a = {2}> {
        r = If (c) <
            then_branch = t () => (float[4] u) { u = Mul (x, a) },
            else_branch = e () => (float[4] v) { v = Neg (x) }>
        y = local.twice (r)
    }
    <domain: "local", opset_import: ["": 13]>
    twice (w) => (z) {
        k = Constant <value = float {2}> ()
        z = Mul (w, k)
    }"""


def test_branches_and_functions_are_edited_in_place():
    model = ir.from_onnx_text(BRANCHED)
    editor = Editor(model)
    branch = model.graph[0].attributes["then_branch"].as_graph()
    function = model.functions["local", "twice", ""]
    for node in (branch[0], function[1]):
        draft = editor.draft(region_of(node))
        draft.y = draft.op.Mul(draft.x, np.float32(5))
        draft.commit()
    assert list(branch.initializers) != []
    assert [value.name for value in branch.outputs] == ["u"]
    # functions have no initializers
    assert [node.op_type for node in function] == ["Constant", "Mul"]
    assert [value.name for value in function.outputs] == ["z"]
    # the initializer that only the branch used is gone, although it belonged to the main graph
    assert "a" not in model.graph.initializers


def test_a_shared_intermediate_value_stays():
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["": 13]>
        g (float[4] x) => (float[4] y, float[4] z) { t = Neg (x) y = Abs (t) z = Exp (t) }""")
    first, second, _ = model.graph
    draft = Editor(model).draft(Region(first.inputs[0], second.outputs[0], (first, second)))
    draft.y = draft.op.Abs(draft.x)
    draft.commit()
    assert sorted(node.op_type for node in model.graph) == ["Abs", "Exp", "Neg"]


def test_fresh_names_never_collide():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    editor = Editor(model)
    assert editor.fresh("t") == "t_1"
    assert editor.fresh("t") == "t_2"
    assert editor.fresh("new") == "new"


def test_a_node_outside_any_graph_is_a_mistake_of_the_caller():
    model = ir.from_onnx_text(TWO_IN_A_ROW)
    alone = ir.node("Neg", [model.graph.inputs[0]])
    draft = Editor(model).draft(Region(model.graph.inputs[0], alone.outputs[0], (alone,)))
    draft.y = draft.op.Abs(draft.x)
    with pytest.raises(ValueError, match="no graph"):
        draft.commit()

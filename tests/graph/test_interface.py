"""Which inputs and outputs of two models belong together."""

from __future__ import annotations

import re

import onnx_ir as ir
import pytest

from qgraph.errors import ModelError
from qgraph.graph.interface import are_equal_defaults, conflict, inputs, interface, names


def graph(signature: str, outputs: str = "float[2] y", constants: str = "") -> ir.Graph:
    first = signature.split(",")[0].split()[1]
    results = [result.split()[1] for result in outputs.split(", ")]
    body = " ".join(f"{result} = Neg({first})" for result in dict.fromkeys(results))
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({signature}) => ({outputs})'
    return ir.from_onnx_text(f"{text} <{constants}> {{ {body} }}").graph


def test_equal_names_are_paired_in_any_order() -> None:
    found = interface(graph("float[2] a, float[3] b"), graph("float[3] b, float[2] a"))
    assert names(found.inputs) == {"a": "a", "b": "b"}
    assert found.notes == []


def test_other_names_are_paired_by_position_and_noted() -> None:
    found = interface(graph("float[2] a, float[3] b"), graph("float[2] b, float[3] c"))
    assert names(found.inputs) == {"a": "b", "b": "c"}
    assert names(found.outputs) == {"y": "y"}
    assert found.notes == ["inputs are matched by position: 'a' with 'b', 'b' with 'c'"]


def test_names_that_occur_twice_are_paired_by_position() -> None:
    ours, theirs = "float[2] y, float[2] z, float[2] y", "float[2] z, float[2] y, float[2] y"
    found = interface(graph("float[2] x", ours), graph("float[2] x", theirs))
    pairs = [(a.name, b.name) for a, b in found.outputs]
    assert pairs == [("y", "z"), ("z", "y"), ("y", "y")]
    assert found.notes == ["outputs are matched by position: 'y' with 'z', 'z' with 'y'"]


def test_numbers_have_to_agree() -> None:
    ours, theirs = graph("float[2] a, float[3] b"), graph("float[2] a")
    with pytest.raises(ModelError, match="inputs a, b, the candidate a; expected as many"):
        interface(ours, theirs)
    assert inputs(ours, theirs) == []


def test_defaults_are_paired_by_name() -> None:
    ours = graph("float[2] x, float w, float v", constants="float w = {1}, float v = {0}")
    theirs = graph("float[2] x, float w", constants="float w = {1}")
    found = interface(ours, theirs)
    assert names(found.inputs) == {"x": "x"}
    assert names(found.defaults) == {"w": "w"}
    assert names(inputs(ours, theirs)) == {"x": "x", "w": "w"}
    assert are_equal_defaults(*found.defaults[0])
    other = graph("float[2] x, float w", constants="float w = {2}")
    assert not are_equal_defaults(*interface(ours, other).defaults[0])


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ("float[2,N] x", "float[M,3] x", None),
        ("float[2] x", "float[3] x", r"is \[2\] in the reference and \[3\] in the candidate"),
        ("float[2] x", "float[2,1] x", r"is \[2\] in the reference"),
        ("float[2] x", "float16[2] x", "is FLOAT in the reference and FLOAT16 in the candidate"),
        ("float[2] x", "seq(float[2]) x", "in the reference and Sequence"),
    ],
)
def test_inputs_conflict_if_no_array_fits_both(ours: str, theirs: str, reason: str | None) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g ({}) => (float[2] y) {{ y = F(x) }}'
    values = [ir.from_onnx_text(text.format(each)).graph.inputs[0] for each in (ours, theirs)]
    found = conflict(*values)
    assert found is None if reason is None else re.search(reason, str(found))

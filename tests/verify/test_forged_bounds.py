"""Certificates with bounds that are changed on purpose, so that they fit another candidate."""

from __future__ import annotations

import copy
import json
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.text import json_text
from tests.verify.checking import checked, leaves
from tests.verify.test_tampering import certificate

LAYER = """<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (uint8[] y)
    <float s = {0.25}, float t = {STEP}, uint8 z = {3}, uint8 v = {ZERO}, float[2,1,1] o = {0, 0},
     float[4,2] w = {1, -0.7, 0.3, 2, 0.1, 0.2, 0.3, 0.4}> {
        [qx] c = QuantizeLinear(x, s, z)  [dx] a = DequantizeLinear(c, s, v)
        [sum] m = MatMul(a, w)  [more] p = MORE
        [last] y = QuantizeLinear(p, t, z) }"""


def layer(step: str, *, zero: int = 3, more: str = "Identity(m)") -> ir.Model:
    texts = {"STEP": step, "ZERO": str(zero), "MORE": more}
    text = LAYER
    for name, value in texts.items():
        text = text.replace(name, value)
    return ir.from_onnx_text(text)


@pytest.fixture
def document() -> dict[str, Any]:
    """A certificate of two scales that nearly agree."""
    made = copy.deepcopy(certificate((layer("0.7"), layer("0.70000005")), "1step"))
    assert [region["verdict"] for region in made["regions"]] == ["proved", "bounded", "proved"]
    return made | {"facts": []}


def test_equal_codes_are_not_shifted(document):
    """The candidate decodes equal codes to numbers that are 5 steps less."""
    others = layer("0.7"), layer("0.70000005", zero=8)
    assert str(checked(document, *others).verdict) == "undecided"
    bound = copy.deepcopy(document["regions"][1]["bound"]) | {"code_shift": 5, "channels": []}
    document["regions"][0]["bound"] = bound
    result = checked(document, *others)
    assert result.regions[0].reason == "code shift: equal codes have none"
    assert str(result.verdict) == "undecided"


def test_codes_of_another_type_are_not_equal(document):
    """A zero point of 3 in int8 limits codes to 127, one in uint8 to 255."""
    candidate = LAYER.replace("uint8 z", "int8 z").replace("uint8 v", "int8 v")
    candidate = candidate.replace("(p, t, z) }", "(p, t, u) }").replace("> {", ", uint8 u = {3}> {")
    texts = {"STEP": "0.70000005", "ZERO": "3", "MORE": "Identity(m)"}
    for name, value in texts.items():
        candidate = candidate.replace(name, value)
    result = checked(document, layer("0.7"), ir.from_onnx_text(candidate))
    assert str(result.regions[0].status) == "unchecked"
    assert str(result.verdict) == "undecided"


def test_outputs_of_other_shapes_are_not_bounded(document):
    """To add zeros with another axis repeats all elements."""
    others = layer("0.7"), layer("0.70000005", more="Add(m, o)")
    result = checked(document, *others)
    assert result.is_refuted
    assert result.regions[1].reason == "equal values have the shapes [2, 2] and [2, 2, 2]"


def test_segments_that_are_undecided_are_not_checked(document):
    document["regions"][0] |= {"verdict": "undecided", "exactness": None, "reason": "who knows"}
    document["regions"][0]["reason_id"] = None
    document |= {"verdict": "undecided", "exactness": None}
    result = checked(document, layer("0.7"), layer("0.70000005"))
    assert str(result.verdict) == "undecided"
    assert str(result.regions[0].status) == "unchecked"


PARTS = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[1,4] x) => (uint8[1,2] y, float[1,2] u, float[1,2] v)
    <float s = {0.3}, uint8 z = {4}, float s_y = {0.1}, float[4,2] w = {1, 2, 3, 4, 5, 6, 7, W}> {
        a = DequantizeLinear (x, s, z)
        [cut] first, last = Split <axis = 1, num_outputs = 2> (a)
        [u] u = Identity (first)
        [v] v = Identity (last)
        m = MatMul (a, w)
        [end] y = QuantizeLinear (m, s_y, z)
    }"""


def test_two_results_of_one_node_are_not_equal():
    models = [ir.from_onnx_text(PARTS.replace("W}", f"{w}}}")) for w in ("8", "8.001")]
    proof = qgraph.prove(*models, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json()))
    assert str(checked(document, *models).verdict) == "bounded"
    forged = next(dict(r) for r in document["regions"] if r["reference_value"] == "u")
    forged |= {"reference_value": "first", "candidate_value": "last"}
    forged |= {"reference_nodes": ["cut"], "candidate_nodes": ["cut"]}
    for region in document["regions"]:
        region["entries"] = [] if region["reference_value"] in "uv" else region["entries"]
    document["regions"].append(forged)
    assert leaves(document, *models)

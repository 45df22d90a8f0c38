"""Outputs that are whole numbers: their step is 1, and they may wrap around."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import qgraph
from qgraph.proof.bounds import traced
from qgraph.text import json_text
from tests.verify.checking import checked

TYPES = {"int32": np.int32, "int64": np.int64}


def model(body: str, name: str, c: int = 100) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        net ({name}[4] x) => ({name}[4] y)
        <{name} c = {{{c}}}, {name} d = {{2}}> {{ y = {body} }}""")


def results(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return what onnx's reference computes."""
    with np.errstate(over="ignore"):
        return ReferenceEvaluator(proto).run(None, {"x": x})[0]


def document(proved: qgraph.Certificate) -> dict[str, Any]:
    """Return what the file would hold."""
    return dict(json.loads(json_text(proved.to_json())))


@pytest.mark.parametrize("apart", [1, 2])
def test_a_step_is_one(apart):
    """It is no part of the range of the type, which would accept anything."""
    pair = [model("Min (x, c)", "int32", c) for c in (100, 100 - apart)]
    x = np.array([-5, 99, 100, 2**30], np.int32)
    assert np.abs(results(pair[0], x) - results(pair[1], x)).max() == apart
    proved = qgraph.prove(*pair, within="1step", evidence=True)
    assert proved.verdict == "bounded"
    assert proved.regions[0].bound.max_steps == apart
    assert bool(proved.beyond) == (apart > 1)
    assert checked(document(proved), *pair).verdict == "bounded"


def test_a_bound_beside_the_range_of_int64_is_beyond_the_limit():
    pair = [model("Min (x, c)", "int64", c) for c in (100, -(2**40))]
    assert qgraph.prove(*pair, within="1step").beyond


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("body", ["Add (x, {})", "Sub (x, {})", "Mul (x, {})", "Div (x, {})"])
def test_integers_that_may_wrap_around_have_no_bound(name, body, monkeypatch):
    pair = [model(body.format(constant), name) for constant in "cd"]
    ends = np.iinfo(TYPES[name])
    x = np.array([ends.min, ends.min + 50, ends.max - 50, ends.max], TYPES[name])
    ours, theirs = (results(each, x).astype(object) for each in pair)
    assert np.abs(ours - theirs).max() > 1000
    proved = qgraph.prove(*pair, within="1step")
    assert proved.verdict == "undecided"
    assert "may leave their range" in str(proved.regions[0].reason)
    # nor does the checker believe a prover that forgets it
    monkeypatch.setattr(traced, "_expect_no_wrap", lambda result, *_: result)
    forged = qgraph.prove(*pair, within="1step", evidence=True)
    assert forged.verdict == "bounded"
    (part,) = checked(document(forged), *pair).regions
    assert part.status == "unchecked"
    assert "may be rounded or wrap around" in str(part.reason)


def test_integers_that_cannot_wrap_around_are_bounded():
    pair = [model(f"Add (l, {c})", "int32").graph for c in "cd"]
    for graph in pair:
        graph.node.insert(0, onnx.helper.make_node("Clip", ["x", "", "c"], ["h"]))
        graph.node.insert(1, onnx.helper.make_node("Max", ["h", "d"], ["l"]))
    models = [model("Neg (x)", "int32") for _ in pair]
    for each, graph in zip(models, pair, strict=True):
        each.graph.CopyFrom(graph)
    proved = qgraph.prove(*models, within="98step", evidence=True)
    assert (proved.verdict, proved.beyond) == ("bounded", [])
    assert proved.regions[0].bound.max_steps == 98
    assert checked(document(proved), *models).verdict == "bounded"

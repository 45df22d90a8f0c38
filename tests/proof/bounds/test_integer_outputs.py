"""Outputs that are whole numbers: their step is 1, and they may wrap around."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import qgraph
from qgraph.proof.bounds import evaluate
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
    (part,) = checked(document(proved), *pair).regions
    assert (part.status, str(part.reason)) == ("unchecked", "the checker has no bound for Min")


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
    monkeypatch.setattr(evaluate, "_expect_no_wrap", lambda result, *_: result)
    monkeypatch.setattr(evaluate, "_expect_fit", lambda *_: None)
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
    (part,) = checked(document(proved), *models).regions
    assert (part.status, str(part.reason)) == ("unchecked", "the checker has no bound for Max")


@pytest.mark.cases(fast=2, slow=6)
@pytest.mark.parametrize(
    ("integers", "floats", "others"),
    [
        ("k = MatMul(x, w)", "y = MatMul(i, j)", "int32[4,2] w"),
        ("k = Gemm(x, w)", "y = Gemm(i, j)", "int32[4,2] w"),
        ('k = Einsum<equation = "ik,kj->ij">(x, w)', "y = MatMul(i, j)", "int32[4,2] w"),
        ("k = Pow(x, w)", "y = Pow(i, j)", ""),
        ("k = PRelu(x, w)", "y = PRelu(i, j)", ""),
        ("k = ReduceLogSumExp(x)", "y = ReduceLogSumExp(i)", ""),
    ],
)
def test_integers_that_wrap_around_are_not_bounded_like_floats(integers, floats, others):
    """10**6 * 10**6 is no number of int32, and the logarithm of a whole number is cut off."""
    constants = "" if others else ", int32 w = {2}"
    inputs = ", ".join(filter(None, ["int32[2,4] x", others]))
    sides = (f"{integers} y = Cast<to = 1>(k)", f"i = Cast<to = 1>(x) j = Cast<to = 1>(w) {floats}")
    ours, theirs = (
        ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["": 21]> '
            f"g ({inputs}) => (float[A,B] y) <float u = {{1}}{constants}> {{ {side} }}"
        )
        for side in sides
    )
    ranges = {"x": (-1e6, 1e6)} | ({"w": (0, 1e6)} if others else {})
    within = qgraph.Bounding("1step", ranges=ranges)
    assert qgraph.prove(ours, theirs, within=within, hashes=False).verdict == "undecided"

"""Bounds of codes that one model moves before rounding and the other one behind it: unchecked."""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.text import json_text
from tests.proof.bounds import test_concat as concat
from tests.proof.bounds.test_concat import PAIRS
from tests.proof.bounds.test_moved_cuts import CASES, S_Y, model
from tests.verify.checking import checked


def document(models: tuple[ir.Model, ir.Model]) -> dict[str, Any]:
    proof = qgraph.prove(*models, evidence=True, within="1step")
    return dict(json.loads(json_text(proof.to_json())))


def assert_unchecked(stated: dict[str, Any], *pair: ir.Model) -> None:
    """Assert that the checker neither confirms nor refutes the first bound."""
    result = checked(stated, *pair)
    assert not result.is_refuted
    assert str(result.regions[0].status) == "unchecked"
    assert str(result.verdict) == "undecided"


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(("move", "ours", "theirs"), CASES)
def test_bounds_of_codes_that_one_model_moves_are_left_to_the_prover(move, ours, theirs):
    pair = model(ours[0], move, first=ours[1]), model(theirs[0], move, first=theirs[1])
    stated = document(pair)
    assert_unchecked(stated, *pair)
    # a candidate whose codes differ by 3 steps, see the test of the prover
    assert_unchecked(stated, pair[0], model(theirs[0], move, first=theirs[1], off=2.6 * S_Y))
    stated["regions"][0]["bound"]["max_steps"] = 0
    assert_unchecked(stated, *pair)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("pair", PAIRS)
def test_codes_before_and_behind_a_concat_are_not_refuted(pair):
    models = (
        concat.model(pair[0], folded=False, relu=True),
        concat.model(pair[1], folded=True, relu=True),
    )
    stated = document(models)
    assert not checked(stated, *models).is_refuted
    bound = next(r["bound"] for r in stated["regions"] if r["verdict"] == "bounded")
    bound["max_steps"] = 0
    assert str(checked(stated, *models).verdict) == "undecided"


PADDED = """<ir_version: 10, opset_import: ["": 21]>
    net (float[1,2,4] i) => (float[1,2,6] y)
    <float s = {0.5}, int8 z = {0}, float t = {0.25}, float c = {1.5},
     int64[6] pads = {0, 0, 1, 0, 0, 1}, int8 low = {LOW}, int8 high = {100}> {
        a = QuantizeLinear (i, t, z)
        d = DequantizeLinear (a, t, z)
        m = Mul (d, c)
        REST
    }"""
LAST = "q = QuantizeLinear ({}, s, z) k = Clip (q, low, high) {} = DequantizeLinear (k, s, z)"
ORDERS = f"{LAST.format('m', 'e')} y = Pad (e, pads)", f"p = Pad (m, pads) {LAST.format('p', 'y')}"


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("turned", [False, True])
def test_equal_codes_before_and_after_padding_are_not_refuted(turned):
    orders = ORDERS[::-1] if turned else ORDERS
    pair, other = (
        [ir.from_onnx_text(PADDED.replace("REST", rest).replace("LOW", low)) for rest in orders]
        for low in ("-100", "3")
    )
    stated = document((pair[0], pair[1]))
    assert stated["verdict"] == "proved"
    assert not checked(stated, *pair).is_refuted
    # a code of at least 3 is not the 0 that is padded
    assert str(checked(stated, *other).verdict) != "proved"


LAYER = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2,6,6] x) => (float y, float twice)
    <int8[2,2,1,1] w = {1, 2, 3, -4}, float s = {0.3}, float s_w = {S_W}, int8 z = {0},
     float f = {F}, float two = {2}> {
        a = DequantizeLinear (x, s, z)
        v = DequantizeLinear (w, s_w, z)
        m = Conv (a, v)
        n = Mul (m, f)
        END
    }"""
BEFORE = """t = Transpose <perm = [0, 1, 3, 2]> (n) q = QuantizeLinear (t, s, z)
    y = DequantizeLinear (q, s, z) twice = Mul (y, two)"""
BEHIND = """q = QuantizeLinear (n, s, z) t = Transpose <perm = [0, 1, 3, 2]> (q)
    y = DequantizeLinear (t, s, z) u = DequantizeLinear (USED, s, z) twice = Mul (u, two)"""


def layer(end: str, scale: float, factor: float) -> ir.Model:
    text = LAYER.replace("S_W", str(scale)).replace("{F}", f"{{{factor}}}")
    return ir.from_onnx_text(text.replace("END", end))


@pytest.mark.slow
def test_codes_that_are_not_moved_are_not_taken_for_those_that_are():
    reference = layer(BEFORE, 0.05, 1.3)
    moved, not_moved = (layer(BEHIND.replace("USED", use), 0.065, 1) for use in ("t", "q"))
    stated = document((reference, moved))
    for candidate in (moved, not_moved):  # codes of both have the same shape
        assert_unchecked(stated, reference, candidate)
        assert "checked" not in [
            str(p.status) for p in checked(stated, reference, candidate).regions
        ]


DECODED = """<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>
    net (int8[1,2,2,2] x) => (float y)
    <int8[2,2,1,1] w = {1, 2, 3, -4}, float s = {0.3}, float s_w = {S_W}, int8 z = {0},
     float f = {F}, float low = {-12.8}, float high = {12.7}, int64[2] flat = {0, -1},
     float[8,1] v = {0.3, -0.7, 0.11, 0.9, -0.4, 0.21, 0.33, 0.5}, float t = {0.5}> {
        a = DequantizeLinear (x, s, z)
        k = DequantizeLinear (w, s_w, z)
        m = Conv (a, k)
        n = Mul (m, f)
        END
        p = MatMul (d, v)
        e = QuantizeLinear (p, t, z)
        y = DequantizeLinear (e, t, z)
    }"""
FAKE = "org.openvinotoolkit.FakeQuantize <levels = 256> ({}, low, high, low, high)"


def test_what_follows_moved_codes_with_an_offset_is_not_checked():
    ends = (
        f"q = {FAKE.format('n')} d = Reshape (q, flat)",
        f"r = Reshape (n, flat) d = {FAKE.format('r')}",
    )
    pair = [
        ir.from_onnx_text(DECODED.replace("END", end).replace("S_W", s).replace("{F}", f"{{{f}}}"))
        for end, s, f in zip(ends, ("0.05", "0.066"), ("1.3", "1"), strict=True)
    ]
    stated = document((pair[0], pair[1]))
    assert_unchecked(stated, *pair)
    assert checked(stated, *pair).counts["checked"] < len(stated["regions"])

"""Segments that begin at codes that the checker cannot bound."""

from __future__ import annotations

import json

import onnx_ir as ir

import qgraph
from qgraph.text import json_text
from tests.verify.checking import checked

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,4] x) => (int8[1,2] y)
    <float s = {0.01}, int8 z = {0}, float t = {0.005}, float k = {K}, float s_y = {0.05},
     float[4,4] w = {1.5, 2, 3, -4, 5, 6, -7, 8, 1, -2, 3, 4, -5, 6, 7, -8},
     int8[4,2] v = {5, 11, -15, 2, 7, 1, 3, -9}, float s_v = {0.1}, float f = {F}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        n = Mul (m, k)
        h = Tanh (n)
        q = QuantizeLinear (h, t, z)
        d = DequantizeLinear (q, t, z)
        u = DequantizeLinear (v, s_v, z)
        o = MatMul (d, u)
        p = Mul (o, f)
        y = QuantizeLinear (p, s_y, z)
    }"""


def model(k: float, f: float) -> ir.Model:
    return ir.from_onnx_text(TEXT.replace("{K}", f"{{{k}}}").replace("{F}", f"{{{f}}}"))


def test_what_follows_codes_without_a_bound_is_checked():
    pair = model(0.1, 1.3), model(0.10001, 1.3001)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json()))
    verdicts = [region["verdict"] for region in document["regions"]]
    assert verdicts == ["bounded", "bounded", "proved"]
    result = checked(document, *pair)
    assert [str(part.status) for part in result.regions] == ["unchecked", "checked", "checked"]
    assert "no bound for Tanh" in str(result.regions[0].reason)
    assert str(result.verdict) == "undecided"
    # all codes of the type may be more than occur, so that a smaller bound is not refuted
    document["regions"][1]["bound"]["ideal_shift"] *= 0.5
    assert [str(part.status) for part in checked(document, *pair).regions][1] == "unchecked"


def test_other_factors_behind_codes_without_a_bound_are_not_checked():
    pair = model(0.1, 1.3), model(0.10001, 1.3001)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json()))
    result = checked(document | {"facts": []}, pair[0], model(0.10001, 1.4))
    assert str(result.regions[1].status) != "checked"

"""Codes that many nodes decode."""

from __future__ import annotations

import onnx
import onnx_ir as ir

import qgraph
from qgraph.transforms.weights.stored_codes import stored_codes

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (float[3] x) => (float[3] y, int8[3] n) <int8[3] w = {1, -2, 3}, float s = {0.5}> {
        a = DequantizeLinear (w, s)
        b = DequantizeLinear (w, s)
        c = DequantizeLinear (w, s)
        n = Neg (w)
        y = Sum (x, a, b, c)
    }"""


def test_users_of_codes_are_listed_once(monkeypatch):
    model = qgraph.load(onnx.parser.parse_model(TEXT))
    uses, listed = ir.Value.uses, []

    def counted(value):
        listed.append(value.name)
        return uses(value)

    monkeypatch.setattr(ir.Value, "uses", counted)
    found = list(stored_codes(model))
    assert [each.others for each in found] == [("Neg",)] * 3
    assert listed.count("w") == 1

"""Regions that are no segments show nothing where a certificate has bounds."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.verify.checking import checked
from tests.verify.test_forgery import region
from tests.verify.test_tampering import certificate

LAYER = """<ir_version: 10, opset_import: ["": 21]> g (float[1,2] x) => (float[1,2] y)
    <float s = {0.3}, float t = {0.7}, uint8 z = {3}, float[2,2] w = {1, -0.7, 0.3, 2},
     float[2,2] v = {0.1, -2, 3, 1}> {
        [qx] c = QuantizeLinear(x, s, z)  [dx] a = DequantizeLinear(c, s, z)
        [sum] p = SUM
        [qp] d = QuantizeLinear(p, t, z)  [last] y = DequantizeLinear(d, t, z)}"""


def layer(text: str) -> ir.Model:
    return ir.from_onnx_text(LAYER.replace("SUM", text))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("method", ["intervals", "congruence"])
def test_equal_quantizers_of_other_sums_are_no_segment(method):
    """Equal quantizers give equal codes of equal sums, but the weights of the candidate differ."""
    ours, theirs, others = map(layer, ("MatMul(a, w)", "Gemm(a, w)", "MatMul(a, v)"))
    document = certificate((ours, theirs), "1step")
    assert [r["verdict"] for r in document["regions"]] == ["proved", "bounded", "proved"]
    assert str(checked(document, ours, theirs).verdict) == "bounded"
    document["regions"][1] = region((["qp"], ["qp"]), ("d", "d"), entries=[["p", "p"]])
    document["regions"][1]["method"] = method
    document |= {"verdict": "proved", "exactness": "values"}
    result = checked(document, ours, others)
    assert str(result.verdict) == "undecided"
    assert str(result.regions[1].status) == "unchecked"

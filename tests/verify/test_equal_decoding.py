"""What is computed from equal codes, which both models decode by other operators."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

import qgraph
from qgraph.text import json_text
from tests.verify.checking import checked, confirmed

TEXT = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    net (int8[1,4] x) => (float y, other)
    <float[4,2] w = {1.5, 2, 3, -4, 5, 6, -7, 8}, float s = {0.0019}, int8 z = {0}, uint8 u = {0},
     float step = {0.3}, float zero = {0}, float bits = {3}, uint8 most = {7}, uint8 fewer = {6},
     float[2,2] v = {0.5, 1.1, -1.5, 2}, float k = {K}, float off = {0.30000004}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        p = Mul (m, k)
        END
        y = MatMul (d, v)
    }"""
QUANT = "d = qonnx.custom_op.general.Quant <signed = 0> (p, step, zero, bits) other = Neg (d)"
CODES = """q = QuantizeLinear (p, step, u) c = Clip (q, u, most) d = DequantizeLinear (c, STEP, u)
    other = Neg (d)"""


def models(end: str) -> tuple[ir.Model, ir.Model]:
    texts = [TEXT.replace("END", QUANT), TEXT.replace("END", end)]
    factors = ("1.3", "1.3001")
    one, other = (text.replace("K}", f"{k}}}") for text, k in zip(texts, factors, strict=True))
    return ir.from_onnx_text(one), ir.from_onnx_text(other)


ALIKE = CODES.replace("STEP", "step")


@pytest.mark.slow
def test_a_product_of_equal_decoded_codes_is_left_to_the_prover():
    pair = models(ALIKE)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="1step").to_json()))
    verdicts = [region["verdict"] for region in document["regions"]]
    assert sorted(verdicts) == ["bounded", "proved", "proved"]
    result = checked(document, *pair)
    assert result.counts == {"checked": 1, "unchecked": 2, "refuted": 0}
    assert confirmed(document, result, *pair) == "bounded"


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(
    "end",
    [
        CODES.replace("STEP", "off"),  # the last bit of the step
        ALIKE.replace("other = Neg (d)", "e = DequantizeLinear (q, step, u) other = Neg (e)"),
        ALIKE.replace("(c, step", "(q, step"),  # without limits
    ],
)
def test_other_numbers_for_a_code_are_not_taken_for_equal(end):
    pair = models(ALIKE)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="1step").to_json()))
    found = checked(document | {"facts": []}, *models(end))
    assert str(found.verdict) == "undecided"

"""No proof assumes that no NaN reaches regions if constants make NaN for every input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph

MASKED = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float t = {SCALE}, uint8 z = {0}, float[2] m = {0, MASK}, float s = {0.5}, float one = {1}> {
    c = QuantizeLinear (m, t, z)
    d = DequantizeLinear (c, t, z)
    a = Add (x, OPERAND)
    q = QuantizeLinear (a, s, z)
    y = DequantizeLinear (q, s, z)
}"""


def proved(scale: str, mask: str, operand: str) -> tuple[str, list[str | None], str]:
    """Return the verdict and the reasons of a conversion, and the verdict on data."""
    text = MASKED.replace("SCALE", scale).replace("MASK", mask).replace("OPERAND", operand)
    reference = ir.from_onnx_text(text)
    candidate = qgraph.Model(reference.clone())
    qgraph.convert(candidate, to="qonnx")
    certificate = qgraph.prove(reference, candidate)
    x = np.array([[1, 2]], np.float32)
    checked = qgraph.check(reference, candidate, {"x": x}, backend="numpy")
    return certificate.verdict, [r.reason_id for r in certificate.regions], checked.verdict


@pytest.mark.parametrize(
    ("scale", "mask", "operand"), [("inf", "-1", "d"), ("1", "nan", "m")], ids=["scale", "constant"]
)
def test_a_nan_of_constants_leaves_regions_behind_it_undecided(
    scale: str, mask: str, operand: str
) -> None:
    verdict, reasons, on_data = proved(scale, mask, operand)
    assert (verdict, on_data) == ("undecided", "different")
    assert "QG067" in reasons


@pytest.mark.parametrize("mask", ["-3", "nan"], ids=["number", "rounded NaN"])
def test_other_constants_do_not(mask: str) -> None:
    """A NaN that a QuantizeLinear rounds to a code goes no further."""
    verdict, reasons, on_data = proved("1", mask, "d")
    assert (verdict, on_data) == ("proved", "equal")
    assert "QG067" not in reasons

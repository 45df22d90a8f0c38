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


MADE = {
    "an infinite factor": ("float[2] k = {1, inf}", "a = Mul (x, k)"),
    "an infinite weight": ("float[2,2] k = {1, 2, inf, 3}", "a = MatMul (x, k)"),
    "infinite limits": (
        "float k = {-inf}, float h = {inf}",
        "a = org.openvinotoolkit.FakeQuantize <levels = 256> (x, k, h, k, h)",
    ),
    "a mask of all elements": ("float[2] k = {-inf, -inf}", "b = Add (x, k) a = Softmax (b)"),
    "a mask of one element": ("float[2] k = {0, -inf}", "b = Add (x, k) a = Softmax (b)"),
}


@pytest.mark.parametrize("name", MADE)
def test_infinities_that_make_nan_leave_regions_behind_them_undecided(name: str) -> None:
    constants, body = MADE[name]
    reference = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21,
        "org.openvinotoolkit": 1]>
    net (float[N,2] x) => (float[N,2] y) <{constants}, float s = {{0.5}}, uint8 z = {{0}}> {{
        {body} q = QuantizeLinear (a, s, z) y = DequantizeLinear (q, s, z)
    }}""")
    candidate = qgraph.Model(reference.clone())
    qgraph.convert(candidate, to="qonnx", values="y")
    x = {"x": np.array([[1, 0]], np.float32)}
    makes_nan = np.isnan(qgraph.load(candidate).run(x, backend="numpy")["y"]).any()
    verdict = qgraph.prove(reference, candidate).verdict
    assert verdict == ("undecided" if makes_nan else "proved")
    assert makes_nan == (name != "a mask of one element")

"""Regions that quantize their one input first, and go on in types that only kernels compute."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict

HEADER = (
    '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "qonnx.custom_op.general": 1]>'
)
CONSTANTS = (
    "float s = {0.5}, uint8 z = {0}, float n = {0}, float b = {8}, double m = {0.3}, "
    "double f = {1.25}, float[3] c = {1, 2, 3}, float e = {0.25}, float w = {-1}"
)
CODES = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
QUANT = "d = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (x, s, n, b) "
WIDE = "t = Cast <to = 11> (d) u = Mul(t, m) v = Add(u, f) r = Cast <to = 1> (v) y = Mul(r, c)"


def model(body: str, more: str = "") -> ir.Model:
    head = f"g (float[2,3] x) => (float[2,3] y) <{more}{CONSTANTS}>"
    return ir.from_onnx_text(f"{HEADER} {head} {{ {body} }}")


def test_codes_that_go_on_in_float64_are_proved():
    found = qgraph.prove(model(CODES + WIDE), model(QUANT + WIDE))
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, "values")


@pytest.mark.parametrize(
    "body",
    [
        QUANT.replace("(x, s", "(x, e") + WIDE,
        QUANT + WIDE.replace("Add(u, f)", "Sub(u, f)"),
        QUANT + WIDE.replace("Mul(t, m)", "Mul(t, f)"),
        QUANT.replace("narrow = 0", "narrow = 1") + WIDE,
        "p = Add(x, e) " + QUANT.replace("(x", "(p") + WIDE,
    ],
)
def test_other_codes_are_not_proved(body):
    assert qgraph.prove(model(CODES + WIDE), model(body)).verdict is not ProofVerdict.PROVED


def test_a_division_by_zeros_of_either_sign_is_not_proved():
    """A signed Quant gives -0 for small negative inputs, and a DequantizeLinear +0."""
    signed = QUANT.replace("signed = 0", "signed = 1")
    codes = CODES.replace("z)", "k)")
    by = "t = Cast <to = 11> (d) u = Div(f, t) y = Cast <to = 1> (u)"
    ours, theirs = (model(body, "int8 k = {0}, ") for body in (codes + by, signed + by))
    assert qgraph.prove(ours, theirs).verdict is not ProofVerdict.PROVED

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


@pytest.mark.cases(fast=2)
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


def verdict_of(ours: str, theirs: str, more: str) -> ProofVerdict:
    return qgraph.prove(model(ours, more), model(theirs, more)).verdict


def table(kind: str, numbers: list[float]) -> str:
    return f"{kind}[256] t = {{{', '.join(map(str, numbers))}}}, "


SIGNED = QUANT.replace("signed = 0", "signed = 1")
OF_TABLE = "q = QuantizeLinear(x, s, k) i = Cast <to = 6> (q) v = Gather(t, i) "
DIVIDE = "r = Cast <to = 1> (v) y = Div(c, r)"


@pytest.mark.parametrize(
    ("computed", "results", "is_proved"),
    [
        ("v = Add(h, l)", [i / 8 + 24 for i in range(256)], True),  # 40 for zeros of both signs
        ("v = Mul(h, l)", [i * 5 - 640 for i in range(256)], False),
        ("v = Relu(h)", [max(i / 8 - 16, 0) for i in range(256)], False),  # ONNX leaves it open
        ("v = Mul(h, h)", [(i / 8 - 16) ** 2 for i in range(256)], True),
        ("j = Add(h, l) v = Div(l, j)", [40 / (i / 8 + 24) for i in range(256)], True),
    ],
)
def test_zeros_of_either_sign_may_lead_to_one_result(computed, results, is_proved):
    """A signed Quant gives -0 for small negative inputs, and a table has +0 for them."""
    constants = "uint8 k = {128}, double p = {0.25}, double l = {40}, "
    wide = f"u = Cast <to = 11> (d) h = Mul(u, p) {computed} "
    verdict = verdict_of(
        OF_TABLE + DIVIDE, SIGNED + wide + DIVIDE, constants + table("double", results)
    )
    assert (verdict is ProofVerdict.PROVED) == is_proved


@pytest.mark.parametrize(("minuend", "is_proved"), [("f", True), ("m", False)])
def test_a_constant_that_is_computed_hides_the_sign_of_zero(minuend, is_proved):
    """1.25 - 0.3 is not zero, and 0.3 - 0.3 is."""
    after = f"p = Sub({minuend}, m) o = Cast <to = 1> (p) v = Add(d, o) y = Div(c, v)"
    codes = CODES.replace("z)", "k)")
    verdict = verdict_of(codes + after, SIGNED + after, "int8 k = {0}, ")
    assert (verdict is ProofVerdict.PROVED) == is_proved


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("high", "is_proved"), [("h", True), ("l", False)])
def test_several_quantizers_of_one_input_are_tried_together(high, is_proved):
    """One model has a table of squares, the other multiplies what two quantizers give."""
    squares = table("float", [i * i / 4 for i in range(256)])
    constants = f"{squares} uint8 k = {{0}}, float h = {{255}}, float l = {{254}}, "
    rounded = f"a = Div(x, s) r = Round(a) o = Clip(r, n, {high}) g = Mul(o, s) "
    wide = "u = Cast <to = 11> (d) p = Cast <to = 11> (g) j = Mul(u, p) y = Cast <to = 1> (j)"
    verdict = verdict_of(OF_TABLE.replace("v =", "y ="), CODES + rounded + wide, constants)
    assert (verdict is ProofVerdict.PROVED) == is_proved


@pytest.mark.parametrize(("high", "is_proved"), [("63.5", True), ("63", False)])
def test_a_function_without_intervals_is_tried_for_each_step(high, is_proved):
    """Both models compute Tanh of a power of a value that they round in different forms."""
    constants = f"float h = {{2}}, uint8 k = {{128}}, float l = {{-64}}, float u = {{{high}}}, "
    rounded = "m = Clip(t, l, u) a = Div(m, s) r = Round(a) d = Mul(r, s) "
    bodies = (
        CODES.replace("z)", "k)") + "p = Pow(d, h) v = Tanh(p) y = Transpose <perm = [1, 0]> (v)",
        f"t = Transpose <perm = [1, 0]> (x) {rounded} p = Pow(d, h) y = Tanh(p)",
    )
    head = f"g (float[2,3] x) => (float[3,2] y) <{constants}float s = {{0.5}}>"
    models = (ir.from_onnx_text(f"{HEADER} {head} {{ {body} }}") for body in bodies)
    assert (qgraph.prove(*models).verdict is ProofVerdict.PROVED) == is_proved

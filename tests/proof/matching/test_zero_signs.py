"""Divisions and powers that do not see the sign of a zero are told by the values they work on."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.proof.matching.zero_signs import distinguished, distinguishes_signed_zeros, forgets
from qgraph.verify.operators import forgets_zero_signs, tells_zeros_apart

HEADER = '<ir_version: 10, opset_import: ["": 17]>'
CONSTANTS = (
    "float t = {2}, float h = {3}, float f = {0.5}, float e = {0.00001}, float o = {0}, "
    "float n = {-1}, float l = {-6}, int64[1] a = {1}"
)

CASES = [
    ("y = Pow(x, t)", False),
    ("y = Pow(x, h)", True),
    ("y = Pow(x, f)", True),
    ("y = Pow(x, l)", True),
    ("y = Div(w, x)", True),
    (
        "p = Pow(x, t) v = ReduceMean <axes = [1]> (p) u = Add(v, e) r = Sqrt(u) y = Div(w, r)",
        False,
    ),
    ("p = Mul(x, x) v = ReduceMean <axes = [1]> (p) u = Add(e, v) y = Reciprocal(u)", False),
    ("p = Pow(x, t) v = ReduceMean <axes = [1]> (p) r = Sqrt(v) y = Div(w, r)", True),
    ("p = Pow(x, h) u = Add(p, e) r = Sqrt(u) y = Div(w, r)", True),
    ("p = Abs(x) u = Add(p, o) y = Div(w, u)", True),
    ("p = Abs(x) u = Add(p, n) y = Div(w, u)", True),
    ("m = Max(x, e) y = Div(w, m)", False),
    ("m = Clip(x, e) y = Div(w, m)", False),
    ("m = Clip(x, e, o) y = Div(w, m)", True),
    ("m = Exp(x) y = Div(w, m)", True),  # which may be zero
    ("m = Softmax(x) n1 = Add(m, e) y = Div(w, n1)", False),
]


@pytest.mark.parametrize(("body", "seen"), CASES)
def test_by_the_values(body, seen):
    model = ir.from_onnx_text(
        f"{HEADER} g (float[2,3] x, float[2,3] w) => (float[2,3] y) <{CONSTANTS}> {{ {body} }}"
    )
    last = model.graph[-1]
    place = 1 if last.op_type == "Div" else 0
    assert distinguishes_signed_zeros(last, [last.inputs[place]]) == seen
    assert tells_zeros_apart(last, place) >= seen  # the checker may be more careful


@pytest.mark.parametrize(
    ("body", "alike"),
    [
        ("y = Pow(x, t)", True),
        ("y = Pow(x, h)", False),
        ("y = Mul(x, x)", True),
        ("y = Mul(x, w)", False),
        ("y = Add(x, e)", True),
        ("y = Add(x, o)", False),
        ("y = Exp(x)", True),
        ("y = Sqrt(x)", False),
    ],
)
def test_results_that_both_zeros_share(body, alike):
    model = ir.from_onnx_text(
        f"{HEADER} g (float[2,3] x, float[2,3] w) => (float[2,3] y) <{CONSTANTS}> {{ {body} }}"
    )
    (node,) = model.graph
    assert forgets(node) == alike
    assert forgets_zero_signs(node) <= alike


def test_codes_have_one_zero():
    """An unknown operator may read the sign of a float, but a code has none."""
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 17, "some.domain": 1]> '
        "g (uint8[2] c, float[2] x) => (float[2] y, float[2] w) "
        "{ y = some.domain.Reader(c) w = some.domain.Reader(x) }"
    )
    code, real = model.graph.inputs
    assert code.dtype is ir.DataType.UINT8
    assert distinguished(model.graph) == {real}

"""Divisions and powers that do not see the sign of a zero are told by the values they work on."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.proof.matching.zero_signs import distinguished, distinguishes_signed_zeros, forgets
from qgraph.verify.reading import forgets_zero_signs, tells_zeros_apart

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


OF_RUNTIME = {
    "Attention": ("x, w, b", "<num_heads = 2>"),
    "BiasGelu": ("x, g", ""),
    "FastGelu": ("x", ""),
    "GroupQueryAttention": ("x, x, x, , , n, l", "<num_heads = 1, kv_num_heads = 1>"),
    "MultiHeadAttention": ("x, x, x", "<num_heads = 2>"),
    "QuickGelu": ("x", ""),
    "RotaryEmbedding": ("x, p, c, c", "<num_heads = 1>"),
    "SkipLayerNormalization": ("x, x, g", ""),
    "SkipSimplifiedLayerNormalization": ("x, x, g", ""),
}


@pytest.mark.runtime
@pytest.mark.parametrize("name", OF_RUNTIME)
def test_operators_of_the_runtime_give_equal_values_for_zeros_of_either_sign(name: str) -> None:
    import onnxruntime as ort

    operands, attributes = OF_RUNTIME[name]
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1,4,16] x, float[16,48] w, float[48] b, float[16] g, float[8,8] c)
        => (float[1,4,16] y) <int32[1] n = {{3}}, int32 l = {{4}}, int64[1,4] p = {{0, 1, 2, 3}}> {{
            y = com.microsoft.{name} {attributes} ({operands})
        }}"""
    model = onnx.parser.parse_model(text)
    node = ir.from_onnx_text(text).graph[-1]
    assert not distinguishes_signed_zeros(node, [node.inputs[0]])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    for share in (0.3, 0.9, 1.0):
        feeds = {
            each.name: np.where(
                (numbers := random.normal(size=each.shape)) * (random.random(each.shape) > share),
                numbers,
                0,
            ).astype(np.float32)
            for each in session.get_inputs()
        }
        other = {
            key: np.where((x == 0) & (random.random(x.shape) < 0.5), -x, x)
            for key, x in feeds.items()
        }
        np.testing.assert_array_equal(session.run(None, feeds)[0], session.run(None, other)[0])

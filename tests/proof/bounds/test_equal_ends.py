"""Segments whose ends are equal because values behind their codes are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import qgraph
from qgraph.proof.bounds.closure import decoded_from

TEXT = """<ir_version: 10, opset_import: ["": 21, "odd": 1]>
    net (float[1,2] x, int8[1,2] c) => (float y, float p)
    <float s = {0.1}, TYPE z = {0}, int8 i = {0}, TYPE top = {9},
     float[2,2] w = {1, 2, 3, 4}, float b = {BIAS}> {
        q = QuantizeLinear (x, s, z)
        USE
        d = DequantizeLinear (c, s, i) m = MatMul (d, w) n = Add (m, b)
        o = QuantizeLinear (n, s, i) p = DequantizeLinear (o, s, i)
    }"""


def model(use: str, kind: str = "uint8", bias: float = 0.5) -> ir.Model:
    return ir.from_onnx_text(
        TEXT.replace("USE", use).replace("TYPE", kind).replace("BIAS", str(bias))
    )


def test_codes_are_not_equal_because_it_is_equal_which_of_them_are_zero():
    use = "t = Cast <to = 9> (q) y = Cast <to = 1> (t)"
    proof = qgraph.prove(model(use), model(use, "uint4", 0.500001), within="1step")
    bounds = {r.reference_value: r.bound for r in proof.regions if r.verdict == "bounded"}
    # codes up to 255 in one model and up to 15 in the other one
    assert bounds["q"].max_steps >= 240
    assert "y" not in bounds


@pytest.mark.parametrize(
    ("use", "count"),
    [
        ("t = Clip (q, z, top) y = DequantizeLinear (t, s, z)", 3),
        ("t = odd.Clip (q, z, top) y = DequantizeLinear (t, s, z)", 1),
        ("t = odd.Identity (q) y = DequantizeLinear (t, s, z)", 1),
        ("t = Cast <to = 6> (q) y = Cast <to = 1> (t)", 3),
        ("t = Cast <to = 9> (q) y = Cast <to = 1> (t)", 1),
        ("t = Cast <to = 3> (q) y = Cast <to = 1> (t)", 1),
    ],
)
def test_only_standard_operators_that_keep_codes_apart_decode_them(use, count):
    graph = model(use).graph
    (end,) = [node.outputs[0] for node in graph if node.outputs[0].name == "q"]
    end.dtype = ir.DataType.UINT8
    (user,) = end.consumers()
    user.outputs[0].dtype = ir.DataType(user.attributes.get_int("to", ir.DataType.UINT8))
    assert len(decoded_from(end)) == count


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "limits", ["z = Clip (r, low, high)", "h = Max (r, low) z = Min (h, high)"]
)
def test_codes_that_one_model_limits_are_not_equal(limits):
    """Enumeration does not decide float64, so the proved rounding and a bound are all there is."""
    models = [
        onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
            net (double[N] x) => (double[N] y)
            <double s = {{0.05}}, double low = {{-128}}, double high = {{127}}> {{
                a = Div (x, s) r = Round (a) {body} }}""")
        for body in (f"{limits} y = Mul (z, s)", "y = Mul (r, s)")
    ]
    x = np.array([6.0, 7.0, 1000.0])
    ours, theirs = (ReferenceEvaluator(model).run(None, {"x": x})[0] for model in models)
    assert np.abs(ours - theirs).max() > 900
    for pair in (models, models[::-1]):
        proved = qgraph.prove(*pair, within="y:1000")
        assert proved.verdict == "undecided"
        assert "limits the codes" in str(proved.regions[0].reason)


def test_values_without_a_bound_are_traced_back_through_long_chains():
    """Such chains are longer than those of calls may be."""
    count = 400
    steps = [f"v{i + 1} = {('Sin', 'Sigmoid')[i % 2]} (v{i})" for i in range(count)]
    text = f"""<ir_version: 10, opset_import: ["": 21]> net (float[1,4] v0) => (float[1,4] y)
        <float k = {{FACTOR}}> {{ {" ".join(steps)} m = Mul (v{count}, k) y = Round (m) }}"""
    models = [ir.from_onnx_text(text.replace("FACTOR", factor)) for factor in ("10", "10.5")]
    assert qgraph.prove(*models, within="1step").verdict == "bounded"


STEPS = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[4] c) => (float[4] y)
    <float h = {1.5}, float one = {1}, int16 z = {0}, float k = {ADDED}, float b = {UP},
     float d = {DOWN}> {
        x = Cast <to = 1> (c) s = Mul (x, h) w = Add (s, k)
        q = QuantizeLinear (w, one, z) f = DequantizeLinear (q, one, z)
        v = Add (f, b) u = Add (v, d) g = Sigmoid (u) t = Tanh (v) m = Mul (g, t) y = Floor (m)
    }"""


def test_codes_are_not_equal_because_other_functions_of_them_are():
    """The second codes are one larger, so v is equal if one is added to the first codes only."""
    numbers = {"ADDED": (-0.1, 0.6), "UP": (1.0, 0.0), "DOWN": (-1.0, 0.0)}
    texts = [STEPS, STEPS]
    for name, pair in numbers.items():
        texts = [t.replace(f"{{{name}}}", f"{{{n!r}}}") for t, n in zip(texts, pair, strict=True)]
    every = np.arange(-128, 128).astype(np.int8)
    with np.errstate(all="ignore"):
        values = [
            ReferenceEvaluator(onnx.parser.parse_model(text)).run(["v", "y"], {"c": every})
            for text in texts
        ]
    assert np.array_equal(values[0][0], values[1][0])
    assert np.abs(values[0][1] - values[1][1]).max() == 1
    proof = qgraph.prove(*map(ir.from_onnx_text, texts), within="1step")
    assert proof.verdict != "proved"
    assert all(r.verdict != "proved" for r in proof.regions if r.reference_value == "q")

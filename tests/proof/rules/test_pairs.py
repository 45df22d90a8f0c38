"""Two forms of one function: their ideals are equal, so what is left are errors of rounding."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.proof.bounds.paired_models import paired
from tests.proof.rules.test_forms import session

HEAD = '<ir_version: 10, opset_import: ["": 22, "com.microsoft": 1]>'
WEIGHTS = "0.3, -0.7, 0.11, 0.9, -0.2, 0.55"

PAIRS = {
    "Gemm, MatMul and Add": (
        "float[2,3] x",
        f"float[3,2] w = {{{WEIGHTS}}}, float[2] b = {{0.3, -2.7}}",
        "y = Gemm (x, w, b)",
        "m = MatMul (x, w) y = Add (m, b)",
    ),
    "Gemm with factors": (
        "float[2,3] x",
        f"float[3,2] w = {{{WEIGHTS}}}, float[2] b = {{0.3, -2.7}}, float h = {{0.5}}",
        "y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b)",
        "m = MatMul (x, w) s = Mul (m, h) c = Add (b, b) y = Add (s, c)",
    ),
    "means": (
        "float[1,3,4,5] x",
        "int64[2] axes = {2, 3}",
        "y = GlobalAveragePool (x)",
        "y = ReduceMean (x, axes)",
    ),
    "mean of a window": (
        "float[1,3,4,5] x",
        "int64[2] axes = {2, 3}",
        "y = AveragePool <kernel_shape = [4, 5]> (x)",
        "s = ReduceSum (x, axes) t = Constant <value_float = 20.0> () y = Div (s, t)",
    ),
    "means of means": (
        "float[1,3,4,5] x",
        "int64[1] two = {2}, int64[1] three = {3}",
        "g = GlobalAveragePool (x) y = Flatten (g)",
        "m = ReduceMean <keepdims = 0> (x, three) y = ReduceMean <keepdims = 0> (m, two)",
    ),
    "Pad, Conv": (
        "uint8[1,1,4,4] x",
        (
            f"float[2,1,1,3] w = {{{WEIGHTS}}}, float s = {{0.03}}, float v = {{0.1}}, "
            "uint8 p = {3}, int64[8] pads = {0, 0, 1, 0, 0, 0, 2, 1}"
        ),
        (
            "a = DequantizeLinear (x, s, p) m = Conv <pads = [1, 0, 2, 1]> (a, w) "
            "y = QuantizeLinear (m, v, p)"
        ),
        (
            "b = Pad (x, pads, p) a = DequantizeLinear (b, s, p) m = Conv (a, w) "
            "y = QuantizeLinear (m, v, p)"
        ),
    ),
    "LeakyRelu, PRelu": (
        "float[2,3] x",
        "float a = {0.25}",
        "y = LeakyRelu <alpha = 0.25> (x)",
        "y = PRelu (x, a)",
    ),
    "HardSigmoid": (
        "float[2,3] x",
        "float a = {0.2}, float b = {0.5}, float zero = {0}, float one = {1}",
        "y = HardSigmoid (x)",
        "m = Mul (x, a) n = Add (m, b) y = Clip (n, zero, one)",
    ),
    "merged scales": (
        "float[2,3] x",
        f"float[3,2] w = {{{WEIGHTS}}}, float a = {{0.3}}, float b = {{0.7}}, float c = {{0.21}}",
        "t = Mul (x, a) m = MatMul (t, w) y = Mul (m, b)",
        "m = MatMul (x, w) y = Mul (m, c)",
    ),
    "scales of factors": (
        "float[2,3] x, float[2,3] z",
        "float a = {0.3}, float b = {0.7}, float c = {4}",
        "p = Mul (x, z) s = Mul (p, a) t = Add (z, c) q = Div (s, t) y = Mul (q, b)",
        "s = Mul (x, a) p = Mul (s, z) t = Add (z, c) u = Div (t, b) y = Div (p, u)",
    ),
    "transposed twice": (
        "float[2,3,4] x",
        "",
        "t = Transpose <perm = [2, 0, 1]> (x) u = Transpose <perm = [1, 2, 0]> (t) y = Relu (u)",
        "y = Relu (x)",
    ),
    "square": ("float[2,3] x", "float two = {2}", "y = Pow (x, two)", "y = Mul (x, x)"),
    "SkipLayerNormalization": (
        "float[2,4] x, float[2,4] z",
        "float[4] g = {1, 2, 3, 4}, float[4] b = {0.1, 0.2, 0.3, 0.4}",
        "y = com.microsoft.SkipLayerNormalization <epsilon = 0.01> (x, z, g, b)",
        "s = Add (x, z) y = LayerNormalization <epsilon = 0.01> (s, g, b)",
    ),
    "FusedMatMul": (
        "float[2,3] x, float[4,3] z",
        "float h = {0.5}",
        "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, z)",
        "t = Transpose (z) m = MatMul (x, t) y = Mul (m, h)",
    ),
    "QLinearAdd": (
        "uint8[2,3] x, uint8[2,3] z",
        "float s = {0.03}, float u = {0.05}, float v = {0.07}, uint8 p = {3}, uint8 q = {128}",
        "y = com.microsoft.QLinearAdd (x, s, p, z, u, q, v, p)",
        (
            "a = DequantizeLinear (x, s, p) b = DequantizeLinear (z, u, q) c = Add (a, b) "
            "y = QuantizeLinear (c, v, p)"
        ),
    ),
    "QLinearMul": (
        "int8[2,3] x, int8[2,3] z",
        "float s = {0.03}, float u = {0.05}, float v = {0.17}, int8 p = {3}, int8 q = {-7}",
        "y = com.microsoft.QLinearMul (x, s, p, z, u, q, v, p)",
        (
            "a = DequantizeLinear (x, s, p) b = DequantizeLinear (z, u, q) c = Mul (a, b) "
            "y = QuantizeLinear (c, v, p)"
        ),
    ),
    "QLinearConcat": (
        "int8[2,3] x, int8[2,2] z",
        "float s = {0.03}, float u = {0.05}, float v = {0.17}, int8 p = {3}, int8 q = {-7}",
        "y = com.microsoft.QLinearConcat <axis = 1> (v, p, x, s, q, z, u, p)",
        (
            "a = DequantizeLinear (x, s, q) b = DequantizeLinear (z, u, p) c = Concat <axis = 1> "
            "(a, b) y = QuantizeLinear (c, v, p)"
        ),
    ),
    "QLinearGlobalAveragePool": (
        "uint8[1,3,4,4] x",
        "float s = {0.03}, float v = {0.017}, uint8 p = {3}",
        "y = com.microsoft.QLinearGlobalAveragePool (x, s, p, v, p)",
        "a = DequantizeLinear (x, s, p) c = GlobalAveragePool (a) y = QuantizeLinear (c, v, p)",
    ),
    "QLinearAveragePool": (
        "uint8[1,3,4,4] x",
        "float s = {0.03}, float v = {0.017}, uint8 p = {3}",
        "y = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (x, s, p, v, p)",
        (
            "a = DequantizeLinear (x, s, p) c = AveragePool <kernel_shape = [2, 2]> (a) "
            "y = QuantizeLinear (c, v, p)"
        ),
    ),
    "QLinearLeakyRelu": (
        "int8[2,3] x",
        "float s = {0.03}, float v = {0.017}, int8 p = {3}",
        "y = com.microsoft.QLinearLeakyRelu <alpha = 0.3> (x, s, p, v, p)",
        (
            "a = DequantizeLinear (x, s, p) c = LeakyRelu <alpha = 0.3> (a) "
            "y = QuantizeLinear (c, v, p)"
        ),
    ),
    "QLinearSigmoid": (
        "int8[2,3] x",
        "float s = {0.03}, float v = {0.0078}, int8 p = {-3}",
        "y = com.microsoft.QLinearSigmoid (x, s, p, v, p)",
        "a = DequantizeLinear (x, s, p) c = Sigmoid (a) y = QuantizeLinear (c, v, p)",
    ),
    "QLinearSoftmax": (
        "uint8[2,6] x",
        "float s = {0.03}, float v = {0.0625}, uint8 p = {3}, uint8 o = {0}",
        "y = com.microsoft.QLinearSoftmax <axis = 1, opset = 13> (x, s, p, v, o)",
        "a = DequantizeLinear (x, s, p) c = Softmax <axis = 1> (a) y = QuantizeLinear (c, v, o)",
    ),
    "QLinearMatMul": (
        "int8[2,3] x, int8[3,2] z",
        "float s = {0.03}, float u = {0.05}, float v = {0.17}, int8 p = {3}, int8 q = {-7}",
        "y = QLinearMatMul (x, s, p, z, u, q, v, p)",
        (
            "a = DequantizeLinear (x, s, p) b = DequantizeLinear (z, u, q) c = MatMul (a, b) "
            "y = QuantizeLinear (c, v, p)"
        ),
    ),
    "QGemm": (
        "uint8[2,3] x",
        (
            "uint8[2,3] w = {3, 255, 7, 0, 9, 77}, float s = {0.03}, float u = {0.05}, "
            "float v = {1.7}, uint8 p = {3}, uint8 q = {128}, int32[2] b = {100, -200}, "
            "float t = {0.0015}"
        ),
        "y = com.microsoft.QGemm <transB = 1> (x, s, p, w, u, q, b, v, p)",
        (
            "a = DequantizeLinear (x, s, p) k = DequantizeLinear (w, u, q) "
            "c = DequantizeLinear (b, t) m = Gemm <transB = 1> (a, k, c) "
            "y = QuantizeLinear (m, v, p)"
        ),
    ),
    "QLinearConv": (
        "uint8[1,1,4,4] x",
        (
            "int8[2,1,2,2] w = {3, -128, 7, 0, 9, 77, 1, -1}, float s = {0.03}, "
            "float[2] u = {0.05, 0.01}, float v = {0.17}, uint8 p = {3}, int8[2] q = {0, 0}"
        ),
        "y = QLinearConv <pads = [1, 1, 0, 0]> (x, s, p, w, u, q, v, p)",
        (
            "a = DequantizeLinear (x, s, p) k = DequantizeLinear <axis = 0> (w, u, q) "
            "m = Conv <pads = [1, 1, 0, 0]> (a, k) y = QuantizeLinear (m, v, p)"
        ),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_other_forms_mean_the_same(name):
    inputs, constants, *forms = PAIRS[name]
    kind = "uint8 y" if "uint8" in inputs else "int8 y" if "int8" in inputs else "float y"
    held = f"<{constants}>" if constants else ""
    texts = [f"{HEAD} net ({inputs}) => ({kind}) {held} {{ {form} }}" for form in forms]
    models = [ir.from_onnx_text(text) for text in texts]
    reals = [str(v.name) for v in models[0].graph.inputs if v.dtype is ir.DataType.FLOAT]
    pairing = paired((models[0], models[1]), Bounding(ranges=dict.fromkeys(reals, (-3, 3))))
    (segment,) = (s for s in pairing.segments if s.roundings or (s.is_output and len(reals)))
    assert segment.reason is None, str(segment.reason)
    # scales of float32 that are multiplied in another order differ in their last bits
    assert np.max(segment.shift) <= 1e-4
    assert np.max(segment.deviation) <= 2e-3
    # as executed, too
    most = segment.steps() if "int8" in inputs else segment.deviation
    sessions = [session(ir.to_proto(model)) for model in models]
    generator = np.random.default_rng(0)
    for place in range(8):
        feeds = {}
        for value in models[0].graph.inputs:
            shape, kind = value.shape.numpy(), value.dtype.numpy()
            ends = (-3.0, 3.0) if kind == np.float32 else (np.iinfo(kind).min, np.iinfo(kind).max)
            x = generator.choice(ends, shape) if place == 0 else generator.uniform(*ends, shape)
            feeds[str(value.name)] = x.astype(kind)
        a, b = (np.asarray(each.run(None, feeds)[0], np.float64) for each in sessions)
        assert (np.abs(a - b) <= most).all()


@pytest.mark.parametrize("pads", ["0,0,-1,-1,0,0,-1,-1", "0,1,0,0,0,-1,0,0"])
def test_a_pad_that_removes_data_is_no_padding_of_the_conv(pads):
    """A code that is removed does not reach the result, and is not padded back."""
    text = """<ir_version: 10, opset_import: ["": 21]> net (uint8[1,2,5,5] x) => (uint8[1,1,5,5] y)
        <float s = {0.1}, uint8 z = {0}, int64[8] p = {PADS}, float[1,2,1,1] w = {1, 2}> {
            d = DequantizeLinear (x, s, z) BODY y = QuantizeLinear (c, s, z) }"""

    conv = "<pads = [1,1,1,1]>" if "-1,-1" in pads else ""
    bodies = "c = Conv (d, w)", f"e = Pad (d, p) c = Conv {conv} (e, w)"
    pair = [ir.from_onnx_text(text.replace("PADS", pads).replace("BODY", b)) for b in bodies]
    assert str(qgraph.prove(*pair, within="1step").verdict) != "bounded"

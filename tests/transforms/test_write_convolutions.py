"""Matrix products with a scale for each column become convolutions of one place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.reports import SiteStatus
from qgraph.transforms.write_convolutions import WriteConvolutions

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,3] x) => (float[N,2] y)
    <float s = {0.05}, uint8 z = {12}, float t = {0.2}, float low = {0}, float high = {9},
     float[2] scales = {0.02, -0.3}, int8[2] zeros = {0, 0}, float one = {0.02}, int8 zero = {0},
     int8[SHAPE] w = {1, -2, 3, -4, 5, 127}, float[2] b = {0.5, -1}, float[1,2] row = {0.5, -1}> {
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
        LAYER
        p = QuantizeLinear (END, t, z) y = DequantizeLinear (p, t, z)
    }"""
COLUMNS = "k = DequantizeLinear <axis = 1> (w, scales, zeros)"
ROWS = "k = DequantizeLinear <axis = 0> (w, scales, zeros)"
CASES = {
    "Gemm": ("3,2", f"{COLUMNS} [layer] m = Gemm (d, k, b)", "m"),
    "without a bias": ("3,2", f"{COLUMNS} [layer] m = Gemm (d, k)", "m"),
    "transposed weights": ("2,3", f"{ROWS} [layer] m = Gemm <transB = 1> (d, k, b)", "m"),
    "MatMul": ("3,2", f"{COLUMNS} [layer] m = MatMul (d, k)", "m"),
    "Relu": ("3,2", f"{COLUMNS} [layer] m = Gemm (d, k, b) r = Relu (m)", "r"),
    "Relu and Clip": (
        "3,2",
        f"{COLUMNS} [layer] m = Gemm (d, k, b) r = Relu (m) c = Clip (r, low, high)",
        "c",
    ),
}
OTHERS = {
    "one scale": ("3,2", "k = DequantizeLinear (w, one, zero) m = Gemm (d, k, b)", "m"),
    "scales of rows": ("2,3", f"{ROWS} t1 = Transpose (k) m = Gemm (d, t1, b)", "m"),
    "a factor": ("3,2", f"{COLUMNS} m = Gemm <alpha = 2.0> (d, k, b)", "m"),
    "no quantizer": ("3,2", f"{COLUMNS} m = Gemm (d, k, b) n = Neg (m)", "n"),
    "a bias of one row": ("3,2", f"{COLUMNS} m = Gemm (d, k, row)", "m"),
    "data without codes": ("3,2", f"{COLUMNS} e = Neg (d) m = Gemm (e, k, b)", "m"),
    "two readers": ("3,2", f"{COLUMNS} m = Gemm (d, k, b) n = Neg (m) o = Add (n, m)", "o"),
}


def model(shape: str, layer: str, end: str) -> ir.Model:
    text = TEXT.replace("SHAPE", shape).replace("LAYER", layer).replace("END", end)
    return ir.from_onnx_text(text)


@pytest.mark.parametrize("name", CASES)
def test_products_become_convolutions_of_one_place(name):
    reference, changed = (qgraph.load(model(*CASES[name])) for _ in range(2))
    assert changed.apply(WriteConvolutions()).count(SiteStatus.CHANGED) == 1
    (layer,) = changed.nodes("Conv")
    assert layer.name == "layer"
    assert not list(changed.nodes("Gemm", "MatMul"))
    assert changed.apply(WriteConvolutions()).count(SiteStatus.CHANGED) == 0
    proof = qgraph.prove(reference, changed, within="1step")
    assert proof.verdict in ("proved", "bounded")
    x = np.random.default_rng(0).uniform(-1, 13, (500, 3)).astype(np.float32)
    steps = [m.run({"x": x}, backend="ort")["y"] / np.float32(0.2) for m in (reference, changed)]
    # sums of three exact products, whose order may differ
    assert np.mean(np.rint(steps[0]) != np.rint(steps[1])) <= 0.01
    assert np.abs(steps[0] - steps[1]).max() <= 1.001


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay(name):
    changed = qgraph.load(model(*OTHERS[name]))
    assert changed.apply(WriteConvolutions()).count(SiteStatus.CHANGED) == 0


def test_a_convolution_of_other_codes_differs():
    layer = CASES["Gemm"]
    changed = qgraph.load(model(*layer))
    changed.apply(WriteConvolutions())
    other = qgraph.load(model(layer[0], layer[1], layer[2]))
    (decoder,) = [n for n in other.nodes("DequantizeLinear") if n.outputs[0].name == "k"]
    codes = decoder.inputs[0].const_value.numpy().copy()
    codes[0, 0] = 30
    decoder.inputs[0].const_value = ir.tensor(codes)
    x = np.full((1, 3), 9, np.float32)
    ours, theirs = (m.run({"x": x}, backend="numpy")["y"] for m in (other, changed))
    steps = round(float(np.abs(ours - theirs).max() / np.float32(0.2)))
    assert steps > 1
    proof = qgraph.prove(other, changed, within="1step")
    bounds = [region.bound.max_steps for region in proof.regions if region.bound is not None]
    assert proof.verdict == "different" or max(bounds) >= steps


@pytest.mark.parametrize("step", ["0.2", "1"])
def test_codes_of_fewer_bits_keep_their_limit(step):
    text = TEXT.replace("p = Q", "o = Q").replace("y = D", "p = Clip (o, z, top) y = D")
    text = text.replace("float t = {0.2}", f"float t = {{{step}}}")
    text = text.replace("uint8 z = {12}", "uint8 z = {12}, uint8 top = {27}")
    shape, layer, end = CASES["Gemm"]
    text = text.replace("SHAPE", shape).replace("LAYER", layer).replace("END", end)
    reference, changed = (qgraph.load(ir.from_onnx_text(text)) for _ in range(2))
    report = qgraph.deploy(changed, "qnn-htp")
    assert [layer.kernel for layer in report.layers] == ["convolution"]
    x = np.random.default_rng(0).uniform(-1, 13, (500, 3)).astype(np.float32)
    ours, theirs = (m.run({"x": x}, backend="ort")["y"] for m in (reference, changed))
    assert theirs.max() <= 15.001 * float(step)
    assert np.abs(ours - theirs).max() <= 1.001 * float(step)


def test_the_neural_processor_gets_a_kernel_for_scales_of_columns():
    deployed = qgraph.load(model(*CASES["Gemm"]))
    report = qgraph.deploy(deployed, "qnn-htp")
    assert [layer.kernel for layer in report.layers] == ["convolution"], report.layers
    assert report.certificate.verdict in ("proved", "bounded")

"""Biases that ONNX Runtime would add wrongly in an integer kernel, without a message."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.reporting.deploy_view import deploy_page
from qgraph.text import json_text

runtime = pytest.importorskip("onnxruntime")

TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[N,SHAPE] x) => (yy)
<float s = {0.04}, uint8 z = {128}, float t = {UNIT}, int8 o = {0}, float r = {0.0007},
 int32 i = {0}, float u = {0.08}> {
    q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
    v = DequantizeLinear (w, t, o)  BODY
    n = QuantizeLinear (c, u, z)    yy = DequantizeLinear (n, u, z)
}"""
GEMM = "e = DequantizeLinear (b, r, i)  [layer] c = Gemm <transB = 1> (d, v, e)"
CONV = "[layer] c = Conv (d, v, b)"
FLOATS = np.array([2.9, 1.2, 0.3, -2.1], np.float32)
CASES = {
    "another scale": (GEMM, "8", 0.01, (4, 8), np.int32([3000, -2000, 1500, 700]), "QGemm"),
    "beyond int32": (CONV, "4,1,1", 1e-8, (4, 4, 1, 1), FLOATS, None),
    "another scale, and beyond int32": (
        GEMM, "8", 1e-9, (4, 8), np.int32([3000, -2000, 1500, 700]), None,
    ),
}  # fmt: skip


@pytest.mark.cases(fast=1)
@pytest.mark.runtime
@pytest.mark.parametrize("case", CASES)
def test_the_bias_is_that_of_the_model(case, tmp_path):
    body, shape, unit, size, bias, kernel = CASES[case]
    text = TEXT.replace("BODY", body).replace("SHAPE", shape).replace("UNIT", str(unit))
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    codes = rng.integers(-60, 60, size).astype(np.int8)
    for name, array in (("w", codes), ("b", bias)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = qgraph.load(proto)
    result = qgraph.deploy(model, "onnxruntime-cpu")
    (layer,) = result.layers
    assert layer.kernel == kernel
    if kernel is None:
        assert layer.reason_id in ("QG013", "QG215", "QG216")
    once = model.to_proto()
    qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == once
    model.save(tmp_path / "out.onnx")
    x = rng.normal(0, 2, (3, *map(int, shape.split(",")))).astype(np.float32)
    data = np.clip(np.rint(x / np.float32(0.04)), -128, 127)[:, :8].reshape(3, -1)
    real = data @ codes.reshape(4, -1).T.astype(float) * (0.04 * unit)
    real += bias * (1 if bias.dtype == np.float32 else 0.0007)
    exact = np.clip(np.rint(real / 0.08), -128, 127)
    session = runtime.InferenceSession(
        str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"]
    )
    found = np.rint(session.run(None, {"x": x})[0].reshape(3, -1) / 0.08)
    assert np.abs(found - exact).max() <= 1
    assert len(np.unique(exact)) > 3


ADD = "m = MatMul (d, v)  k = Add (m, b)"
SHORT = "k = Conv (d, v, b)"
BIASED = {
    "Conv": ("8,4,4", f"{SHORT}  c = Identity (k)", True),
    "MaxPool": ("8,4,4", f"{SHORT}  c = MaxPool <kernel_shape = [2, 2]> (k)", True),
    "Relu and MaxPool": (
        "8,4,4", f"{SHORT}  p = Relu (k)  c = MaxPool <kernel_shape = [2, 2]> (p)", True,
    ),
    "MaxPool and Relu": (
        "8,4,4", f"{SHORT}  p = MaxPool <kernel_shape = [2, 2]> (k)  c = Relu (p)", False,
    ),
    "mean": ("8,4,4", f"{SHORT}  c = GlobalAveragePool (k)", False),
    "MatMul": ("8", f"{ADD}  c = Transpose (k)", True),
    "MatMul and Relu": ("8", f"{ADD}  c = Relu (k)", True),
    "rows": ("2,8", f"{ADD}  c = Identity (k)", True),
    "rows and Relu": ("2,8", f"{ADD}  c = Relu (k)", False),
    "a matrix": ("8", "m = MatMul (d, v)  k = Add (row, m)  c = Identity (k)", False),
}  # fmt: skip


@pytest.mark.cases(fast=3)
@pytest.mark.runtime
@pytest.mark.parametrize("case", BIASED)
def test_float_biases_that_are_rounded_are_found_and_quantized(case):
    """Weights of 2 bits have such large steps that a rounded bias changes codes."""
    shape, body, is_rounded = BIASED[case]
    rng = np.random.default_rng(0)
    text = TEXT.replace("BODY", body).replace("SHAPE", shape).replace("UNIT", "0.9")
    proto = onnx.parser.parse_model(text.replace("[N,", "[6,"))
    size = (4, 8, 1, 1) if "Conv" in body else (8, 4)
    bias = rng.uniform(-1, 1, 4).astype(np.float32)
    arrays = {"w": rng.integers(-1, 2, size).astype(np.int8), "b": bias, "row": bias[None]}
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    feeds = {"x": rng.normal(0, 2, (6, *map(int, shape.split(",")))).astype(np.float32)}
    plain = runtime.SessionOptions()
    plain.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL

    def codes(model, options=None):
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return np.rint(session.run(None, feeds)[0] / np.float32(0.08))

    exact = codes(proto, plain)
    differ = np.count_nonzero(codes(proto) != exact)
    found = list(qgraph.lint(qgraph.load(proto), "onnxruntime-cpu", select="QG303"))
    assert (differ > 0.03 * exact.size, len(found)) == (is_rounded, is_rounded)
    model = qgraph.load(proto)
    result = qgraph.deploy(model, "onnxruntime-cpu")
    assert not [each for each in result.findings if each.rule.id == "QG303"]
    assert not is_rounded or all(layer.kernel for layer in result.layers)
    assert np.mean(codes(model.to_proto()) != exact) <= 0.01


def test_a_bias_that_is_kept_is_in_the_headline():
    """The target rounds it, whatever is proved of the model as it is written."""
    text = TEXT.replace("BODY", CONV).replace("SHAPE", "8,4,4").replace("UNIT", "0.9")
    proto = onnx.parser.parse_model(text)
    for name, array in {"w": np.ones((4, 8, 1, 1), np.int8), "b": FLOATS}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result = qgraph.deploy(proto, "onnxruntime-cpu", keep="layer")
    sentence = deploy_page(json.loads(json_text(result.to_json()))).sentence
    assert "But onnxruntime-cpu can change layer silently: the bias moves by up to 0.0" in sentence

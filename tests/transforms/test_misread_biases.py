"""Biases that ONNX Runtime would add wrongly in an integer kernel, without a message."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph

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

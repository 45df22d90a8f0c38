"""Square weights that products share in both orientations, which OpenVINO 2026.4.1 misreads."""

from __future__ import annotations

import numpy as np
import onnx
import openvino
import pytest

import qgraph
from qgraph import load
from qgraph.reports import SiteStatus
from qgraph.transforms.runtime_faults import SeparateWeights

CODES = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
FAKE = "org.openvinotoolkit.FakeQuantize"
SHARED = {
    "floats": "y = MatMul (x, f) u = Gemm <transB = 1> (x, f)",
    "Transpose": "y = MatMul (x, f) t = Transpose (f) u = MatMul (x, t)",
    "Transpose and transB": """t = Transpose (f) y = Gemm <transB = 1> (x, t)
        u = Gemm <transB = 1> (x, f)""",
    "batches": "y = MatMul (x, f) t = Transpose <perm = [0, 2, 1]> (f) u = MatMul (x, t)",
    "Einsum": """y = MatMul (x, f) u = Einsum <equation = "ab,cb->ac"> (x, f)""",
    "codes": f"""{CODES} v = DequantizeLinear (w, s)
        y = MatMul (d, v) u = Gemm <transB = 1> (d, v)""",
    "codes of channels": f"""{CODES} v = DequantizeLinear <axis = 1> (w, c)
        t = DequantizeLinear <axis = 0> (w, c) y = MatMul (d, v) u = Gemm <transB = 1> (d, t)""",
    "one after the other": f"""{CODES} v = DequantizeLinear (w, s) y = MatMul (d, v)
        p = QuantizeLinear (y, s, z) e = DequantizeLinear (p, s, z) u = Gemm <transB = 1> (e, v)""",
    "FakeQuantize": f"""d = {FAKE} <levels = 256> (x, a, b, a, b)
        v = {FAKE} <levels = 255> (f, l, h, l, h) y = MatMul (d, v) u = Gemm <transB = 1> (d, v)""",
    "FakeQuantize of channels": f"""d = {FAKE} <levels = 256> (x, a, b, a, b)
        v = {FAKE} <levels = 255> (f, lc, hc, lc, hc) y = MatMul (d, v)
        u = Gemm <transB = 1> (d, v)""",
}
OTHERS = {
    "same orientation": "t = Transpose (f) y = MatMul (x, t) u = Gemm <transB = 1> (x, f)",
    "matrices of their own": "y = MatMul (x, f) u = Gemm <transB = 1> (x, g)",
    "data": "y = MatMul (x, x) u = Gemm <transB = 1> (x, x)",
    "first operand": "y = MatMul (f, x) u = Gemm <transB = 1> (x, f)",
}


def model(body: str) -> onnx.ModelProto:
    sizes = "3,8,8" if "[0, 2, 1]" in body else "8,8"
    proto = onnx.parser.parse_model(f"""<ir_version: 10,
        opset_import: ["": 21, "org.openvinotoolkit": 1]> net (float[{sizes}] x) => (y, u)
        <float s = {{0.03}}, uint8 z = {{128}}, float a = {{-3.84}}, float b = {{3.81}},
         float l = {{-1.27}}, float h = {{1.27}}> {{ {body} }}""")
    random = np.random.default_rng(1)
    codes = random.integers(-60, 60, (8, 8)).astype(np.int8)
    floats = codes * np.float32(0.01)
    scales = np.geomspace(0.01, 0.05, 8, dtype=np.float32)
    high = np.full((1, 8), 1.27, np.float32) * np.arange(1, 9, dtype=np.float32)
    arrays = {"w": codes, "c": scales, "lc": -high, "hc": high, "g": floats}
    arrays["f"] = np.stack([floats, 2 * floats, -floats]) if "3," in sizes else floats
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [size.dim_value for size in proto.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}


def distance(proto: onnx.ModelProto, expected: dict[str, np.ndarray]) -> float:
    """Return how far OpenVINO is from the expected results, relative to the largest."""
    read = openvino.Core().read_model(proto.SerializeToString())
    run = openvino.Core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = run(feeds(proto))
    return max(
        float(np.abs(results[name] - array).max() / np.abs(array).max())
        for name, array in expected.items()
    )


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("name", ["codes of channels", *SHARED])
def test_products_get_a_matrix_of_their_own(name):
    loaded = load(model(SHARED[name]))
    before = loaded.clone()
    report = loaded.apply(SeparateWeights())
    assert report.count(SiteStatus.CHANGED) == 1
    assert qgraph.prove(before, loaded).verdict == "proved"
    proto = before.to_proto()
    expected, found = (m.run(feeds(proto), backend="numpy") for m in (before, loaded))
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5)
    assert not loaded.apply(SeparateWeights()).sites


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay(name):
    assert not load(model(OTHERS[name])).apply(SeparateWeights()).sites


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize("name", [name for name in SHARED if name != "FakeQuantize of channels"])
def test_openvino_is_right_after_a_deployment_only(name):
    """Where the first line fails, OpenVINO has mended it: the trap ends with that version."""
    proto = model(SHARED[name])
    expected = load(proto).run(feeds(proto), backend="numpy")
    assert distance(proto, expected) > 0.1
    loaded = load(proto)
    deployment = qgraph.deploy(loaded, "openvino-cpu")
    assert deployment.certificate.verdict in ("proved", "bounded")
    assert distance(loaded.to_proto(), expected) < 0.02
    once = loaded.to_proto()
    qgraph.deploy(loaded, "openvino-cpu")
    assert loaded.to_proto() == once

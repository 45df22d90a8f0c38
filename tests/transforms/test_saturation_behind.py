"""Products of codes after operators that keep scales, on processors that cut off sums."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import qgraph
from qgraph import transforms

NO_VNNI = "openvino-cpu@x86-64-no-vnni"
VNNI = "openvino-cpu@x86-64"
DATA = {
    "FakeQuantize": "d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, g, k, g, k)",
    "QuantizeLinear": "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)",
}
WEIGHTS = {
    "stored": "v = DequantizeLinear (w, s, i)",
    "FakeQuantize": "v = org.openvinotoolkit.FakeQuantize <levels = 255> (f, l, h, l, h)",
    "QuantizeLinear": "c = QuantizeLinear (f, s, i)  v = DequantizeLinear (c, s, i)",
}
BETWEEN = {
    "Relu": "p = Relu (d)  [product] y = MatMul (p, v)",
    "Mul": "p = Mul (d, t)  [product] y = MatMul (p, v)",
    "Transpose": """a = Mul (d, t)  b = Transpose <perm = [0, 2, 1]> (a)
        p = Transpose <perm = [0, 2, 1]> (b)  [product] y = MatMul (p, v)""",
    "Concat": "a = Concat <axis = 1> (d, d)  p = Relu (a)  [product] y = MatMul (p, v)",
    "Concat alone": "p = Concat <axis = 1> (d, d)  [product] y = MatMul (p, v)",
    "Identity": "p = Identity (d)  [product] y = MatMul (p, v)",
    "weights": "p = Mul (v, t)  [product] y = MatMul (d, p)",
    "Gemm": """a = Squeeze (d, n)  p = Relu (a)  e = Gemm (p, v)
        [product] y = Unsqueeze (e, n)""",
    "Conv": """p = Relu (d)  a = Unsqueeze (v, n)  b = Transpose <perm = [2, 1, 0]> (a)
        e = Transpose <perm = [0, 2, 1]> (p)  [product] y = Conv (e, b)""",
    "AveragePool": """a = Unsqueeze (v, n)
        b = Transpose <perm = [2, 1, 0]> (a)  e = Transpose <perm = [0, 2, 1]> (d)
        r = AveragePool <kernel_shape = [2]> (e)  [product] y = Conv (r, b)""",
    "Einsum": """p = Relu (d)
        [product] y = Einsum <equation = "bij,jk->bik"> (p, v)""",
}
OTHERS = {
    "data": "p = Relu (d)  [product] y = MatMul (p, e)",
    "second": "p = Mul (e, t)  [product] y = MatMul (d, p)",
}


def network(data: str, weights: str, body: str, largest: int = 127) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"""<ir_version: 8,
         opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[1,5,64] x) => (float y)
        <float g = {{0}}, float k = {{2.55}}, float s = {{0.01}}, uint8 z = {{0}}, int8 i = {{0}},
         float l = {{-1.27}}, float h = {{1.27}}, float t = {{2}}, int64[1] n = {{0}}> {{
            {DATA[data]}  {WEIGHTS[weights]}
            {body}
        }}""")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    codes = np.random.default_rng(0).integers(largest - 20, largest + 1, (64, 8)).astype(np.int8)
    for name, array in (("w", codes), ("f", codes.astype(np.float32) * np.float32(0.01))):
        if any(name in node.input for node in proto.graph.node):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def named_by_lint(model: onnx.ModelProto | qgraph.Model) -> list[str]:
    return [each.nodes[0] for each in qgraph.lint(model, NO_VNNI, select="QG312")]


RUN = """import sys, numpy, openvino
model = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
arrays = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], model([arrays[name] for name in arrays.files])[0])"""


def without_vnni(model: qgraph.Model, feeds: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    """Return what OpenVINO computes with kernels of processors without VNNI."""
    pytest.importorskip("openvino")
    paths = [folder / name for name in ("model.onnx", "x.npz", "y.npy")]
    model.save(paths[0])
    np.savez(paths[1], **feeds)
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", RUN, *map(str, paths)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    return np.load(paths[2])


@pytest.mark.cases(fast=2, slow=8)
@pytest.mark.runtime
@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("data", DATA)
def test_products_behind_operators_are_right_without_vnni(data, weights, name, tmp_path):
    """OpenVINO 2026.4.1 was 37 % off."""
    proto = network(data, weights, BETWEEN[name])
    model = qgraph.load(proto)
    assert len(named_by_lint(model)) == 1
    result = qgraph.deploy(model, NO_VNNI)
    assert str(result.certificate.verdict) == "proved"
    assert not result.saturating
    assert not named_by_lint(model)
    if name not in ("Einsum", "AveragePool"):  # a mean stays in float, so no codes are multiplied
        (layer,) = result.layers
        assert (layer.kernel, layer.reason_id) == (None, "QG239")
        assert not result.unquantized
    x = np.random.default_rng(1).uniform(1.5, 3, (1, 5, 64)).astype(np.float32)
    expected = qgraph.load(proto).run({"x": x}, backend="numpy")["y"]
    np.testing.assert_allclose(without_vnni(model, {"x": x}, tmp_path), expected, rtol=1e-4)


@pytest.mark.cases(fast=1)
@pytest.mark.runtime
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("data", DATA)
def test_products_of_data_behind_operators_are_right_without_vnni(data, name, tmp_path):
    body = "o = QuantizeLinear (b, s, i)  e = DequantizeLinear (o, s, i)" + OTHERS[name]
    proto = network(data, "stored", body)
    proto.graph.node.remove(next(each for each in proto.graph.node if "w" in each.input))
    del proto.graph.initializer[-1]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("b", 1, [1, 64, 8]))
    model = qgraph.load(proto)
    assert named_by_lint(model) == ["product"]
    result = qgraph.deploy(model, NO_VNNI)
    assert not result.saturating
    assert not named_by_lint(model)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.uniform(1.5, 3, (1, 5, 64)), "b": rng.uniform(1, 1.3, (1, 64, 8))}
    feeds = {key: array.astype(np.float32) for key, array in feeds.items()}
    expected = qgraph.load(proto).run(feeds, backend="numpy")["y"]
    np.testing.assert_allclose(without_vnni(model, feeds, tmp_path), expected, rtol=1e-4)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["Relu", "Mul", "Einsum", "weights"])
def test_narrow_weights_behind_operators_stay(weights, name):
    proto = network("FakeQuantize", weights, BETWEEN[name], largest=64)
    model = qgraph.load(proto)
    assert not named_by_lint(model)
    qgraph.deploy(model, NO_VNNI)
    assert not list(model.nodes("Max"))


@pytest.mark.parametrize("name", ["Relu", "weights"])
def test_other_processors_get_the_product_as_it_is(name):
    model = qgraph.load(network("FakeQuantize", "FakeQuantize", BETWEEN[name]))
    result = qgraph.deploy(model, VNNI)
    assert not list(model.nodes("Max"))
    assert not result.layers
    assert "products of 1 layer saturate" in result.to_json()["conditions"][-1]


@pytest.mark.parametrize("kind", ["MatMul", "Einsum"])
def test_the_limit_changes_no_result_that_is_infinite(kind):
    """3e38 times -2 is minus infinity, which a Max with the lowest number would change."""
    body = BETWEEN["weights" if kind == "MatMul" else "Einsum"].replace("(v, t)", "(v, r)")
    proto = network("FakeQuantize", "FakeQuantize", body)
    huge = onnx.numpy_helper.from_array(np.float32(-3.4e38), "r")
    if kind == "MatMul":
        proto.graph.initializer.append(huge)
    before, after = qgraph.load(proto), qgraph.load(proto)
    (site,) = after.apply(transforms.FloatProducts(data=True))
    assert site.outcome == "changed"
    x = np.random.default_rng(0).uniform(1, 3, (1, 5, 64)).astype(np.float32)
    results = [each.run({"x": x}, backend="numpy")["y"] for each in (before, after)]
    assert np.isfinite(results[0]).all() == (kind == "Einsum")
    assert np.array_equal(*results)

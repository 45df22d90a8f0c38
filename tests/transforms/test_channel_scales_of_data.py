"""Conv with scales along input channels: ONNX Runtime takes it, and fails or is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph import load
from qgraph.reasons import id_of

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.runtime

X = np.random.default_rng(1).normal(size=(1, 4, 5, 5)).astype(np.float32)


def model(kind: str, scales: str = "{0.05, 0.06, 0.07, 0.08}") -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[1,4,5,5] x) => (float[1,4,3,3] y)
        <float s = {{0.03}}, uint8 z = {{128}}, float t = {{0.01}}, {kind} p = {{0}},
         float[4] u = {scales}, uint8[4] o = {{128, 128, 128, 128}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            k = DequantizeLinear (w, t, p)
            [layer] f = Conv (d, k)
            n = QuantizeLinear <axis = 1> (f, u, o)
            y = DequantizeLinear <axis = 1> (n, u, o)
        }}""")
    codes = np.random.default_rng(0).integers(-7, 8, (4, 4, 3, 3)).reshape(-1).tolist()
    dtype = onnx.TensorProto.DataType.Value(kind.upper())
    proto.graph.initializer.append(onnx.helper.make_tensor("w", dtype, (4, 4, 3, 3), codes))
    return proto


def run(proto: onnx.ModelProto) -> np.ndarray:
    return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})[0]


def test_onnxruntime_fails_on_weights_of_8_bits_only():
    """Where this fails, the trap of the profile ends with that version of ONNX Runtime."""
    run(model("int4"))
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="zero point"):
        run(model("int8"))


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("kind", "prefer"), [("int8", "speed"), ("int8", "size"), ("int4", "speed")]
)
def test_the_layer_is_left_in_float(kind, prefer):
    loaded = load(model(kind))
    deployment = qgraph.deploy(loaded, "onnxruntime-cpu", prefer=prefer)
    (layer,) = deployment.left
    assert "one scale per axis" in str(layer.reason)
    assert kind == "int4" or id_of(layer.reason) == "QG012"  # why the scales cannot move
    expected = load(model(kind)).run({"x": X}, backend="numpy")["y"]
    np.testing.assert_allclose(run(loaded.to_proto()), expected, atol=1e-6)
    once = loaded.to_proto()
    qgraph.deploy(loaded, "onnxruntime-cpu", prefer=prefer)
    assert loaded.to_proto() == once


def test_one_scale_keeps_the_kernel():
    proto = model("int8", "{0.05, 0.05, 0.05, 0.05}")
    loaded = load(proto)
    qgraph.deploy(loaded, "onnxruntime-cpu")
    expected = load(proto).run({"x": X}, backend="numpy")["y"]
    np.testing.assert_allclose(run(loaded.to_proto()), expected, atol=1e-6)


def test_scales_along_the_input_axis_of_weights_leave_the_layer_in_float():
    """ONNX Runtime takes them for those of the output channels."""
    proto = model("int8", "{0.05, 0.05, 0.05, 0.05}")
    proto.graph.node[2].attribute.append(onnx.helper.make_attribute("axis", 1))
    for node in proto.graph.node[-2:]:
        node.ClearField("attribute")
    scales = np.float32([0.01, 0.03, 0.1, 0.3])
    arrays = {"t": scales, "p": np.zeros(4, np.int8), "u": np.float32(0.05), "o": np.uint8(128)}
    for name, array in arrays.items():
        old = next(each for each in proto.graph.initializer if each.name == name)
        old.CopyFrom(onnx.numpy_helper.from_array(array, name))
    loaded = load(proto)
    expected = load(proto).run({"x": X}, backend="numpy")["y"]
    assert np.count_nonzero(np.abs(run(proto) - expected) > 0.04) > 15  # of 36, by a step
    (layer,) = qgraph.deploy(loaded, "onnxruntime-cpu").left
    assert "scales differ along the input axis" in str(layer.reason)
    np.testing.assert_allclose(run(loaded.to_proto()), expected, atol=1e-6)

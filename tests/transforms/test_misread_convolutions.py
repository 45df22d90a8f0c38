"""Convolutions that OpenVINO 2026.4.1 computes wrongly or refuses, and what is deployed instead.

Some are wrong on processors with AMX only, where these tests compare with the old form.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph.inventory.layers import quantized_layers
from qgraph.inventory.openvino_convolutions import misread_convolutions_of

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (float[SHAPE] x) => (y) <float s = {SCALE}, KIND z = {POINT}, float[1] t = {0.05},
     uint8 o = {128}, float u = {0.02}, float v = {0.004}, uint8 n = {100}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        w = DequantizeLinear (codes, v)
        BODY
        r = QuantizeLinear (c, t, o)
        y = DequantizeLinear (r, t, o)
    }"""
JOINED = """a = Mul (d, u) e = QuantizeLinear (a, u, n) f = DequantizeLinear (e, u, n)
    g = Concat <axis = 1> (d, f) c = Conv <group = 4> (g, w)"""
GROUPS = "c = Conv <group = 2, pads = [1, 1, 1, 1]> (d, w)"

# data, type of codes, zero point, weights, body
WRONG = {
    "activation behind ConvTranspose": (
        *("2,5,6,6", "uint8", 0, (5, 8, 3, 3)),
        "b = ConvTranspose <strides = [2, 2]> (d, w) c = HardSwish (b)",
    ),
    "groups of 24 channels": ("1,48,8,8", "uint8", 128, (48, 24, 3, 3), GROUPS),
    "depth 1": (
        *("2,1,1,4,4", "uint8", 7, (8, 1, 3, 3, 3)),
        "c = Conv <pads = [1, 1, 1, 1, 1, 1]> (d, w)",
    ),
    "zero points joined": ("2,6,6,6", "uint8", 128, (12, 3, 3, 3), JOINED),
    "depthwise over three axes": (
        *("1,8,4,4,4", "uint8", 9, (8, 1, 3, 3, 3)),
        "c = Conv <group = 8> (d, w)",
    ),
    "two filters for each of few channels": (
        *("1,4,8,7", "uint8", 128, (8, 1, 2, 2)),
        "c = Conv <group = 4, strides = [1, 2]> (d, w)",
    ),
    "INT4 with a zero point": ("1,8,6,6", "int4", -3, (8, 8, 3, 3), "c = Conv (d, w)"),
}
RIGHT = {
    "sums behind ConvTranspose": (
        *("2,5,6,6", "uint8", 0, (5, 8, 3, 3)),
        "b = ConvTranspose <strides = [2, 2]> (d, w) c = Mul (b, t)",
    ),
    "channels in multiples of 4": (
        *("2,8,6,6", "uint8", 0, (8, 8, 3, 3)),
        "b = ConvTranspose <strides = [2, 2]> (d, w) c = HardSwish (b)",
    ),
    "groups of 32 channels": ("1,64,8,8", "uint8", 128, (64, 32, 3, 3), GROUPS),
    "depth 2": (
        *("2,1,2,4,4", "uint8", 7, (8, 1, 3, 3, 3)),
        "c = Conv <pads = [1, 1, 1, 1, 1, 1]> (d, w)",
    ),
    "equal zero points joined": (
        *("2,6,6,6", "uint8", 100, (12, 3, 3, 3), JOINED.replace(", n)", ", z)")),
    ),
    "one filter for each of few channels": (
        *("1,4,8,7", "uint8", 128, (4, 1, 2, 2)),
        "c = Conv <group = 4, strides = [1, 2]> (d, w)",
    ),
    "two filters for each of many channels": (
        *("1,8,8,7", "uint8", 128, (16, 1, 2, 2)),
        "c = Conv <group = 8, strides = [1, 2]> (d, w)",
    ),
    "two factors for each channel": (
        *("1,4,8,7", "uint8", 128, (8, 1, 1, 1)),
        "c = Conv <group = 4> (d, w)",
    ),
    "INT4 without": ("1,8,6,6", "int4", 0, (8, 8, 3, 3), "c = Conv (d, w)"),
}


def model(name: str, other: int | None = None) -> onnx.ModelProto:
    shape, kind, point, weights, body = (WRONG | RIGHT)[name]
    point = point if other is None else other
    text = TEXT.replace("SHAPE", shape).replace("KIND", kind).replace("POINT", str(point))
    text = text.replace("SCALE", "0.1" if kind == "int4" else "0.02")
    proto = onnx.parser.parse_model(text.replace("BODY", body))
    codes = np.random.default_rng(0).integers(-127, 128, weights).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "codes"))
    return proto


def found(proto: onnx.ModelProto) -> list[str]:
    loaded = ir.from_proto(proto)
    return [why for _, why in misread_convolutions_of(loaded, list(quantized_layers(loaded)))]


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_they_are_found_by_shape_and_zero_point(name):
    assert len(found(model(name))) == (name in WRONG)


@pytest.mark.cases(fast=0, slow=6)
@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_deployment_is_right_and_is_compiled_at_the_defaults(name):
    openvino = pytest.importorskip("openvino")
    proto = model(name)
    loaded = qgraph.load(proto)
    report = qgraph.deploy(loaded, "openvino-cpu")
    assert report.is_executed  # at the default precision
    assert not found(loaded.to_proto()) or report.left
    shape = [int(size) for size in WRONG[name][0].split(",")]
    x = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    (right,) = loaded.run({"x": x}, backend="numpy").values()
    assert np.array_equal(right, *qgraph.load(proto).run({"x": x}, backend="numpy").values())
    core = openvino.Core()
    read = core.read_model(loaded.to_proto().SerializeToString(), b"")
    for threads in (1, 2):
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        y = core.compile_model(read, "CPU", options)({"x": x})[0]
        steps = np.abs(y - right) / np.float32(0.05)
        assert steps.max() < 1.5
        assert (steps > 0.5).mean() < 0.01


@pytest.mark.cases(fast=0, slow=3)
@pytest.mark.slow
@pytest.mark.parametrize("point", [-8, -3, 7])
def test_narrow_data_get_codes_of_8_bits_and_an_integer_kernel(point):
    pytest.importorskip("openvino")
    loaded = qgraph.load(model("INT4 with a zero point", point))
    report = qgraph.deploy(loaded, "openvino-cpu")
    assert [layer.kernel for layer in report.layers] in (["Convolution u8"], ["Convolution i8"])
    assert not found(loaded.to_proto())

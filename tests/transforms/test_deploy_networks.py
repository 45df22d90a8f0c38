"""Small networks by hand, deployed to ONNX Runtime and run there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.execution.inputs import make_inputs
from qgraph.inventory.executed import executed

onnxruntime = pytest.importorskip("onnxruntime")

HEAD = """<ir_version: 8, opset_import: ["": 17]>
    net ({inputs}) => ({outputs})
    <float s = {{0.03}}, uint8 u = {{0}}, uint8 m = {{128}}, float t = {{0.05}}, float[8] v =
     {{0.004, 0.005, 0.003, 0.004, 0.006, 0.002, 0.003, 0.004}}, int64[2] halves = {{4, 4}},
     int64[1] one = {{1}}, int64[1] six = {{6}}, int64[1] two = {{2}}> {{
        q = QuantizeLinear (x, s, m)
        d = DequantizeLinear (q, s, m)
        {nodes}
    }}"""

PAIR = "{0}q = QuantizeLinear ({0}, {1}) {0}d = DequantizeLinear ({0}q, {1})"
CODED, SIGNED = PAIR.format("{0}", "s, u"), PAIR.format("{0}", "t, m")

NETWORKS = {
    # inputs, outputs, weights and biases, nodes, layers in integers of all layers
    "parts": (
        "float[N, 4, 6, 6] x",
        "float[N, 4, 6, 6] yd, float[N, 4, 4, 6] zd",
        {"w": (8, 4, 3, 3), "b": (8,), "k": (4, 4, 1, 1), "l": (4, 4, 1, 1), "c": (4,)},
        f"""w_ = DequantizeLinear <axis = 0> (w, v)
        a = Conv <pads = [1, 1, 1, 1]> (d, w_, b)
        r = Relu (a) {CODED.format("r")}
        e, f = Split <axis = 1> (rd, halves)
        k_ = DequantizeLinear (k, s)
        y = Conv (e, k_, c) {SIGNED.format("y")}
        g = Slice (f, one, six, two)
        h = Slice (g, one, six, two)
        l_ = DequantizeLinear (l, s)
        i = Slice (f, one, five, two)
        z = Conv (i, l_) {SIGNED.format("z")}""",
        3,
    ),
    "factors of Gemm": (
        "float[N, 8] x",
        "float[N, 4] zd",
        {"w": (8, 8), "b": (8,), "k": (4, 8), "c": (4,)},
        f"""w_ = DequantizeLinear <axis = 1> (w, v)
        y = Gemm <alpha = 0.5, beta = 0.25> (d, w_, b) {SIGNED.format("y")}
        k_ = DequantizeLinear (k, s)
        z = Gemm <alpha = 3.0, transB = 1> (yd, k_, c) {SIGNED.format("z")}""",
        2,
    ),
    "shared weights, two outputs": (
        "float[N, 8, 6, 6] x",
        "float[N, 8, 6, 6] yd, float[N, 8] z",
        {"w": (8, 8, 3, 3), "b": (8,), "c": (8,), "k": (8, 8)},
        f"""w_ = DequantizeLinear <axis = 0> (w, v)
        a = Conv <pads = [1, 1, 1, 1]> (d, w_, b)
        r = Relu (a) {CODED.format("r")}
        y = Conv <pads = [1, 1, 1, 1]> (rd, w_, c) {SIGNED.format("y")}
        p = GlobalAveragePool (yd)
        f = Flatten (p) {SIGNED.format("f")}
        k_ = DequantizeLinear <axis = 0> (k, v)
        z = Gemm <transB = 1> (fd, k_, c)""",
        3,
    ),
    "groups, dilations, uneven pads": (
        "float[N, 4, 9, 9] x",
        "float[n, c, h, o] zd",
        {"w": (8, 2, 3, 3), "b": (8,), "k": (8, 1, 3, 3), "c": (8,)},
        f"""w_ = DequantizeLinear <axis = 0> (w, v)
        a = Conv <group = 2, dilations = [2, 2], pads = [2, 1, 0, 3]> (d, w_, b)
        r = Clip (a, low, high) {CODED.format("r")}
        k_ = DequantizeLinear <axis = 0> (k, v)
        z = Conv <group = 8, strides = [1, 2], pads = [0, 0, 1, 1]> (rd, k_, c)
        {SIGNED.format("z")}""",
        2,
    ),
    "one axis": (
        "float[N, 4, 20] x",
        "float[n, c, h] zd",
        {"w": (8, 4, 5), "b": (8,), "k": (8, 1, 3), "c": (8,)},
        f"""w_ = DequantizeLinear <axis = 0> (w, v)
        a = Conv <pads = [2, 2], strides = [2]> (d, w_, b)
        r = Relu (a) {CODED.format("r")}
        k_ = DequantizeLinear <axis = 0> (k, v)
        z = Conv <group = 8> (rd, k_, c) {SIGNED.format("z")}""",
        2,
    ),
    "colours": (
        "float[N, 3, 9, 9] x",
        "float[n, c, h, o] zd",
        {"w": (8, 3, 3, 3), "b": (8,)},
        f"""w_ = DequantizeLinear <axis = 0> (w, v)
        a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (d, w_, b)
        z = Mul (a, high) {SIGNED.format("z")}""",
        1,
    ),
}


def network(name: str) -> onnx.ModelProto:
    inputs, outputs, constants, nodes, _ = NETWORKS[name]
    nodes = nodes.replace("five", "six")
    proto = onnx.parser.parse_model(HEAD.format(inputs=inputs, outputs=outputs, nodes=nodes))
    random = np.random.default_rng(0)
    arrays = {"low": np.float32(0), "high": np.float32(6)}
    for key, shape in constants.items():
        is_weight = len(shape) > 1
        codes = random.integers(-64, 65, shape).astype(np.int8)
        arrays[key] = codes if is_weight else random.normal(0, 0.2, shape).astype(np.float32)
    stored = [onnx.numpy_helper.from_array(np.asarray(a), key) for key, a in arrays.items()]
    proto.graph.initializer.extend(stored)
    return proto


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_runs_in_integers(name):
    proto, expected = network(name), NETWORKS[name][-1]
    model = qgraph.load(proto)
    feeds = make_inputs(model.inputs)
    found = qgraph.deploy(model, "onnxruntime-cpu", inputs=feeds)
    assert found.is_executed
    assert [layer.kernel is not None for layer in found.layers] == expected * [True]
    assert found.accuracy.to_json()["violated_bounds"] == 0

    once = model.to_proto()
    results = [
        onnxruntime.InferenceSession(
            each.SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, feeds)
        for each in (proto, once)
    ]
    for before, after in zip(*results, strict=True):
        steps = np.abs(before - after) / 0.05
        assert steps.max() < 2.5  # each of two or three segments may add a step
        assert (steps > 0.5).mean() < 0.02
    qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == once


def test_only_sums_that_change_anyway_get_a_fourth_channel():
    for operator, added in (("Mul", 1), ("Min", 0)):  # Min with 6 changes no code
        model = network("colours")
        conv, last = (node for node in model.graph.node if node.op_type in ("Conv", "Mul"))
        last.op_type = operator
        del conv.input[2:]
        deployed = qgraph.load(model)
        qgraph.deploy(deployed, "onnxruntime-cpu")
        assert len(list(deployed.nodes("Pad"))) == added


PACKED_BEHIND_CODES = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1,
                                            "com.microsoft": 1]>
    net (float[N,32] x) => (float[N,4] y, float[N,32] z) <float s = {0.0625}, uint8 p = {128}> {
        z = qonnx.custom_op.general.BipolarQuant (x, s)
        q = QuantizeLinear (x, s, p)
        d = DequantizeLinear (q, s, p)
        y = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (d, w, t)
    }"""


@pytest.mark.slow
def test_a_layer_that_only_the_result_has_counts_as_gained():
    """ONNX Runtime refuses the input, in which MatMulNBits is no layer of two quantizers."""
    proto = onnx.parser.parse_model(PACKED_BEHIND_CODES)
    weights = np.random.default_rng(0).integers(0, 256, (4, 1, 16)).astype(np.uint8)
    for name, array in (("w", weights), ("t", np.full(4, 0.25, np.float32))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = qgraph.load(proto)
    qgraph.deploy(model, "onnxruntime-cpu")
    assert executed(model.ir).kernels["MatMulIntegerToFloat"] == 1
    once = model.to_proto()
    qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == once


@pytest.mark.slow
def test_a_conversion_decodes_weights_at_once():
    """ONNX Runtime refuses the input, and has no kernel on codes for its only layer."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17,
                                                       "qonnx.custom_op.general": 1]>
        net (float[1,3,4,4] x) => (float[1,2,6,6] y, float[1,3,4,4] z)
        <float s = {0.0625}, uint8 p = {128}, int8 o = {0}> {
            z = qonnx.custom_op.general.BipolarQuant (x, s)
            q = QuantizeLinear (x, s, p)
            d = DequantizeLinear (q, s, p)
            v = DequantizeLinear (w, s, o)
            y = ConvTranspose (d, v)
        }""")
    codes = np.random.default_rng(0).integers(-64, 65, (3, 2, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    model = qgraph.load(proto)
    qgraph.deploy(model, "onnxruntime-cpu")
    (layer,) = model.nodes("ConvTranspose")
    assert np.array_equal(layer.inputs[1].const_value.numpy(), codes * np.float32(0.0625))
    once = model.to_proto()
    qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == once

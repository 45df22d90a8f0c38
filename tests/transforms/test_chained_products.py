"""Two products of few rows become one kernel in OpenVINO 2026.4.1, which reads beyond its data."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import infer
from qgraph.inventory.layers import quantized_layers
from qgraph.inventory.openvino_traps import chained_products

TEXT = """<ir_version: 10, opset_import: ["": 21]> net (float[SHAPE,32] x) => (y)
    <float s = {0.02}, uint8 z = {128}, float t = {0.003}, float[16] b = {@16@},
     float[8] c = {@8@}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v_ = DequantizeLinear (v, t)
        w_ = DequantizeLinear (w, t)
        FIRST
        e = QuantizeLinear (k, s, z)
        f = DequantizeLinear (e, s, z)
        SECOND
        r = QuantizeLinear (n, s, z)
        y = DequantizeLinear (r, s, z)
    }"""
PLAIN = "k = MatMul (d, v_)", "n = MatMul (f, w_)"
WRONG = {
    "no bias": ("4", *PLAIN),
    "one row": ("1", *PLAIN),
    "the first has a bias": ("4", "k = Gemm (d, v_, b)", PLAIN[1]),
    "the second has a bias": ("4", PLAIN[0], "n = Gemm (f, w_, c)"),
    "Relu between": ("4", "a = MatMul (d, v_) k = Relu (a)", PLAIN[1]),
}
RIGHT = {
    "both have a bias": ("4", "k = Gemm (d, v_, b)", "a = MatMul (f, w_) n = Add (a, c)"),
    "nine rows": ("9", *PLAIN),
    "open rows": ("N", *PLAIN),
    "three axes": ("1, 4", *PLAIN),
}


def model(name: str) -> onnx.ModelProto:
    shape, first, second = (WRONG | RIGHT)[name]
    text = TEXT.replace("SHAPE", shape).replace("FIRST", first).replace("SECOND", second)
    for size in (8, 16):
        text = text.replace(f"@{size}@", ", ".join(["0.3", "-0.2"] * (size // 2)))
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for key, sizes in (("v", (32, 16)), ("w", (16, 8))):
        codes = random.integers(-127, 128, sizes).astype(np.int8)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, key))
    return proto


def found(proto: onnx.ModelProto) -> int:
    loaded = ir.from_proto(proto)
    facts, layers = infer(loaded), list(quantized_layers(loaded))
    return len(list(chained_products(layers, lambda value: facts.get(value, UNKNOWN).shape)))


@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_they_are_found_by_their_rows_and_biases(name):
    assert found(model(name)) == (name in WRONG)


@pytest.mark.cases(fast=0, slow=4)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_a_deployment_is_right(name):
    openvino = pytest.importorskip("openvino")
    proto = model(name)
    loaded = qgraph.load(proto)
    report = qgraph.deploy(loaded, "openvino-cpu@x86-64")
    # with two biases, the kernel of both is right, and in float
    assert len(report.left) == (2 if name == "both have a bias" else name in WRONG)
    assert not found(loaded.to_proto())
    shape = [int(n) if n.isdigit() else 4 for n in (WRONG | RIGHT)[name][0].split(", ")]
    x = np.random.default_rng(1).uniform(-2, 2, (*shape, 32)).astype(np.float32)
    (right,) = loaded.run({"x": x}, backend="numpy").values()
    core = openvino.Core()
    read = core.read_model(loaded.to_proto().SerializeToString(), b"")
    for threads in (1, 2):
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        y = core.compile_model(read, "CPU", options)({"x": x})[0]
        steps = np.abs(y - right) / np.float32(0.02)
        assert steps.max() < 1.5
        assert (steps > 0.5).mean() < 0.05
    once = loaded.to_proto()
    qgraph.deploy(loaded, "openvino-cpu@x86-64")
    assert loaded.to_proto() == once

"""What profiles say of kernels, compared with the graphs that installed runtimes execute."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.inventory.executed import executed
from qgraph.inventory.layers import quantized_layers
from qgraph.targets.engine import KernelMatch, NoKernel, kernel_of
from qgraph.targets.reader import profile_of
from tests.targets.conftest import PAIR, Net

CONV = Net()
MATMUL = Net("MatMul")
GEMM = Net("Gemm")
TRANSPOSED = Net("ConvTranspose", x_zero=0)
ENDS = ", uint8 lo = {0}, uint8 hi = {15}"
SIGNED_ENDS = ", int8 lo = {-8}, int8 hi = {7}"
CLIPPED = "q = QuantizeLinear (x, xs, xz)  k = Clip (q, lo, hi)  d = DequantizeLinear (k, xs, xz)"
MOVED = "q = QuantizeLinear (x, xs, xz)  e = DequantizeLinear (q, xs, xz)  d = MOVE"
OPEN = "y = Neg (c)"
FLOATS = ", float[4] b = {1, 2, 3, 4}"
WIDE = ", int32[4] n = {100, 200, 300, 400}, float bs = {0.001}"
OFF = WIDE.replace("0.001", "0.00102")
DECODED = (", b", "b = DequantizeLinear (n, bs)")
EIGHT = ", float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}"
WIDE_EIGHT = ", int32[8] n = {1, 2, 3, 4, 5, 6, 7, 8}, float bs = {0.001}"
FAKE = """lo = Constant <value_float = 0.0> ()  hi = Constant <value_float = 6.0> ()
d = org.openvinotoolkit.FakeQuantize <levels = LEVELS> (x, lo, hi, lo, hi)"""


def adds(bias: str) -> str:
    return (
        f"{bias} a = Add (c, b)  yq = QuantizeLinear (a, ys, yz)  y = DequantizeLinear (yq, ys, yz)"
    )


NETS = {
    "conv": CONV,
    "conv of opset 13": CONV.but(opset=13),
    "conv, signed": CONV.but(x="int8", y="int8"),
    "conv, signed result": CONV.but(y="int8"),
    "conv, signed data": CONV.but(x="int8"),
    "conv, signed with zero point 0": CONV.but(x="int8", y="int8", x_zero=0, y_zero=0),
    "conv, scales per channel": CONV.but(channels=4),
    "conv, unsigned weights": CONV.but(w="uint8", w_zero=107),
    "conv, weights with middle zero point": CONV.but(w="uint8", w_zero=128),
    "conv, weights with zero point": CONV.but(w_zero=3),
    "conv, weights without zero point": CONV.but(w_zero=None),
    "conv, four bits": CONV.but(w="int4"),
    "conv, 16-bit data": CONV.but(x="uint16", y="uint16"),
    "conv, clipped codes": CONV.but(data=CLIPPED, more=ENDS),
    "conv, clipped signed codes": CONV.but(data=CLIPPED, x="int8", x_zero=0, more=SIGNED_ENDS),
    "conv, clipped weights": CONV.but(
        weight="k = Clip (w, lo, hi)  v = DequantizeLinear (k, ws ZERO)", more=SIGNED_ENDS
    ),
    "conv, transposed data": CONV.but(
        data=MOVED.replace("MOVE", "Transpose <perm = [0, 1, 3, 2]> (e)")
    ),
    "conv, Tanh of codes": CONV.but(data=MOVED.replace("MOVE", "Tanh (e)")),
    "conv, divided data": CONV.but(
        data="""k = Div (x, xs)  r = Round (k)  i = Clip (r, lo, hi)  d = Mul (i, xs)""",
        more=", float lo = {0}, float hi = {255}",
    ),
    "conv, float bias": CONV.but(bias=(", b", ""), more=FLOATS),
    "conv, int32 bias": CONV.but(bias=DECODED, more=WIDE),
    "conv, int32 bias of another scale": CONV.but(bias=DECODED, more=OFF),
    "conv, redundant Relu": CONV.but(y_zero=0, behind=f"r = Relu (c) {PAIR.replace('(c,', '(r,')}"),
    "conv, Relu": CONV.but(behind=f"r = Relu (c) {PAIR.replace('(c,', '(r,')}"),
    "conv, narrow Clip": CONV.but(
        behind=f"r = Clip (c, lo, hi) {PAIR.replace('(c,', '(r,')}",
        more=", float lo = {0}, float hi = {3}",
    ),
    "conv, Mul": CONV.but(behind=f"r = Mul (c, ys) {PAIR.replace('(c,', '(r,')}"),
    "conv, LeakyRelu": CONV.but(behind=f"r = LeakyRelu (c) {PAIR.replace('(c,', '(r,')}"),
    "conv, no quantizer": CONV.but(behind=OPEN),
    "conv, two readers": CONV.but(
        behind="yq = QuantizeLinear (c, ys, yz)  e = DequantizeLinear (yq, ys, yz) y = Add (e, c)"
    ),
    "transposed conv": TRANSPOSED,
    "transposed conv, signed": TRANSPOSED.but(x="int8"),
    "transposed conv, zero point": TRANSPOSED.but(x_zero=3),
    "transposed conv, scales per channel": TRANSPOSED.but(channels=32, axis=1),
    "matmul": MATMUL,
    "matmul, signed": MATMUL.but(x="int8", y="int8"),
    "matmul, scales per column": MATMUL.but(channels=8, axis=1),
    "matmul, zero point": MATMUL.but(w_zero=3),
    "matmul, no quantizer": MATMUL.but(behind=OPEN),
    "matmul, clipped signed codes": MATMUL.but(data=CLIPPED, x="int8", more=SIGNED_ENDS),
    "matmul, Relu": MATMUL.but(behind=f"r = Relu (c) {PAIR.replace('(c,', '(r,')}"),
    "matmul, Relu, no quantizer": MATMUL.but(behind="r = Relu (c)  y = Neg (r)"),
    "matmul, Sigmoid": MATMUL.but(behind=f"r = Sigmoid (c) {PAIR.replace('(c,', '(r,')}"),
    "matmul, float bias": MATMUL.but(behind=adds(""), more=EIGHT),
    "matmul, float bias, no quantizer": MATMUL.but(behind="y = Add (c, b)", more=EIGHT),
    "matmul, int32 bias, no quantizer": MATMUL.but(
        behind=f"{DECODED[1]} y = Add (c, b)", more=WIDE_EIGHT
    ),
    "matmul, four bits": MATMUL.but(w="int4", w_zero=None, channels=8, axis=1),
    "matmul of two operands of data": MATMUL.but(
        x_zero=0,
        weight="""e = Transpose (x)  k = Concat <axis = 1> (e, e, e, e)
        r = QuantizeLinear (k, ws, wz)  v = DequantizeLinear (r, ws, wz)""",
    ),
    "gemm": GEMM,
    "gemm, no zero point": GEMM.but(w_zero=None),
    "gemm, float bias": GEMM.but(bias=(", b", ""), more=EIGHT),
    "gemm, float bias, no quantizer": GEMM.but(bias=(", b", ""), more=EIGHT, behind=OPEN),
    "gemm, int32 bias, no quantizer": GEMM.but(bias=DECODED, more=WIDE_EIGHT, behind=OPEN),
    "gemm, no bias, no quantizer": GEMM.but(behind=OPEN),
    "gemm, beta": GEMM.but(bias=DECODED, more=WIDE_EIGHT, attributes="<beta = 2.0>"),
}  # fmt: skip
ONLY_OPENVINO = {
    f"conv, {levels} levels": CONV.but(data=FAKE.replace("LEVELS", str(levels)))
    for levels in (4, 16, 255, 256)
}


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnxruntime-cpu", "openvino-cpu"])
@pytest.mark.parametrize("name", [*NETS, *ONLY_OPENVINO])
def test_the_executed_graph_has_the_kernel(target: str, name: str) -> None:
    profile = profile_of(target)
    pytest.importorskip(str(profile.executed))
    if name in ONLY_OPENVINO and target != "openvino-cpu":
        pytest.skip("no FakeQuantize")
    model = (NETS | ONLY_OPENVINO)[name].model()
    if name in ONLY_OPENVINO:
        model.graph.opset_imports["org.openvinotoolkit"] = 1
    layers = [each.description for each in quantized_layers(model)]
    matches = [kernel_of(layer, profile) for layer in layers]
    if _has_amx() and any(isinstance(m, KernelMatch) and m.slower for m in matches):
        return  # with AMX, a form that is marked as slower may be in float, or stop the compiler
    ran = executed(model, str(profile.executed))
    if not layers:  # an operand is no code of 16 bits or fewer
        assert ran.integer_nodes == 0
        return
    (found,), (kernel,) = matches, ran.layers
    if isinstance(found, NoKernel):
        assert not kernel.is_integer or not found.is_certain, (found.reasons, kernel)
        return
    assert kernel.is_integer, (found.kernel.id, kernel)
    assert str(kernel.kernel).split()[0] in found.kernel.runs
    assert not found.unknown


def _has_amx() -> bool:
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "amx_int8" in flags.read_text("utf-8")


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("target", ["onnxruntime-cpu", "openvino-cpu"])
def test_each_kernel_that_was_run_is_run_again(target: str) -> None:
    """One of the models above is for each kernel of the profile."""
    profile = profile_of(target)
    taken = set()
    for net in NETS.values():
        for each in quantized_layers(net.model()):
            found = kernel_of(each.description, profile)
            is_open = isinstance(found, KernelMatch) or not found.is_certain
            if found.kernel is not None and (is_open or not found.kernel.types):
                taken.add(found.kernel.id)
    left = {kernel.id for kernel in profile.kernel} - taken
    assert left <= {"conv-wrapped", "fully-connected-int4", "conv-depthwise", "matmul-unsigned"}


@pytest.mark.slow
@pytest.mark.runtime
def test_scales_of_input_channels_are_taken_for_those_of_output_channels() -> None:
    """The graph shows an integer kernel that computes something else: the profile refuses it."""
    runtime = pytest.importorskip("onnxruntime")
    model = CONV.but(channels=4, axis=1).model()
    scales = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    model.graph.initializers["ws"].const_value = ir.Tensor(scales, name="ws")
    assert executed(model).layers[0].is_integer
    (layer,) = quantized_layers(model)
    assert isinstance(kernel_of(layer.description, profile_of("onnxruntime-cpu")), NoKernel)
    x = np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)
    results = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = runtime.SessionOptions()
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
        session = runtime.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results += session.run(None, {"x": x})
    assert (results[0] != results[1]).any()


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_openvino_rounds_to_float16_before_8_bits(kind: str) -> None:
    """The reason that the profile gives for its FP8 codes, for all results."""
    openvino = pytest.importorskip("openvino")
    float8 = getattr(ml_dtypes, kind)
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]>
        net (float[50000] x) => (float[50000] y) <float s = {0.25}, float z = {0}> {
            q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)
        }"""
    )
    zero = model.graph.initializers["z"]
    dtype = ir.DataType.from_numpy(np.dtype(float8))
    zero.const_value, zero.dtype = ir.tensor(np.zeros((), float8), dtype=dtype, name="z"), dtype
    x = np.random.default_rng(0).normal(size=50000).astype(np.float32)
    read = openvino.Core().read_model(ir.to_proto(model).SerializeToString())
    result = openvino.Core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x])[0]
    steps = (x / np.float32(0.25)).astype(np.float32)
    once, twice = steps.astype(float8), steps.astype(np.float16).astype(float8)
    assert (result == twice.astype(np.float32) * np.float32(0.25)).all()
    assert 0.001 < np.mean(once != twice) < 0.005

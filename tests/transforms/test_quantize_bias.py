"""Float biases become int32 codes in the unit of the products, or the report says why not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.quantize_bias import QuantizeBias

F = np.float32
BIAS = F([0.7, -123.456, 0, 1e-9])
SCALES = F([0.013, -0.7, 0.0021, 0.3])
ANY = Exactness.DIFFERENT


def graph(
    operator: str = "Conv (x, w, b)",
    *,
    bias: str = ", ".join(f"{v:.9g}" for v in BIAS),
    scales: str = "float[4] s = {" + ", ".join(f"{v:.9g}" for v in SCALES) + "}",
    axis: int = 0,
    shape: str = "4, 3, 1, 1",
    code: str = "",
    nodes: str = "",
) -> str:
    """A layer of four channels on codes of scale 0.05."""
    codes = ", ".join(str(i * 37 % 255 - 127) for i in range(12))
    rank = shape.count(",") + 1
    data, result = ("5, 3", "n, m") if rank == 2 else ("1, 3, 4, 4", "n, m, h, w")
    return f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{data}] i) => (float[{result}] y)
        <int8[{shape}] k = {{{codes}}}, float[4] b = {{{bias}}}, float t = {{0.05}}, {scales},
         uint8 z = {{128}}{code}> {{
            q = QuantizeLinear (i, t, z)
            x = DequantizeLinear (q, t, z)
            w = DequantizeLinear <axis = {axis}> (k, s)
            {nodes}
            [layer] y = {operator}
        }}"""


def applied(text: str, **options: object):
    model = load(ir.from_onnx_text(text))
    (entry,) = model.apply(QuantizeBias(**options)).sites
    return model, entry


FORMS = {
    "conv": (graph(), 1, BIAS),
    "one scale": (graph(scales="float s = {0.013}"), 1, BIAS),
    "transposed": (
        graph("ConvTranspose (x, w, b)", shape="3, 4, 1, 1", axis=1),
        1,
        BIAS,
    ),
    "matmul": (
        graph("Add (b, m)", shape="3, 4", axis=1, nodes="[product] m = MatMul (x, w)"),
        1,
        BIAS,
    ),
    "gemm": (
        graph("Gemm <alpha = 0.5, beta = 4., transB = 1> (x, w, b)", shape="4, 3"),
        0.125,
        BIAS,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_codes_are_the_nearest_multiples_of_the_unit(check_pass, name):
    text, factor, bias = FORMS[name]
    model, report = check_pass(QuantizeBias(), text, exactly=ANY)
    (entry,) = report.sites
    (layer,) = (node for node in model.nodes() if node.name == "layer")
    places = [value.producer() for value in layer.inputs[2:] or layer.inputs]
    decoder = next(node for node in places if node is not None and node.op_type != "MatMul")
    codes, scale = (model.constant(value) for value in decoder.inputs[:2])
    weights = np.full(4, F(0.013)) if name == "one scale" else SCALES
    units = [Fraction(float(F(0.05))) * Fraction(float(s)) * Fraction(factor) for s in weights]
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(np.broadcast_to(scale, 4), [F(float(unit)) for unit in units])
    exact = [Fraction(float(b)) for b in bias]
    steps = [Fraction(float(s)) for s in np.broadcast_to(scale, 4)]
    errors = [abs(int(c) * s - b) for c, s, b in zip(codes, steps, exact, strict=True)]
    assert all(e <= abs(s) / 2 for e, s in zip(errors, steps, strict=True))
    assert entry.figures["largest_error"] == pytest.approx(float(max(errors)), rel=1e-9)
    assert entry.figures["largest_error_steps"] <= 0.5
    # Against the exact unit of the products, the rounding of the scale comes on top.
    for code, unit, b in zip(codes, units, exact, strict=True):
        assert (
            abs(int(code) * unit - b) <= abs(unit) / 2 + (abs(b) + abs(unit)) * Fraction(2) ** -23
        )
    assert entry.verdict.exactness is ANY


def test_a_bias_of_whole_steps_keeps_every_bit(check_pass):
    text = graph(bias="1, -2, 0, 3", scales="float s = {0.25}").replace("0.05", "0.5")
    _, report = check_pass(QuantizeBias(), text, exactly=Exactness.BITS)
    (entry,) = report.sites
    assert entry.figures["largest_error"] == 0


REFUSED = {
    "would be 1.53846e+12 steps": (graph(bias="1e9, 0, 0, 0"), "QG013"),
    "and with the products up to": (
        graph(bias="1395864.3, 0, 0, 0"),  # 2^31 - 2^16 steps, and sums of up to 128 * 200
        "QG013",
    ),
    "the scale of its bias at index [2] would be 0": (
        graph(scales="float[4] s = {1, 1, 0, 1}"),
        "QG003",
    ),
    "no normal float32": (graph(scales="float[4] s = {1, 1, 1e-38, 1}"), "QG003"),
    "do not lie along the output channels, axis 0": (
        graph(scales="float[3] s = {1, 2, 3}", axis=1),
        "QG013",
    ),
    "its bias is computed at run time": (
        graph("Conv (x, w, h)", nodes="m = ReduceMax (i) h = Add (b, m)"),
        "QG013",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_layers_are_left_alone_for_a_reason(reason):
    text, cause = REFUSED[reason]
    model, entry = applied(text)
    assert entry.outcome is SiteStatus.REFUSED
    assert reason in entry.reason
    assert entry.reason_id == cause
    assert [node.op_type for node in model.nodes()].count("DequantizeLinear") == 2


def test_codes_of_a_narrower_type_and_another_unit_become_int32(check_pass):
    text = graph("Conv (x, w, c)", code=", int8[4] e = {3, -100, 0, 7}", scales="float s = {0.25}")
    text = text.replace("[layer]", "c = DequantizeLinear (e, z2)\n [layer]").replace("0.05", "0.5")
    text = text.replace("uint8 z =", "float z2 = {0.75}, uint8 z =")
    model, _ = check_pass(QuantizeBias(), text, exactly=Exactness.BITS)
    (layer,) = (node for node in model.nodes() if node.name == "layer")
    codes = model.constant(layer.inputs[2].producer().inputs[0])
    np.testing.assert_array_equal(codes, np.int32([3, -100, 0, 7]) * 6)


def coded(unit: str) -> str:
    more = f", int32[4] e = {{1, 2, 3, 4}}, float[4] unit = {{{unit}}}"
    decoded = "c = DequantizeLinear <axis = 0> (e, unit)\n [layer]"
    return graph("Conv (x, w, c)", code=more).replace("[layer]", decoded)


def test_codes_are_kept_and_float_layers_are_not_listed():
    product = F(0.05) * SCALES
    _, entry = applied(coded(", ".join(f"{v:.9g}" for v in product)))
    assert (entry.outcome, entry.reason) == (SiteStatus.KEPT, "its bias is int32 codes")
    text = graph("Conv (i, w, b)")
    assert load(ir.from_onnx_text(text)).apply(QuantizeBias()).sites == []


def test_codes_of_another_scale_become_codes_of_the_unit():
    model, entry = applied(coded("0.013, 0.035, 0.01, 0.03"))
    assert entry.outcome == SiteStatus.CHANGED
    (layer,) = model.nodes("Conv")
    decoder = layer.inputs[2].producer()
    expected = np.rint(F([0.013, 0.07, 0.03, 0.12]) / (F(0.05) * SCALES))
    np.testing.assert_array_equal(model.constant(decoder.inputs[0]), expected)


@pytest.mark.runtime
def test_onnx_runtime_makes_the_same_codes_of_a_float_bias(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    operator = "Conv (x, w, b) u = QuantizeLinear (c, t, z) y = DequantizeLinear (u, t, z)"
    text = graph(operator, bias="0.7, -3.4, 0, 0.21").replace("[layer] y", "[layer] c")
    model = load(ir.from_onnx_text(text))
    found = []
    for name in ("before", "after"):
        model.save(tmp_path / f"{name}.onnx")
        options = runtime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{name}_optimized.onnx")
        options.log_severity_level = 3
        runtime.InferenceSession(tmp_path / f"{name}.onnx", options)
        proto = onnx.load(options.optimized_model_filepath)
        (kernel,) = (node for node in proto.graph.node if node.op_type == "QLinearConv")
        arrays = {array.name: numpy_helper.to_array(array) for array in proto.graph.initializer}
        found.append(arrays[kernel.input[8]])
        model.apply(QuantizeBias())
    np.testing.assert_array_equal(*found)
    assert found[0].dtype == np.int32

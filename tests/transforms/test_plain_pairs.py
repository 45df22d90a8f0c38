"""Quantizers with float operators around Q/DQ become pairs, and every flipped input is counted."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.plain_forms import PlainPairs

F = np.float32
NEAR = Exactness.NEAR
PAIR = ["QuantizeLinear", "DequantizeLinear"]


def graph(nodes: str, stored: str) -> str:
    return f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[1, 2, 50] x) => (float[1, 2, 50] y) <{stored}> {{ {nodes} }}"""


OFFSET = graph(
    """d = Div (x, s)
       a = Add (d, f)
       q = QuantizeLinear (a, one, zero)
       y = DequantizeLinear (q, s, z)""",
    "float s = {0.25}, float f = {3}, float one = {1}, uint8 zero = {0}, uint8 z = {3}",
)


def near(thresholds: np.ndarray, ulps: int = 40) -> np.ndarray:
    """Every float32 within some ulps of each threshold, and around zero all that round to it."""
    found = [np.asarray(thresholds, F)]
    for end in (-9e9, 9e9):
        step = found[0]
        for _ in range(ulps):
            step = np.nextafter(step, F(end))
            found.append(step)
    return np.unique(np.concatenate(found))


def test_flipped_inputs_are_counted(check_pass):
    model, report = check_pass(PlainPairs(), OFFSET, ops=PAIR, exactly=NEAR)
    (entry,) = report.sites
    x = near((np.arange(-20, 300) - F(0.5)) * F(0.25))
    before = np.clip(np.rint(x / F(0.25) + F(3)), 0, 255)
    after = np.clip(np.rint(x / F(0.25)) + 3, 0, 255)
    assert entry.verdict.differing_inputs == np.count_nonzero(before != after) > 100
    assert entry.verdict.exactness is NEAR
    found = model.run({"x": np.resize(x, 100).reshape(1, 2, 50)}, backend="numpy")["y"]
    np.testing.assert_array_equal(found.reshape(-1), np.resize((after - 3) * F(0.25), 100))


def test_an_exact_level_leaves_it():
    (entry,) = load(ir.from_onnx_text(OFFSET)).apply(PlainPairs(exact="codes")).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, "QG001")
    assert "exact=near accepts that" in entry.reason


def test_channels_and_weights(check_pass):
    text = graph(
        """d = Div (x, r)
           m = Mul (d, top)
           q = QuantizeLinear (m, one, zero)
           e = DequantizeLinear (q, one)
           i = Div (e, top)
           a = Mul (i, r)
           c = DequantizeLinear (k, one)
           f = Div (c, top)
           g = Mul (f, span)
           w = Add (g, low)
           y = MatMul (w, a)""",
        """float[1, 2, 1] r = {3.5, 0.7}, float top = {255}, float one = {1}, uint8 zero = {0},
           uint8[2, 2] k = {0, 255, 128, 3}, float[2, 1] span = {2.55, 0.51},
           float[2, 1] low = {-1.28, -0.256}""",
    )
    model, report = check_pass(
        PlainPairs(), text, ops=[*PAIR, "DequantizeLinear", "MatMul"], exactly=NEAR
    )
    assert [site.verdict.exactness >= "codes" for site in report.sites] == [False, True]
    data, weight = model.nodes("DequantizeLinear")
    assert data.attributes["axis"].value == 1
    np.testing.assert_allclose(constant(data.inputs[1]), F([3.5, 0.7]) / 255, rtol=1e-6)
    points = constant(weight.inputs[2]).astype(int) if len(weight.inputs) > 2 else 0
    codes = constant(weight.inputs[0]).astype(int) - np.reshape(points, (-1, 1))
    np.testing.assert_array_equal(codes, [[-128, 127], [0, -125]])


def stored_in_ranges(codes: str, span: str, low: str) -> str:
    return graph(
        """c = DequantizeLinear (k, one)
           f = Div (c, top)
           g = Mul (f, span)
           w = Add (g, low)
           y = MatMul (w, x)""",
        f"""float one = {{1}}, float top = {{254}}, uint8[2, 2] k = {{{codes}}},
            float[2, 1] span = {{{span}}}, float[2, 1] low = {{{low}}}""",
    )


@pytest.mark.parametrize(
    ("codes", "span", "low"),
    [
        ("128, 133, 125, 120", "3.586268, 2.775724", "-1.793134, -1.387862"),
        ("0, 254, 128, 3", "1, 1", "-0.5, -0.5"),
    ],
    ids=["few-codes", "span-of-1"],
)
def test_weights_in_ranges_become_codes(check_pass, codes, span, low):
    text = stored_in_ranges(codes, span, low)
    model, _ = check_pass(
        PlainPairs(), text, ops=["DequantizeLinear", "MatMul"], exactly=Exactness.CODES
    )
    (weight,) = model.nodes("DequantizeLinear")
    points = constant(weight.inputs[2]).astype(int) if len(weight.inputs) > 2 else 0
    found = constant(weight.inputs[0]).astype(int) - np.reshape(points, (-1, 1))
    np.testing.assert_array_equal(found.reshape(-1), F(codes.split(", ")) - 127)
    steps = constant(weight.inputs[1]).reshape(-1)
    np.testing.assert_allclose(steps, np.resize(F(span.split(", ")), steps.shape) / 254, rtol=1e-6)


@pytest.mark.parametrize("levels", [4, 16, 128])
def test_an_even_number_of_levels_around_zero_becomes_codes_of_half_steps(levels):
    """Code ``q`` of the levels from ``-a`` to ``a`` becomes ``2 q - (levels - 1)``."""
    random = np.random.default_rng(0)
    text = f"""<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>
        g (float[4] x) => (float[2] y)
        <float[2,1] l = {{-1.5, -0.3}}, float[2,1] h = {{1.5, 0.3}},
         float[2,4] w = {{{", ".join(map(str, random.uniform(-1.6, 1.6, 8).round(4)))}}}> {{
            v = org.openvinotoolkit.FakeQuantize <levels = {levels}> (w, l, h, l, h)
            y = MatMul (v, x) }}"""
    model = load(ir.from_onnx_text(text))
    model.apply(ConvertDialect(to="qdq"), PlainPairs())
    assert [node.op_type for node in model.nodes()] == ["DequantizeLinear", "MatMul"]
    (weight,) = model.nodes("DequantizeLinear")
    w = np.random.default_rng(0).uniform(-1.6, 1.6, 8).round(4).reshape(2, 4)
    ends = np.array([[1.5], [0.3]])
    q = np.rint((np.clip(w, -ends, ends) + ends) * (levels - 1) / (2 * ends))
    codes = constant(weight.inputs[0])
    np.testing.assert_array_equal(codes.astype(int), 2 * q - (levels - 1))
    assert str(codes.dtype) == ("int4" if levels == 4 else "int8")
    assert len([value for value in weight.inputs if value is not None]) == 2
    np.testing.assert_allclose(constant(weight.inputs[1]), ends[:, 0] / (levels - 1), rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_half_a_step_leave_codes_of_half_steps(bits):
    """Those of 8 bits would need 16."""
    middle = ((1 << bits) - 1) / 2
    text = f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[4] x) => (float[2] y)
        <float[2,4] w = {{0.1, -0.2, 0.3, -0.9, 0.7, -0.4, 0.02, 9}}, float s = {{0.25}},
         float z = {{{middle}}}, float b = {{{bits}}}> {{
            v = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (w, s, z, b)
            y = MatMul (v, x) }}"""
    model = load(ir.from_onnx_text(text))
    expected = model.run({"x": np.eye(4, dtype=F)[0]}, backend="numpy")["y"]
    model.apply(ConvertDialect(to="qdq"), PlainPairs())
    operators = [node.op_type for node in model.nodes()]
    assert operators == ["DequantizeLinear", *["Sub", "Mul"] * (bits == 8), "MatMul"]
    if bits == 4:
        q = np.clip(np.rint(F([0.1, -0.2, 0.3, -0.9, 0.7, -0.4, 0.02, 9]) / 0.25 + middle), 0, 15)
        (weight,) = model.nodes("DequantizeLinear")
        np.testing.assert_array_equal(constant(weight.inputs[0]).reshape(-1), 2 * q - 15)
    found = model.run({"x": np.eye(4, dtype=F)[0]}, backend="numpy")["y"]
    np.testing.assert_array_equal(found, expected)


def test_weights_of_a_small_channel_are_measured_in_its_own_steps():
    # zero is 0.4 steps beside a level of the second channel, far below the last bits of the first
    text = stored_in_ranges("0, 254, 128, 3", "254, 2.54e-6", "-127, -1.266e-6")
    (entry,) = load(ir.from_onnx_text(text)).apply(PlainPairs()).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, "QG001")


@pytest.mark.parametrize("zero", ["3.5"])
def test_fractional_zero_points_are_refused(zero):
    text = OFFSET.replace("f = {3}", f"f = {{{zero}}}").replace(
        "y = DequantizeLinear (q, s, z)",
        "e = DequantizeLinear (q, one)\n t = Sub (e, f)\n y = Mul (t, s)",
    )
    (entry,) = load(ir.from_onnx_text(text)).apply(PlainPairs()).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, "QG001")
    assert "fractional zero point" in entry.reason


def test_a_quant_without_zero_point_gets_limited_data(check_pass):
    text = """<ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        g (float[1, 2, 50] x) => (float[1, 2, 50] y)
        <float s = {0.25}, float z = {3}, float b = {4}> {
            y = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (x, s, z, b)
        }"""
    transform = PlainPairs(dialect="qonnx", zero_points=False)
    model, report = check_pass(transform, text, ops=["Clip", "Quant"], exactly=NEAR)
    (quant,) = model.nodes("Quant")
    assert constant(quant.inputs[2]) == 0
    x = near((np.arange(-6, 20) - F(0.5)) * F(0.25))
    before = np.clip(np.rint(x / F(0.25) + F(3)), 0, 15) - 3
    after = np.clip(np.rint(x / F(0.25)), -3, 12)
    (entry,) = report.sites
    assert entry.verdict.differing_inputs == np.count_nonzero(before != after) > 20
    x = np.resize(x, 100).reshape(1, 2, 50)
    y = model.run({"x": x}, backend="numpy")["y"]
    np.testing.assert_array_equal(y.reshape(-1), np.resize(after, 100) * F(0.25))


def test_fake_quantize_of_data_becomes_a_pair_beside_a_bias(check_pass):
    text = """<ir_version: 10, opset_import: ["": 20, "org.openvinotoolkit": 1]>
        g (float[1, 2, 50] x) => (float[1, 2, 50] y)
        <float[2, 1] b = {0.1, -0.3}, float low = {-1.4}, float high = {3.7}> {
            a = Add (x, b)
            y = org.openvinotoolkit.FakeQuantize <levels = 256> (a, low, high, low, high)
        }"""
    model, report = check_pass(PlainPairs(), text, ops=["Add", *PAIR], exactly=NEAR)
    (encode,) = model.nodes("QuantizeLinear")
    assert constant(encode.inputs[2]) == 70  # 1.4 / 0.02
    np.testing.assert_allclose(constant(encode.inputs[1]), F(0.02), rtol=1e-6)
    assert report.sites[0].verdict.exactness is NEAR

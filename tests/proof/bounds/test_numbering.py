"""Codes of one number in both models, whose decoders are written in one piece and in several."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Inputs, Tolerances
from qgraph.bound import Bound
from qgraph.ops.sums_of_products import Taps
from qgraph.proof.bounds.roundings import moved_by
from qgraph.text import json_text
from tests.verify.checking import checked

LOW, SPAN = np.float32(-5.5), np.float32(11)
IN_ONE_PIECE = "q = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high)"
IN_PIECES = """d = Sub (x, low) e = Div (d, span) f = Mul (e, most)
    c = QuantizeLinear (f, one, zero) r = DequantizeLinear (c, one, zero)
    g = Div (r, most) h = Mul (g, span) q = Add (h, low)"""
"""The definition of FakeQuantize; codes are decoded by the last four operators together."""


def model(quantizer: str) -> onnx.ModelProto:
    """Return a product of quantized data, quantized to codes."""
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 13, "org.openvinotoolkit" : 1]>
        g (float[N, 2] x) => (uint8[N, 2] y)
        <float low = {{{LOW}}}, float high = {{{LOW + SPAN}}}, float span = {{{SPAN}}},
         float most = {{255}}, float one = {{1}}, uint8 zero = {{0}},
         float[2, 2] w = {{0.3, -0.7, 0.9, 0.2}}, float s = {{0.05}}, uint8 z = {{121}}>
        {{ {quantizer} m = MatMul (q, w) y = QuantizeLinear (m, s, z) }}
    """)


def zeros_of(zero: int) -> onnx.ModelProto:
    """Return a product of quantized data with a bias, quantized again."""
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]> g (float[N, 2] x) => (float[N, 1] y)
        <float s = {{0.1}}, uint8 z = {{{zero}}}, float[2, 1] w = {{1, 0.7}}> {{
            c = QuantizeLinear (x, s, z) a = DequantizeLinear (c, s, z) m = MatMul (a, w)
            d = QuantizeLinear (m, s, z) y = DequantizeLinear (d, s, z) }}
    """)


def test_another_zero_point_of_a_decoder_as_well_moves_the_limits_of_the_codes():
    both = zeros_of(128), zeros_of(129)
    x = np.linspace(-30, 30, 1002, dtype=np.float32).reshape(-1, 2)
    tolerances = Tolerances(within="1step")
    result = qgraph.check(*both, Inputs({"x": x}), tolerances=tolerances)
    assert result.bounds is not None
    first, second, output = result.bounds.segments
    for each in (first, second):
        assert each.violated is None
        assert each.differing_codes > 0
        assert each.bound is not None
        assert (each.bound.code_shift, each.bound.max_steps) == (0, 1)
    assert output.differing_codes == 0


def bounds_of_codes() -> list[Bound]:
    """Return the bounds of the codes of data and of the product, and of the output."""
    inputs = Inputs({"x": np.linspace(-7, 7, 1002, dtype=np.float32).reshape(-1, 2)})
    both = model(IN_ONE_PIECE), model(IN_PIECES)
    result = qgraph.check(*both, inputs, tolerances=Tolerances(within="1step"))
    assert result.bounds is not None
    measured = result.bounds.segments
    assert all(each.violated is None and each.differing_codes == 0 for each in measured)
    return [each.bound for each in measured if each.bound is not None]


def test_a_decoder_in_pieces_does_not_number_codes_otherwise():
    bounds = bounds_of_codes()
    assert len(bounds) == 3
    for bound in bounds:
        assert bound.code_shift == 0
        assert bound.max_steps <= 1


@pytest.mark.parametrize(("bias", "steps"), [(1e-5, 0), (0.09, 3)])
def test_operators_that_decode_codes_tell_how_these_are_numbered(bias, steps):
    """The sum lies between 0 and 170 steps of 0.03 above the code of zero, -100 or 20."""
    ours, theirs = (
        onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (int8[2] x, int8[2] v, int8[2] w) => (float[2] y)
        <float s = {{0.01}}, float t = {{0.03}}, float bias = {{{bias}}}, float big = {{0.5}},
         int8 low = {{-128}}, int8 less = {{-100}}, uint8 more = {{20}}, uint8 zero = {{0}}> {{
            {body} y = DequantizeLinear (q, big, zero)
        }}""")
        for body in (
            """c = com.microsoft.QLinearAdd (x, s, low, v, s, low, t, less)
            q = com.microsoft.QLinearMul (c, t, less, w, s, low, big, zero)""",
            """a = DequantizeLinear (x, s, low) b = DequantizeLinear (v, s, low) m = Add (a, b)
            n = Add (m, bias) c = QuantizeLinear (n, t, more) d = DequantizeLinear (c, t, more)
            e = DequantizeLinear (w, s, low) k = Mul (d, e) q = QuantizeLinear (k, big, zero)""",
        )
    )
    found = qgraph.prove(ours, theirs, within="1step")
    first, *further = [region.bound for region in found.regions]
    assert first is not None
    assert first.ideal_shift == pytest.approx(steps, abs=1e-3)
    assert first.code_shift == 100
    assert all(bound is None or bound.ideal_shift < 1e-3 for bound in further)


@pytest.mark.parametrize("options", [{}, {"within": "1step"}])
def test_regions_equal_at_each_step_are_proved_where_bounds_are_asked_for(options):
    """Both decode to real numbers twice as far apart, in float64, from codes of other types."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[N, 4] x) => (double[N, 2] y)
        <float s = {0.1}, float t = {0.2}, KIND z = {ZERO}, double two = {2},
         double[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            q = QuantizeLinear (x, s, z) BODY y = MatMul (b, w)
        }"""
    ours = text.replace("KIND", "uint8").replace("ZERO", "128")
    theirs = text.replace("KIND", "int8").replace("ZERO", "0")
    multiplied = "d = DequantizeLinear (q, s, z) a = Cast <to = 11> (d) b = Mul (a, two)"
    decoded = "d = DequantizeLinear (q, t, z) b = Cast <to = 11> (d)"
    sides = ours.replace("BODY", multiplied), theirs.replace("BODY", decoded)
    found = qgraph.prove(*map(onnx.parser.parse_model, sides), **options)
    assert found.verdict == "proved"
    assert str(found.regions[0].reason) == "256 steps of its quantizers were tried"


def test_zeros_of_codes_in_another_layout_are_not_compared() -> None:
    """A channel shuffle decodes codes in the layouts [12,1,1] and [2,6,1]."""
    moved, other = np.full((12, 1, 1), 3.0), np.arange(12.0).reshape(2, 6, 1)
    assert moved_by(np.zeros(()), (None, None), ([moved], [other])) == 0
    assert moved_by(np.zeros(()), (None, None), ([moved], [other, np.array(5.0)])) == 2


NEAR_A_TIE = """<ir_version: 10, opset_import: ["": 21]>
net (int8[1,3,4] x) => (float[1,3,4] y)
<float s = {0.03428080305457115}, int8 z = {0}, float[3] g = {1, 1, 1}, float[3] b = {0, 0, 0},
 float[3] v = {0.99999, 0.99999, 0.99999}, float lo = {-500}, float hi = {4.336521625518799}> {
    a = DequantizeLinear (x, s, z)
    m = BatchNormalization (a, g, b, b, v)
    n = LIMITED
    q = QuantizeLinear (n, s, z)
    y = DequantizeLinear (q, s, z)
}"""


def test_a_limit_near_a_tie_is_executed_with_an_error() -> None:
    """The limit is 126.5 steps and a little; float32 divides it to 126.5, whose code is 126."""
    limited, free = (
        ir.from_onnx_text(NEAR_A_TIE.replace("LIMITED", node))
        for node in ("Clip (m, lo, hi)", "Identity (m)")
    )
    x = np.full((1, 3, 4), 127, np.int8)
    report = qgraph.check(limited, free, {"x": x}, backend="numpy", tolerances=Tolerances(atol=1))
    assert report.outputs[0].mismatches == 12
    certificate = qgraph.prove(limited, free, within="1step")
    assert certificate.verdict != "proved"
    for region in certificate.regions:
        assert region.bound is None or region.bound.max_steps >= 1


def test_codes_at_a_limit_near_a_tie_are_two_steps_apart() -> None:
    """Without the limit the last code is 126 at x = 127, and 124 with it, so 1 step is too few."""
    text = NEAR_A_TIE.replace("z = {0}", "z = {1}").replace("0.99999", "0.5")
    text = text.replace("4.336521625518799", "4.267960071563721")
    nodes = "Clip (m, lo, hi)", "Identity (m)"
    pair = [ir.from_onnx_text(text.replace("LIMITED", node)) for node in nodes]
    certificate = qgraph.prove(*pair, within="1000step", evidence=True)
    assert max(r.bound.max_steps for r in certificate.regions if r.bound) == 2
    document = json.loads(json_text(certificate.to_json()))
    parts = checked(document, *pair).parts
    assert any("near a tie" in str(part.reason) for part in parts)


def test_sums_of_unlike_rows_have_the_widest_limits() -> None:
    layout = Taps("product", 1, 0, 0, False)
    low, high = (np.array(ends).reshape(1, 3, 1) for ends in ([-2.0, -4, -32], [1.0, 3, 31]))
    ends = layout.ends_by_tap(low, high, np.ones((1, 2)))
    assert [float(np.ravel(end)[0]) for end in ends] == [-32, 31]

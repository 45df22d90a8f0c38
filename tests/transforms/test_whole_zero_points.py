"""Fractions of zero points of data go into biases; codes and results without padding stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.whole_zero_points import WholeZeroPoints

ANY = Exactness.DIFFERENT
F = np.float32

# The steps are powers of two: all sums below are exact, and results must be equal.
RANGED = "a = org.openvinotoolkit.FakeQuantize <levels = 17> (h, lo, hi, lo, hi)"
QUANT = "a = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (h, s, z, bits)"


def graph(
    behind: str = "y = Conv (a, w)",
    *,
    quantizer: str = RANGED,
    middle: str = "h = Identity (x)",
    low: str = "-1.625",
    scale: str = "float s = {0.5}, float z = {2.75}",
    shapes: str = "float[1, 2, 5, 5] x) => (float[1, c, h, w] y",
    weights: str = "float[2, 2, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, -9, 1, 2, 3, 4, 5, 6, 7, 8, -9, "
    "1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 2, 3, -4, 5, 6, 7, 8, 9}",
) -> str:
    domains = '"org.openvinotoolkit": 1, "qonnx.custom_op.general": 1'
    return f"""<ir_version: 8, opset_import: ["": 17, {domains}]>
        g ({shapes})
        <float lo = {{{low}}}, float hi = {{{float(low) + 8}}}, {scale}, float bits = {{4}},
         {weights}> {{
            {middle}
            {quantizer}
            {behind}
        }}"""


def data(*shape: int) -> dict[str, np.ndarray]:
    return {"x": F(np.random.default_rng(0).integers(-600, 900, shape) / 128)}


ROWS = {"shapes": "float[4, 3] x) => (float[4, c] y", "weights": "float[3, 2] w = {1,2,-3,4,5,6}"}
EXACT = {
    "Conv": (graph(), (1, 2, 5, 5)),
    "Conv with bias": (graph("b = Constant <value_floats = [1., -2.]> () y = Conv (a, w, b)"),
                       (1, 2, 5, 5)),
    "two layers": (graph("c = Conv (a, w) d = Conv (a, w) y = Add (c, d)"), (1, 2, 5, 5)),
    "MatMul": (graph("y = MatMul (a, w)", **ROWS), (4, 3)),
    "Gemm": (graph("b = Constant <value_floats = [1., -2.]> () "
                   "y = Gemm <beta = 2.0> (a, w, b)", **ROWS), (4, 3)),
    "Quant": (graph(quantizer=QUANT), (1, 2, 5, 5)),
    "scales of channels": (
        graph("y = Conv <group = 2> (a, w)", quantizer=QUANT, middle="h = Conv (x, one)",
              scale="float[1, 2, 1, 1] s = {0.5, 0.25}, float[1, 2, 1, 1] z = {0.25, 2.125}",
              weights="float[2, 1, 2, 2] w = {1, 2, -3, 4, 5, 6, 7, -8}, "
                      "float[2, 2, 1, 1] one = {1, 0, 0, 1}"), (1, 2, 5, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_results_stay_without_padding(check_pass, name):
    text, shape = EXACT[name]
    x = data(*shape)
    model, report = check_pass(WholeZeroPoints(), text, exactly=ANY, inputs=x)
    expected = load(ir.from_onnx_text(text)).run(x, backend="numpy")["y"]
    np.testing.assert_array_equal(model.run(x, backend="numpy")["y"], expected)
    assert len(np.unique(expected)) > 5
    (encode,) = model.nodes("QuantizeLinear")
    assert constant(encode.inputs[2]).dtype == np.uint8
    assert report.count(SiteStatus.CHANGED) == (3 if name == "two layers" else 2)


def test_padding_moves_the_border_by_the_fraction_times_its_weights(check_pass):
    text = graph("y = Conv <pads = [1, 1, 1, 1]> (a, w)")
    x = data(1, 2, 5, 5)
    model, _ = check_pass(WholeZeroPoints(), text, exactly=ANY, inputs=x)
    before = load(ir.from_onnx_text(text)).run(x, backend="numpy")["y"]
    moved = model.run(x, backend="numpy")["y"] - before
    # zero point 3.25 becomes 3 of steps of 0.5: the bias subtracts 0.125 in padded places, too
    weights = constant(load(ir.from_onnx_text(text)).ir.graph.initializers["w"])
    padded = np.pad(np.zeros((5, 5)), 1, constant_values=0.125)
    expected = np.zeros((1, 2, 5, 5))
    for row, column in np.ndindex(5, 5):
        window = padded[row : row + 3, column : column + 3]
        expected[0, :, row, column] = -(weights * window).sum((1, 2, 3))
    np.testing.assert_array_equal(moved, expected)
    assert np.abs(expected[..., 0]).max() > 0.5
    assert not expected[..., 1:4, 1:4].any()


@pytest.mark.parametrize(("low", "is_left"), [("-0.125", False), ("-0.625", True)])
def test_a_relu_goes_if_all_its_results_have_the_lowest_code(check_pass, low, is_left):
    text = graph(middle="h = Relu (x)", low=low)
    x = data(1, 2, 5, 5)
    model, _ = check_pass(WholeZeroPoints(), text, exactly=ANY, inputs=x)
    expected = load(ir.from_onnx_text(text)).run(x, backend="numpy")["y"]
    np.testing.assert_array_equal(model.run(x, backend="numpy")["y"], expected)
    assert bool(list(model.nodes("Relu"))) == is_left


REFUSED = {
    "has no bias to take in an offset": graph("c = Conv (a, w) y = Sigmoid (a)"),
    "is an output of the graph": graph().replace("w] y)", "w] y, float[1, 2, 5, 5] a)"),
    "take other offsets in": graph("y = ConvTranspose (a, w)"),
    "adds channels of several scales up": graph(
        "v = DequantizeLinear (k, t) y = Conv (a, v)",
        quantizer=QUANT,
        middle="h = Conv (x, one)",
        scale="float[1, 2, 1, 1] s = {0.5, 0.25}, float[1, 2, 1, 1] z = {0.25, 2.125}",
        weights="int8[1, 2, 1, 1] k = {5, -7}, float t = {0.5}, "
        "float[2, 2, 1, 1] one = {1, 0, 0, 1}",
    ),
    "can absorb the scale": graph(
        "y = Conv <group = 2> (a, w)",
        quantizer=QUANT,
        scale="float[1, 2, 1, 1] s = {0.5, 0.25}, float[1, 2, 1, 1] z = {0.25, 2.125}",
        middle="h = Neg (x)",
        weights="float[2, 1, 2, 2] w = {1, 2, -3, 4, 5, 6, 7, -8}",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_change_nothing(reason):
    model = load(ir.from_onnx_text(REFUSED[reason]))
    before = ir.to_onnx_text(model.ir)
    (entry,) = model.apply(WholeZeroPoints()).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, "QG012")
    assert reason in entry.reason
    assert ir.to_onnx_text(model.ir) == before


UNTOUCHED = {
    "whole": (graph(low="-1.5"), "*"),
    "more codes than UINT8 has": (graph(quantizer=RANGED.replace("17", "257")), "*"),
    "rounds down": (
        graph(quantizer=QUANT.replace("narrow", 'rounding_mode = "FLOOR", narrow')),
        "*",
    ),
    "other names": (graph("[c] y = Conv (a, w)"), "!c"),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_other_quantizers_are_not_mentioned(name):
    text, nodes = UNTOUCHED[name]
    assert not load(ir.from_onnx_text(text)).apply(WholeZeroPoints(nodes=nodes)).sites

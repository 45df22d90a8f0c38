"""Scales of channels of data go into the weights before and behind; codes stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.move_channel_scales import MoveChannelScales

ANY = Exactness.DIFFERENT
F = np.float32
POWERS = "{0.5, 0.125, 0.25}"


def graph(
    behind: str = "y = Conv <group = 3> (a, v)",
    *,
    scales: str = POWERS,
    zero: str = "5, 5, 5",
    middle: str = "h = Relu (p)",
    weights: str = "int8[3, 1, 1, 1] m = {5, -100, 7}, float[3] n = {0.1, 0.7, 0.3}",
) -> str:
    return f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 2, 8, 8] x) => (float[1, c, h, w] y)
        <int8[3, 2, 1, 1] k = {{100, 127, -3, 77, 9, -1}}, float[3] s = {{0.3, 0.007, 0.02}},
         float[3] b = {{0.3, -1.7, 0}}, float[3] t = {scales}, uint8[3] z = {{{zero}}},
         {weights}> {{
            w = DequantizeLinear <axis = 0> (k, s)
            [before] p = Conv (x, w, b)
            {middle}
            q = QuantizeLinear <axis = 1> (h, t, z)
            a = DequantizeLinear <axis = 1> (q, t, z)
            v = DequantizeLinear <axis = 0> (m, n)
            {behind}
        }}"""


def test_powers_of_two_keep_every_value(check_pass):
    text = graph()
    x = {"x": np.random.default_rng(0).normal(size=(1, 2, 8, 8)).astype(F)}
    model, report = check_pass(MoveChannelScales(), text, exactly=ANY, inputs=x)
    expected = load(ir.from_onnx_text(text)).run(x, backend="numpy")["y"]
    np.testing.assert_array_equal(model.run(x, backend="numpy")["y"], expected)
    assert len(np.unique(expected)) > 20
    (encode,) = model.nodes("QuantizeLinear")
    assert (float(constant(encode.inputs[1])), int(constant(encode.inputs[2]))) == (0.5, 5)
    first, last = (node.inputs[1].producer() for node in model.nodes("Conv"))
    np.testing.assert_array_equal(constant(first.inputs[1]), F([0.3, 0.007 * 4, 0.02 * 2]))
    np.testing.assert_array_equal(constant(last.inputs[1]), F([0.1, 0.7 / 4, 0.3 / 2]))
    np.testing.assert_array_equal(constant(last.inputs[0]).ravel(), [5, -100, 7])
    (entry,) = report.sites
    assert (entry.verdict.exactness, entry.figures["scale"]) == (None, 0.5)


def test_float_weights_take_factors_of_channels_that_are_added_up(check_pass):
    text = graph(
        "y = Conv (a, f)",
        scales="{0.3, 0.11, 0.07}",
        weights="float[2, 3, 1, 1] f = {1, 2, 3, 4, 5, 6}",
    ).replace("v = DequantizeLinear <axis = 0> (m, n)", "")
    x = {"x": np.random.default_rng(1).normal(size=(1, 2, 8, 8)).astype(F)}
    model, _ = check_pass(MoveChannelScales(), text, exactly=ANY, inputs=x)
    expected = load(ir.from_onnx_text(text)).run(x, backend="numpy")["y"]
    np.testing.assert_allclose(model.run(x, backend="numpy")["y"], expected, rtol=1e-5, atol=1e-4)


REFUSED = {
    "has no constant weights": graph("e = Conv <group = 3> (a, v) y = Add (a, e)"),
    "several zero points": graph(zero="5, 5, 6"),
    "adds channels up": graph(
        "y = Conv (a, v)",
        weights="int8[1, 3, 1, 1] m = {5, -100, 7}, float[1] n = {0.1}",
    ),
    "has one bound for all channels": graph(middle="i = Constant <value_float = 6.> () "
                                            "j = Constant <value_float = 0.> () "
                                            "h = Clip (p, j, i)"),
    "is an output of the graph": graph("u = Conv <group = 3> (a, v)").replace(
        "w] y)", "w] u, float[1, 3, 8, 8] a)"
    ),
    "not above 0": graph(scales="{0.5, -0.5, 1}"),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_change_nothing(reason):
    model = load(ir.from_onnx_text(REFUSED[reason]))
    before = ir.to_onnx_text(model.ir)
    (entry,) = model.apply(MoveChannelScales()).sites
    assert (entry.outcome, entry.reason_id) == (SiteStatus.REFUSED, "QG012")
    assert reason in entry.reason
    assert ir.to_onnx_text(model.ir) == before
    read = [value for node in model.nodes() for value in node.inputs if value is not None]
    assert all(len(value.uses()) == read.count(value) for value in read)


def test_empty_scales_are_left_alone():
    model = load(ir.from_onnx_text(graph(scales="{}", zero="").replace("float[3] t", "float[0] t")))
    assert not model.apply(MoveChannelScales()).sites

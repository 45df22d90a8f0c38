"""Scales of quantizers in the weights before them, and limits apart from quantizers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.bound import Against, Bounding
from qgraph.certificate import Certificate
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.proof.bounds.regions import with_bounds
from qgraph.proof.certify import certify
from qgraph.reports import SiteStatus
from qgraph.transforms.merge_activation import MergeActivation
from qgraph.transforms.unit_scales import SeparateLimits, UnitScales

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (float[2,3,8,8] x) => (float y)
    <float s = {0.05}, uint8 z = {120}, float t = {$STEP}, $CODES u = {$ZERO},
     float low = {$LOW}, float high = {$HIGH}, float[4] sw = {0.01, 0.02, 0.015, 0.007},
     float[4] b = {0.3, -0.2, 0.1, 0.05}, float[4,1,1] k = {0.1, 0.2, 0.3, 0.4}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v = DequantizeLinear <axis = 0> (w, sw)
        [layer] c = Conv <pads = [1,1,1,1]> (d, v, b)
        $BETWEEN
        [last] p = QuantizeLinear (r, t, u)
        y = DequantizeLinear (p, t, u)
    }"""
LIMITS = "r = Clip (c, low, high)"


def network(
    between: str = "r = Relu (c)",
    *,
    step: float = 0.06,
    codes: str = "uint8",
    zero: int = 0,
    low: float = 0.0,
    high: float = 0.9,
    text: str = TEXT,
) -> Model:
    values = {"STEP": step, "CODES": codes, "ZERO": zero, "LOW": low, "HIGH": high}
    for name, value in {**values, "BETWEEN": between}.items():
        text = text.replace(f"${name}", str(value))
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(3).integers(-63, 64, (4, 3, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return qgraph.load(proto)


def data() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(5).normal(size=(2, 3, 8, 8)).astype(np.float32) * 3}


def certified(before: Model, after: Model) -> Certificate:
    sides, request = (before.ir, after.ir), Bounding("1step", Against.IDEAL)
    return with_bounds(certify(*sides), sides, request, Exactness.VALUES)


def test_weights_and_bias_are_divided_by_the_scale():
    model = network(step=0.06)
    before = model.run(data(), backend="numpy")["y"]
    (site,) = model.apply(UnitScales(exact=Exactness.NEAR)).sites
    assert (site.outcome, site.node) == (SiteStatus.CHANGED, "last")
    (layer,) = model.nodes("Conv")
    (decoder,) = [n for n in model.nodes("DequantizeLinear") if n.outputs[0] is layer.inputs[1]]
    step = np.float32(0.06).astype(np.float64)
    scales = np.float32([0.01, 0.02, 0.015, 0.007]) / step
    np.testing.assert_array_equal(model.constant(decoder.inputs[1]), scales.astype(np.float32))
    bias = np.float32([0.3, -0.2, 0.1, 0.05]) / step
    np.testing.assert_array_equal(model.constant(layer.inputs[2]), bias.astype(np.float32))
    *_, encoder = model.nodes("QuantizeLinear")
    assert model.constant(encoder.inputs[1]) == 1
    (last,) = [n for n in model.nodes("DequantizeLinear") if n.inputs[0] is encoder.outputs[0]]
    assert model.constant(last.inputs[1]) == np.float32(0.06)
    after = model.run(data(), backend="numpy")["y"]
    assert np.abs(after - before).max() <= np.float32(0.0601)
    assert np.mean(after != before) < 0.01
    assert len(np.unique(after)) > 20


@pytest.mark.parametrize(
    "between",
    [
        "r = Identity (c)",
        "r = LeakyRelu <alpha = 0.1> (c)",
        "r = PRelu (c, k)",
        LIMITS,
        "h = Relu (c) r = Clip (h, low, high)",
    ],
)
def test_the_difference_is_bounded(between):
    codes = "uint8" if "Clip" in between else "int8"
    before, after = network(between, codes=codes), network(between, codes=codes)
    assert after.apply(UnitScales(exact=Exactness.NEAR)).count(SiteStatus.CHANGED) == 1
    certificate = certified(before, after)
    assert certificate.verdict == "bounded"
    bounds = [region.bound for region in certificate.regions if region.bound]
    assert max(bound.max_steps for bound in bounds) == 1
    assert max(bound.tie_distance_steps for bound in bounds) < 0.01
    ours, theirs = (model.run(data(), backend="numpy")["y"] for model in (before, after))
    assert np.abs(ours - theirs).max() <= 0.0601
    assert np.mean(ours != theirs) < 0.01


def test_powers_of_two_keep_all_values():
    before, after = network(step=0.125), network(step=0.125)
    (site,) = after.apply(UnitScales()).sites
    assert site.verdict is not None
    assert site.verdict.exactness is Exactness.VALUES
    results = [model.run(data(), backend="numpy")["y"] for model in (before, after)]
    np.testing.assert_array_equal(*results)
    (site,) = network(step=0.125).apply(UnitScales(exact=Exactness.BITS)).sites
    assert (site.outcome, "another sign" in str(site.reason)) == (SiteStatus.REFUSED, True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "no power of two"),
        ({"step": 1.0}, "its scale is 1"),
        ({"step": -0.125}, "not above 0"),
        ({"step": 2.0**-126, "text": TEXT.replace("b = {0.3", "b = {8")}, "exceed the range"),
        ({"step": 1e37}, "become subnormal"),
        ({"step": 2.0**-126}, "sums of Conv 'layer' might exceed"),
        ({"between": "r = Sigmoid (c)"}, None),
        ({"between": "r = Add (c, c)"}, None),
        ({"text": TEXT.replace("y = Deq", "y2 = Abs (c) y = Deq")}, "also used elsewhere"),
        ({"text": TEXT.replace("(d, v, b)", "(x, v, b)").replace("v = Deq", "v0 = Deq")
          .replace("[layer]", "v = Neg (v0)")}, None),
        ({"codes": "int8", "text": TEXT.replace("float t = {$STEP}", "float[4] t = {1, 2, 4, 8}")
          .replace("$CODES u = {$ZERO}", "int8[4] u = {0, 0, 0, 0}")}, "per tensor"),
    ],
)  # fmt: skip
def test_others_stay(changes, reason):
    model = network(**changes)
    before = model.to_proto()
    report = model.apply(UnitScales())
    assert model.to_proto() == before
    assert [reason in str(site.reason) for site in report] == ([True] if reason else [])


@pytest.mark.parametrize(
    ("between", "codes", "zero", "low"),
    [
        (LIMITS, "uint8", 0, 0.0),
        (LIMITS, "uint8", 0, -5.0),
        (LIMITS, "uint8", 7, 0.1),
        ("r = Clip (c, , high)", "uint8", 0, 0.0),
        ("r = Clip (c, , high)", "int8", -128, 0.0),
    ],
)
def test_limits_are_separated_without_another_code(between, codes, zero, low):
    before, after = (network(between, codes=codes, zero=zero, low=low) for _ in range(2))
    (site,) = after.apply(SeparateLimits()).sites
    assert site.outcome is SiteStatus.CHANGED
    assert [n.op_type for n in after.nodes()][-4:-1] == ["Clip", "Abs", "QuantizeLinear"]
    results = [model.run(data(), backend="numpy")["y"] for model in (before, after)]
    np.testing.assert_array_equal(*results)
    assert len(np.unique(results[0])) > 5
    assert certified(before, after).verdict == "proved"
    assert not after.apply(SeparateLimits()).sites


@pytest.mark.parametrize(
    "changes",
    [
        {"zero": 7},  # negative results have codes of their own
        {"codes": "int8"},
        {"low": 0.5, "high": -1.0},
        {"between": "r = Clip (c, low)"},
        {"between": "r = Clip (c, c, high)"},
        {"between": "g = Sigmoid (c) r = Clip (g, low, high)"},
        {"text": TEXT.replace("y = Deq", "y2 = Neg (r) y = Deq")},
        {"step": -0.06},
    ],
)
def test_other_limits_stay(changes):
    model = network(**{"between": "r = Clip (c, , high)", **changes})
    before = model.to_proto()
    assert not model.apply(SeparateLimits()).sites
    assert model.to_proto() == before


def test_merged_limits_need_no_abs():
    """So that another runtime takes what was deployed for OpenVINO."""
    model, other = network("r = Clip (c, , high)"), network("a = Abs (c) r = Clip (a, , high)")
    assert model.apply(SeparateLimits(), MergeActivation()).count(SiteStatus.CHANGED) == 2
    assert [n.op_type for n in model.nodes()][-3:] == ["QuantizeLinear", "Clip", "DequantizeLinear"]
    results = [each.run(data(), backend="numpy")["y"] for each in (network(LIMITS), model)]
    np.testing.assert_array_equal(*results)
    other.apply(MergeActivation())
    assert "Abs" in [node.op_type for node in other.nodes()]


def test_names_choose_convolutions():
    model = network(LIMITS)
    assert not model.apply(UnitScales(nodes="!layer"), SeparateLimits(nodes="!layer")).sites


MANY = """<ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 1]>
    net (float[1,3,8,8] x) => (float[1,4,8,8] y)
    <float s = {0.05}, float t = {0.06}, float z = {0}, float e = {8}, float n = {$BITS},
     float r = {0.021}, float[4] g = {1.1, 0.9, 0.7, 1.3}, float[4] m = {0.1, -0.1, 0.2, 0.3}> {
        d = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, e)
        v = qonnx.custom_op.general.Quant <signed = 1, narrow = 1> (w, r, z, e)
        c = Conv <pads = [1,1,1,1]> (d, v, b)
        i = BatchNormalization (c, g, b, m, g)
        a = Relu (i)
        y = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (a, t, z, n)
    }"""


@pytest.mark.parametrize(("bits", "between"), [(8, []), (4, ["Clip", "Abs"])])
def test_deployments_for_openvino_save_operations(bits, between):
    proto = onnx.parser.parse_model(MANY.replace("$BITS", str(bits)))
    random = np.random.default_rng(1)
    for name, size in (("w", (4, 3, 3, 3)), ("b", (4,))):
        array = random.normal(size=size).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "openvino-cpu@x86-64")
    operators = [node.op_type for node in model.nodes()]
    assert operators[operators.index("Conv") + 1 : -2] == between
    *_, encoder = model.nodes("QuantizeLinear")
    assert model.constant(encoder.inputs[1]) == 1
    assert (str(found.certificate.verdict), found.left) == ("bounded", [])
    for options in ({"prefer": "size"}, {"keep": "c"}):
        other = qgraph.load(proto)
        qgraph.deploy(other, "openvino-cpu@x86-64", **options)
        *_, encoder = other.nodes("QuantizeLinear")
        assert other.constant(encoder.inputs[1]) == np.float32(0.06)


def test_proved_codes_keep_their_scales():
    """With another scale, there would be a bound only."""
    model = network()
    found = qgraph.deploy(model, "openvino-cpu@x86-64")
    assert found.certificate.verdict == "proved"
    *_, encoder = model.nodes("QuantizeLinear")
    assert model.constant(encoder.inputs[1]) == np.float32(0.06)

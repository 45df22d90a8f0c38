"""FakeQuantize becomes one that outputs codes, and operators that decode them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.simpler_ranges import CodeOrigin, SplitFakeQuantize

F = np.float32
DECODED = ["FakeQuantize", "Div", "Mul"]


def fake_quantize(low: float, high: float, levels: int, out=None) -> str:
    """A graph with one FakeQuantize on its input."""
    below, above = out or (low, high)
    return f"""
        <ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[2000] x) => (float[2000] y)
        <float a = {{{low}}}, float b = {{{high}}}, float c = {{{below}}}, float d = {{{above}}}> {{
            [node] y = org.openvinotoolkit.FakeQuantize <levels = {levels}> (x, a, b, c, d)
        }}"""


def codes_of(model, x):
    """The output of the only FakeQuantize for the data ``x``."""
    (node,) = model.nodes("FakeQuantize")
    tap = node.outputs[0].name
    return model.run({"x": x}, backend="numpy", taps=[tap])[tap]


def single(report):
    (entry,) = report.sites
    return entry


@pytest.mark.cases(fast=3, slow=7)
@pytest.mark.parametrize(
    ("low", "high", "levels", "ops"),
    [
        # powers of two: Sub and Mul are exact
        (0, 255 / 64, 256, ["FakeQuantize", "Mul"]),
        (-1, 127 / 128, 256, ["FakeQuantize", "Mul"]),
        (-2.5, 1.25, 16, ["FakeQuantize", "Sub", "Mul"]),
        # other scales: decoded as FakeQuantize itself does it
        (0, 2.55, 256, DECODED),
        (0, 6, 65536, DECODED),
        (-12.7, 12.7, 255, ["FakeQuantize", "Add", *DECODED[1:], "Add"]),
        (-0.73, 1.21, 256, [*DECODED, "Add"]),
        (-1, 1, 256, ["FakeQuantize", "Add", *DECODED[1:], "Add"]),
        (0.25, 2.5, 7, ["FakeQuantize", "Sub", "Mul"]),
        # 13 * fl(1 / 13 * q) is not always q
        (0, 2, 14, ["FakeQuantize", "Round", "Div", "Mul"]),
        # fl(high - low) + low is not high
        (-4.536289, 4.500849, 256, None),
        (-3, 0.7, 16, None),
    ],
)
def test_every_value_stays(check_pass, low, high, levels, ops):
    model, report = check_pass(SplitFakeQuantize(), fake_quantize(low, high, levels), ops=ops)
    entry = single(report)
    assert (entry.outcome, entry.verdict.differing_inputs) == (SiteStatus.CHANGED, 0)
    (node,) = model.nodes("FakeQuantize")
    assert node.name == "node"


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(("low", "high", "levels"), [(-0.73, 1.21, 256), (0, 2, 14), (-1, 1, 15)])
@pytest.mark.parametrize("kind", [CodeOrigin.SIGNED, CodeOrigin.UNSIGNED])
def test_codes_are_whole_numbers_of_the_right_range(check_pass, low, high, levels, kind):
    model, _ = check_pass(SplitFakeQuantize(codes=kind), fake_quantize(low, high, levels))
    x = np.linspace(low - 0.93127, high + 0.97341, 2000).astype(F)
    # (x - il) / (ih - il) * (levels - 1) in real numbers; no tie is met by these data
    place = (x.astype(float) - F(low)) / (float(F(high)) - float(F(low))) * (levels - 1)
    expected = np.clip(np.rint(place), 0, levels - 1) - (levels // 2 if kind == "signed" else 0)
    assert np.abs(place - np.floor(place) - 0.5).min() > 1e-5
    np.testing.assert_allclose(codes_of(model, x), expected, atol=2e-5, rtol=0)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("low", "high", "levels", "lowest"),
    [
        (0, 2.55, 256, 0),
        (-12.8, 12.7, 256, -128),
        (-12.7, 12.7, 255, -127),
        (-0.73, 1.21, 256, 0),
        (-1, 1, 256, -128),
    ],
)
def test_codes_are_signed_where_zero_is_in_the_middle(check_pass, low, high, levels, lowest):
    model, _ = check_pass(SplitFakeQuantize(), fake_quantize(low, high, levels))
    found = codes_of(model, np.linspace(-99, 99, 2000).astype(F))
    assert (found.min(), found.max()) == (lowest, lowest + levels - 1)


@pytest.mark.parametrize(("low", "high"), [(0, 2.55), (-12.8, 12.7), (-1, 1)])
def test_sub_and_mul_where_ulps_do_not_matter(check_pass, low, high):
    text = fake_quantize(low, high, 256)
    step = SplitFakeQuantize(exact=Exactness.CODES)
    model, report = check_pass(step, text, exactly=Exactness.CODES)
    names = [node.op_type for node in model.ir.graph]
    assert names == (["FakeQuantize", "Sub", "Mul"] if low == -1 else ["FakeQuantize", "Mul"])
    assert single(report).verdict.exactness is Exactness.CODES
    assert single(report).verdict.differing_inputs > 0
    x = np.random.default_rng(2).uniform(low - 1, high + 1, 2000).astype(F)
    before = load(ir.from_onnx_text(text)).run({"x": x}, backend="numpy")["y"]
    after = model.run({"x": x}, backend="numpy")["y"]
    np.testing.assert_allclose(after, before, rtol=0, atol=2.0**-8 * (high - low) / 255)


def test_the_count_for_sub_and_mul_is_that_of_the_levels_that_differ(check_pass):
    levels, high = 256, F(2.55)
    text = fake_quantize(0, float(high), levels)
    _, report = check_pass(SplitFakeQuantize(exact=Exactness.CODES), text, exactly=Exactness.CODES)
    # every 256th float of the range, and all that lie above
    top = int(np.array(high).view(np.int32))
    x = np.arange(0, top, 1 << 8, dtype=np.int32).view(F)
    q = np.rint(x / high * F(255))
    inside = np.count_nonzero(q / F(255) * high != q * (high / F(255))) << 8
    above = (0x7F800000 - top - 1) * (high != F(255) * (high / F(255)))
    assert single(report).verdict.differing_inputs == pytest.approx(inside + above, rel=5e-3)
    assert inside + above > 0


def test_output_ranges_of_their_own(check_pass):
    model, report = check_pass(SplitFakeQuantize(), fake_quantize(0, 2.55, 256, (-1, 0.9921875)))
    assert [node.op_type for node in model.ir.graph] == ["FakeQuantize", "Mul"]
    assert codes_of(model, np.full(2000, 9, F))[0] == 127
    figures = single(report).figures
    assert (figures["scale_lowest"], figures["zero_point_lowest"]) == (1 / 128, 128)


def test_a_reversed_output_range_has_a_negative_scale(check_pass):
    check_pass(SplitFakeQuantize(), fake_quantize(0, 2, 5, (1, -1)), ops=["FakeQuantize", "Mul"])


def test_scales_per_channel(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[1, 3, 700] x) => (float[1, 3, 700] y)
        <float[1, 3, 1] a = {-1, 0, -0.7}, float[1, 3, 1] b = {1, 6, 2.2}> {
            y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, a, b, a, b)
        }"""
    model, report = check_pass(SplitFakeQuantize(), text)
    assert single(report).verdict.reaches(Exactness.VALUES)
    (node,) = model.nodes("FakeQuantize")
    assert [model.constant(value).size for value in node.inputs[1:]] == [3, 3, 1, 1]


def test_weights_are_split_too(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[6] x) => (float[6] y)
        <float[6] w = {-1.3, -0.25, 0, 0.3, 0.75, 9}, float a = {-1}, float b = {1}> {
            q = org.openvinotoolkit.FakeQuantize <levels = 255> (w, a, b, a, b)
            y = Mul (x, q)
        }"""
    _, report = check_pass(SplitFakeQuantize(), text)
    assert single(report).outcome is SiteStatus.CHANGED


def test_what_outputs_codes_is_kept(check_pass):
    for out in ((0, 255), (-128, 127), (-100, 155)):
        _, report = check_pass(SplitFakeQuantize(), fake_quantize(0, 2.55, 256, out))
        assert single(report).outcome is SiteStatus.KEPT
        assert f"zero point {-out[0]}" in single(report).reason


@pytest.mark.parametrize(
    ("ends", "out", "reason"),
    [
        ((1, -1), None, "reversed, from 1 down to -1"),
        ((1, 1), None, "is a point, 1"),
        ((-1, 1), (2, 2), "its output range is a point"),
    ],
)
def test_what_has_no_scale_is_refused(check_pass, ends, out, reason):
    _, report = check_pass(SplitFakeQuantize(), fake_quantize(*ends, 256, out))
    assert single(report).outcome is SiteStatus.REFUSED
    assert reason in single(report).reason


@pytest.mark.cases(fast=2, slow=6)
@pytest.mark.parametrize("exact", [Exactness.VALUES, Exactness.CODES])
@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (0, 255 / 64, 256),
        (-2.5, 1.25, 16),
        (0, 2.55, 256),
        (-12.7, 12.7, 255),
        (-0.73, 1.21, 256),
        (0, 2, 14),
        (-3, 0.7, 16),
    ],
)
def test_what_was_split_is_read_as_one_quantizer(check_pass, low, high, levels, exact):
    text = fake_quantize(low, high, levels)
    model, _ = check_pass(SplitFakeQuantize(exact=exact), text, exactly=exact)
    (site,) = sites(model.ir)
    assert isinstance(site, Site)
    names = [node.op_type for node in model.ir.graph]
    # the choice of the value above the range may be part of the quantizer, or follow it
    decoded = names[: names.index("Greater")] if "Greater" in names else names
    assert [node.op_type for node in site.nodes] in (names, decoded)
    before = model.clone()
    report = model.apply(ConvertDialect(to="qdq"))
    assert report.exactness >= Exactness.VALUES
    assert "FakeQuantize" not in [node.op_type for node in model.ir.graph]
    x = np.linspace(low - 1, high + 1, 2000).astype(F)
    found, expected = (m.run({"x": x}, backend="numpy")["y"] for m in (model, before))
    np.testing.assert_array_equal(found, expected)


def test_branches_and_functions_are_split_too(check_pass):
    text = """<ir_version: 8, opset_import: ["": 16, "org.openvinotoolkit": 1, "local": 1]>
        g (float[500] x) => (float[500] y) <bool c = {1}, float a = {-1}, float b = {0.9921875}> {
            r = If (c) <
                then_branch = yes () => (float[500] u) {
                    u = org.openvinotoolkit.FakeQuantize <levels = 256> (x, a, b, a, b) },
                else_branch = no () => (float[500] v) { v = Neg (x) }>
            y = local.rounded (r)
        }
        <domain: "local", opset_import: ["": 16, "org.openvinotoolkit": 1]>
        rounded (i) => (o) {
            k = Constant <value = float {0}> ()
            l = Constant <value = float {1}> ()
            o = org.openvinotoolkit.FakeQuantize <levels = 16> (i, k, l, k, l)
        }"""
    _, report = check_pass(SplitFakeQuantize(), text)
    assert report.count(SiteStatus.CHANGED) == 2


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("name", ["nncf_cnn_int8_sym", "nncf_cnn_w4a4", "nncf_mlp_int8_mixed"])
def test_real_models_keep_every_output(models, name):
    original, model = (load(models / f"{name}.onnx") for _ in range(2))
    report = model.apply(SplitFakeQuantize())
    assert report.count(SiteStatus.CHANGED) == len(report.sites)
    assert report.exactness >= Exactness.VALUES
    feeds = {model.inputs[0].name: np.load(models / f"{name}.npz")["x"]}
    found, expected = (m.run(feeds, backend="numpy") for m in (model, original))
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)

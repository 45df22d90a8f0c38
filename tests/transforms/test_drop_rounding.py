"""FakeQuantize becomes a straight line, and the report says how far off that is."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.simpler_ranges import DropRounding

F = np.float32


def fake_quantize(low: float, high: float, levels: int, out=None) -> str:
    """A graph with one FakeQuantize on its input."""
    below, above = out or (low, high)
    return f"""
        <ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[2000] x) => (float[2000] y)
        <float a = {{{low}}}, float b = {{{high}}}, float c = {{{below}}}, float d = {{{above}}}> {{
            [node] y = org.openvinotoolkit.FakeQuantize <levels = {levels}> (x, a, b, c, d)
        }}"""


def single(report):
    (entry,) = report.sites
    return entry


def run(model, x):
    return model.run({"x": x}, backend="numpy")["y"]


DIFFERENT = Exactness.DIFFERENT


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("ends", "out", "ops"),
    [
        ((0, 6), (0, 6), ["Identity"]),
        ((0, 2.55), (0, 1), ["Mul"]),
        ((-1, 1), (-1, 1), ["Identity"]),
        ((-1.28, 1.27), (-128, 127), ["Mul"]),
        ((-1, 1), (0, 255), ["Mul", "Add"]),
        ((0, 1), (1, 2), ["Add"]),
        # c / (oh - ol) is 0.0078 and 0.0117
        ((0, 1), (1 / 128, 129 / 128), ["Identity"]),
        ((0, 1), (3 / 256, 259 / 256), ["Add"]),
        ((0, 1), (1, 0), ["Mul", "Add"]),
    ],
)
def test_the_line_leads_through_both_ends_of_the_ranges(check_pass, ends, out, ops):
    (il, ih), (ol, oh) = ends, out
    model, report = check_pass(
        DropRounding(), fake_quantize(il, ih, 256, out), ops=ops, exactly=DIFFERENT
    )
    x = np.linspace(il - 1, ih + 1, 2000).astype(F)
    slope = (oh - ol) / (ih - il)
    offset = ol - il * slope
    small = abs(ol / (oh - ol) - il / (ih - il)) < 0.01
    expected = slope * x.astype(float) + (0 if small else offset)
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-6, atol=1e-5 * abs(oh - ol))
    figures = single(report).figures
    assert figures["offset_left_out"] == pytest.approx(abs(offset) if small else 0, abs=1e-6)
    assert figures["outside_the_range"] == "not bounded"


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("ends", "out", "levels"),
    [
        ((0, 6), (0, 6), 256),
        ((-0.73, 1.21), (-0.73, 1.21), 16),
        ((0, 2.55), (0, 1), 256),
        ((-1, 1), (0, 255), 256),
        ((0, 1), (0.009, 1.009), 64),
        ((0, 1), (1, 0), 5),
    ],
)
def test_the_largest_error_is_found(check_pass, ends, out, levels):
    text = fake_quantize(*ends, levels, out)
    model, report = check_pass(DropRounding(), text, exactly=DIFFERENT)
    figures = single(report).figures
    low, high = map(F, ends)
    # around each threshold, and all over the range
    ties = low + (np.arange(levels) + 0.5) * (high - low) / (levels - 1)
    near = ties.astype(F)[:, None] * (1 + np.arange(-9, 10) * F(2.0**-24))
    x = np.concatenate([near.ravel(), np.linspace(low, high, 3000)]).astype(F)
    x = np.clip(np.concatenate([x, [low, high, np.nextafter(low, high)]]), low, high)
    x = np.resize(x, (-(-x.size // 2000), 2000)).astype(F)
    before = np.stack([run(load(ir.from_onnx_text(text)), row) for row in x]).astype(float)
    error = np.abs(before - np.stack([run(model, row) for row in x]))
    step = abs(float(F(out[1])) - float(F(out[0]))) / (levels - 1)
    assert figures["largest_error"] >= error.max()
    assert figures["largest_error"] == pytest.approx(error.max(), rel=2e-3)
    assert figures["largest_error_steps"] == pytest.approx(figures["largest_error"] / step)
    # half a step and what is left out, but for float32
    assert figures["largest_error"] <= figures["real_bound"] + 1e-6 * abs(out[1] - out[0])
    assert figures["real_bound"] == pytest.approx(step / 2 + figures["offset_left_out"])
    at = np.full(2000, figures["largest_error_input"], F)
    shown = abs(float(run(load(ir.from_onnx_text(text)), at)[0]) - float(run(model, at)[0]))
    assert shown == pytest.approx(figures["largest_error"], rel=1e-6)
    assert F(single(report).verdict.witness.candidate) == run(model, at)[0]


@pytest.mark.slow
def test_a_clamp_keeps_the_bound_everywhere(check_pass):
    text = fake_quantize(-1, 2, 64, (0, 6))
    step = DropRounding(clamp=True)
    model, report = check_pass(step, text, ops=["Clip", "Mul", "Add"], exactly=DIFFERENT)
    x = np.random.default_rng(0).normal(size=2000).astype(F) * 100
    error = np.abs(run(model, x) - run(load(ir.from_onnx_text(text)), x))
    assert error.max() <= 6 / 63 / 2 * 1.00001
    assert single(report).figures["outside_the_range"] == "clamped"
    assert "inputs outside are clamped" in single(report).reason


@pytest.mark.slow
def test_one_channel_with_an_offset_keeps_all_offsets(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[1, 3, 700] x) => (float[1, 3, 700] y)
        <float[1, 3, 1] a = {-1, 0, -0.7}, float[1, 3, 1] b = {1, 6, 2.2},
         float[1, 3, 1] c = {-2, 0, 0}, float[1, 3, 1] d = {2, 3, 1}> {
            y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, a, b, c, d)
        }"""
    model, report = check_pass(DropRounding(), text, ops=["Mul", "Add"], exactly=DIFFERENT)
    x = np.linspace(-3, 9, 2100).astype(F).reshape(1, 3, 700)
    slope = np.array([2, 0.5, 1 / 2.9])[:, None]
    offset = np.array([0, 0, 0.7 / 2.9])[:, None]
    np.testing.assert_allclose(run(model, x)[0], slope * x[0] + offset, rtol=1e-5, atol=1e-6)
    figures = single(report).figures
    assert figures["largest_error_steps"] == pytest.approx(0.5, rel=1e-4)
    assert figures["largest_error"] == pytest.approx(4 / 15 / 2, rel=1e-4)


@pytest.mark.slow
def test_nodes_are_chosen_by_name(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[500] x) => (float[500] y) <float a = {-1}, float b = {1}> {
            [first_act] u = org.openvinotoolkit.FakeQuantize <levels = 16> (x, a, b, a, b)
            [last] y = org.openvinotoolkit.FakeQuantize <levels = 256> (u, a, b, a, b)
        }"""
    step = DropRounding(nodes="*act")
    check_pass(step, text, ops=["Identity", "FakeQuantize"], exactly=DIFFERENT)


def test_constants_are_kept_and_ranges_without_a_line_refused(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[2] x) => (float[2] y, float[2] z)
        <float[2] w = {1, 0.3}, float a = {-1}, float b = {1}, float c = {2}> {
            q = org.openvinotoolkit.FakeQuantize <levels = 255> (w, a, b, a, b)
            y = Mul (x, q)
            p = org.openvinotoolkit.FakeQuantize <levels = 255> (x, c, b, a, b)
            s = org.openvinotoolkit.FakeQuantize <levels = 255> (p, c, c, a, b)
            z = org.openvinotoolkit.FakeQuantize <levels = 255> (s, a, b, c, c)
        }"""
    _, report = check_pass(DropRounding(), text)
    assert report.count(SiteStatus.KEPT) == 1
    reasons = [site.reason for site in report if site.outcome is SiteStatus.REFUSED]
    assert ["reversed" in reasons[0], "is a point, 2" in reasons[1]] == [True, True]
    assert "its output range is a point" in reasons[2]


@pytest.mark.exhaustive
def test_branches_and_functions_too(check_pass):
    text = """<ir_version: 8, opset_import: ["": 16, "org.openvinotoolkit": 1, "local": 1]>
        g (float[500] x) => (float[500] y) <bool c = {1}, float a = {0}, float b = {3}> {
            r = If (c) <
                then_branch = yes () => (float[500] u) {
                    u = org.openvinotoolkit.FakeQuantize <levels = 256> (x, a, b, b, a) },
                else_branch = no () => (float[500] v) { v = Neg (x) }>
            y = local.rounded (r)
        }
        <domain: "local", opset_import: ["": 16, "org.openvinotoolkit": 1]>
        rounded (i) => (o) {
            k = Constant <value = float {0}> ()
            l = Constant <value = float {1}> ()
            o = org.openvinotoolkit.FakeQuantize <levels = 16> (i, k, l, k, l)
        }"""
    model, report = check_pass(DropRounding(), text, exactly=DIFFERENT)
    assert report.count(SiteStatus.CHANGED) == 2
    assert list(model.nodes("FakeQuantize")) == []
    np.testing.assert_allclose(run(model, np.full(500, 1.25, F)), 1.75)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    "name", [pytest.param("nncf_cnn_int8_sym", marks=pytest.mark.slow), "nncf_mlp_int8_mixed"]
)
def test_real_models_stay_near(models, name):
    model = load(models / f"{name}.onnx")
    data = np.load(models / f"{name}.npz")
    report = model.apply(DropRounding(clamp=True))
    changed = [site for site in report if site.outcome is SiteStatus.CHANGED]
    assert all(site.figures["largest_error_steps"] < 0.501 for site in changed)
    (scores,) = model.run({model.inputs[0].name: data["x"]}, backend="numpy").values()
    assert (scores.argmax(axis=1) == data["y"].argmax(axis=1)).mean() >= 0.97

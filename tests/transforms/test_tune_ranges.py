"""Ranges get whole zero points, and the report says exactly what that changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.ranges.grids import CodeGrid, LargestChange
from qgraph.transforms.tune_ranges import Mode, TunedScales, TuneRanges, whole_range

F = np.float32
FAKE = "org.openvinotoolkit.FakeQuantize <levels = {levels}>"


def fake_quantize(low: float, high: float, levels: int, out=None, *, size: int = 2000) -> str:
    """A graph with one FakeQuantize on its input."""
    below, above = out or (low, high)
    return f"""
        <ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[{size}] x) => (float[{size}] y)
        <float a = {{{low}}}, float b = {{{high}}}, float c = {{{below}}}, float d = {{{above}}}> {{
            [node] y = {FAKE.format(levels=levels)} (x, a, b, c, d)
        }}"""


def formula(x, il, ih, ol, oh, levels):
    """The first definition of the operator, in float32."""
    il, ih, ol, oh = map(F, (il, ih, ol, oh))
    with np.errstate(all="ignore"):
        q = np.rint((x - il) / (ih - il) * F(levels - 1))
        y = q / F(levels - 1) * (oh - ol) + ol
    return np.where(x <= il, ol, np.where(x > ih, oh, y))


def keys_to_floats(keys):
    keys = np.asarray(keys)
    bits = np.where(keys >= 0, keys, np.int64(-1) - keys + (np.int64(1) << 31))
    return bits.astype(np.uint32).view(F)


HIGHEST = int(np.array(np.finfo(F).max).view(np.int32))
LOWEST = -1 - HIGHEST


def starts_of_steps(function):
    """Keys at which a step function takes another value, found by bisection."""
    lo, hi = np.array([LOWEST]), np.array([HIGHEST])
    found = [np.array([LOWEST])]
    while lo.size:
        differ = function(keys_to_floats(lo)) != function(keys_to_floats(hi))
        lo, hi = lo[differ], hi[differ]
        done = hi == lo + 1
        found.append(hi[done])
        lo, hi = lo[~done], hi[~done]
        middle = (lo + hi) // 2
        lo, hi = np.concatenate([lo, middle]), np.concatenate([middle, hi])
    return np.unique(np.concatenate(found))


def differences(before, after, step):
    """How many finite inputs differ, and by how many steps at most."""
    starts = np.union1d(starts_of_steps(before), starts_of_steps(after))
    x = keys_to_floats(starts)
    gap = np.abs(before(x).astype(float) - after(x)) / step
    lengths = np.diff(np.append(starts, HIGHEST + 1))
    return int(lengths[gap > 0].sum()), float(gap.max())


def ends_of(model, name="node"):
    (node,) = [n for n in model.nodes("FakeQuantize") if n.name == name]
    return [model.constant(value) for value in node.inputs[1:]]


def single(report):
    (entry,) = report.sites
    return entry


def test_the_helper_orders_floats():
    keys = np.array([LOWEST, -1, 0, 1, HIGHEST])
    tiny = F(1e-45)
    assert keys_to_floats(keys).tolist() == [-np.finfo(F).max, 0.0, 0.0, tiny, np.finfo(F).max]
    assert np.signbit(keys_to_floats(keys)).tolist() == [True, True, False, False, False]


@pytest.mark.cases(fast=3, slow=9)
@pytest.mark.parametrize("high", [3.0, 0.1, 127.0, 1e-6, 2.7e20])
@pytest.mark.parametrize("levels", [256, 16, pytest.param(65536, marks=pytest.mark.slow), 4])
def test_symmetric_ranges_are_widened_at_the_lower_end(check_pass, high, levels):
    model, report = check_pass(
        TuneRanges(), fake_quantize(-high, high, levels), exactly=Exactness.DIFFERENT
    )
    low, top, below, above = ends_of(model)
    assert (low, top) == (below, above)
    # il = -ih / (1 - 2 / levels); float32 keeps it to an ulp, short scales to 2**-17
    assert low == pytest.approx(-high / (1 - 2 / levels), rel=2.0**-16)
    assert top == pytest.approx(high, rel=2.0**-16)
    scale = (F(top) - F(low)) / F(levels - 1)
    assert -low / scale == levels / 2
    if levels <= 256:
        assert low == -levels / 2 * float(scale)
        assert top == (levels / 2 - 1) * float(scale)
    assert single(report).figures["input_zero_point_before"] == pytest.approx((levels - 1) / 2)
    assert single(report).figures["input_zero_point_after"] == pytest.approx(levels / 2, abs=1e-2)


def test_symmetric_ranges_of_an_odd_number_of_levels_are_whole_already(check_pass):
    _, report = check_pass(TuneRanges(), fake_quantize(-12.7, 12.7, 255))
    assert single(report).outcome is SiteStatus.KEPT
    assert single(report).reason == "its zero point is already 127"


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("levels", [16, 255, 256])
def test_asymmetric_ranges_move_as_little_as_possible(levels):
    random = np.random.default_rng(levels)
    for low, high in random.uniform([-4, 0.1], [-0.01, 4], size=(20, 2)).astype(F):
        ends = whole_range(low, high, levels, Mode.ASYMMETRIC, TunedScales.ANY)
        moved = max(abs(float(ends[0]) - float(low)), abs(float(ends[1]) - float(high)))
        # every whole zero point, with every scale of a fine grid around the present one
        points = np.arange(levels)[:, None]
        scale = (float(high) - float(low)) / (levels - 1)
        scales = scale * np.linspace(0.8, 1.25, 4001)
        others = np.maximum(
            np.abs(-points * scales - low), np.abs((levels - 1 - points) * scales - high)
        )
        assert moved <= others.min() + 0.004 * scale
        assert moved <= 0.504 * scale


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [(-0.73, 1.21, 256), (-1.0, 1.0, 256), (-0.3, 6.1, 16), (-5.0, 0.02, 255), (-0.004, 2.4, 16)],
)
def test_the_report_counts_what_changes(check_pass, low, high, levels):
    model, report = check_pass(
        TuneRanges(), fake_quantize(low, high, levels), exactly=Exactness.DIFFERENT
    )
    entry = single(report)
    after = [float(end) for end in ends_of(model)]
    step = (float(F(high)) - float(F(low))) / (levels - 1)
    count, largest = differences(
        lambda x: formula(x, low, high, low, high, levels),
        lambda x: formula(x, *after, levels),
        step,
    )
    assert entry.verdict.differing_inputs == count > 0
    assert entry.figures["largest_change_steps"] == pytest.approx(largest, rel=1e-6)
    assert largest <= 1.5
    x = F(entry.figures["largest_change_input"])
    gap = abs(float(formula(x, low, high, low, high, levels)) - float(formula(x, *after, levels)))
    assert gap == pytest.approx(entry.figures["largest_change"], rel=1e-6)
    assert gap / step == pytest.approx(largest, rel=1e-6)
    witness = entry.verdict.witness
    assert F(witness.candidate) == formula(F(witness.input), *after, levels)


def test_the_count_and_the_bound_of_every_channel(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[1, 3, 700] x) => (float[1, 3, 700] y)
        <float[1, 3, 1] a = {-1, 0, -0.7}, float[1, 3, 1] b = {1, 6, 2.2}> {
            [node] y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, a, b, a, b)
        }"""
    model, report = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    entry = single(report)
    low, high = (end.reshape(-1) for end in ends_of(model)[:2])
    counts, gaps = [], []
    for channel, (a, b) in enumerate([(-1, 1), (0, 6), (-0.7, 2.2)]):
        c, d = low[channel], high[channel]
        count, gap = differences(
            lambda x, a=a, b=b: formula(x, a, b, a, b, 16),
            lambda x, c=c, d=d: formula(x, c, d, c, d, 16),
            (float(F(b)) - float(F(a))) / 15,
        )
        counts.append(count)
        gaps.append(gap)
    assert entry.verdict.differing_inputs == sum(counts)
    assert entry.figures["largest_change_steps"] == pytest.approx(max(gaps), rel=1e-6)
    assert entry.figures["channels"] == 3
    zero_points = -low / ((high - low) / F(15))
    np.testing.assert_allclose(zero_points, np.rint(zero_points), atol=1e-5)


def test_what_moves_too_far_is_refused_until_it_is_accepted(check_pass):
    text = fake_quantize(0, 6, 256)
    _, report = check_pass(TuneRanges(mode=Mode.SYMMETRIC), text)
    entry = single(report)
    assert entry.outcome is SiteStatus.REFUSED
    # the lowest value, 0, would become that of code -128: -128 * 6 / 127
    steps = 128 * (6 / 127) / (6 / 255)
    assert entry.figures["largest_change_steps"] == pytest.approx(steps, rel=1e-4)
    assert "accept=257.1 allows it" in entry.reason
    step = TuneRanges(mode=Mode.SYMMETRIC, accept=257.1)
    model, _ = check_pass(step, text, exactly=Exactness.DIFFERENT)
    low, high, *_ = ends_of(model)
    assert low == pytest.approx(-6 * 128 / 127, rel=2.0**-16)
    assert high == pytest.approx(6, rel=2.0**-16)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("low", "high"), [(0.5, 2.0), (-3.0, -1.0)])
def test_zero_is_taken_into_the_range_where_that_is_accepted(check_pass, low, high):
    text = fake_quantize(low, high, 16)
    _, report = check_pass(TuneRanges(), text)
    assert single(report).outcome is SiteStatus.REFUSED
    model, _ = check_pass(TuneRanges(accept=100), text, exactly=Exactness.DIFFERENT)
    ends = ends_of(model)
    assert min(map(abs, ends)) == 0
    assert max(map(abs, ends)) == pytest.approx(max(abs(low), abs(high)), rel=2.0**-16)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(("low", "high", "levels"), [(0, 6, 256), (-0.3, 3.1, 256), (-1, 1, 16)])
def test_scales_that_are_powers_of_two(check_pass, low, high, levels):
    step = TuneRanges(scale=TunedScales.POWER_OF_TWO, accept=1e6)
    model, _ = check_pass(step, fake_quantize(low, high, levels), exactly=Exactness.DIFFERENT)
    below, above, *_ = (float(end) for end in ends_of(model))
    scale = (above - below) / (levels - 1)
    assert np.log2(scale) == np.rint(np.log2(scale))
    assert below <= low + scale / 2
    assert above >= high - scale / 2
    assert scale < 2 * (high - low) / (levels - 2)
    report = model.apply(ConvertDialect(to="qdq"))
    names = [node.op_type for node in model.ir.graph]
    plain = ["QuantizeLinear", "DequantizeLinear"]
    assert report.exactness >= Exactness.VALUES
    if low == 0:
        assert names == plain
    else:
        assert names[-2:] == plain  # with the zero point added before it, exact as well


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("low", "high", "levels"), [(-1, 1, 256), (-0.73, 1.21, 16), (-5, 3, 256)])
def test_afterwards_a_plain_pair_is_near(check_pass, low, high, levels):
    text = fake_quantize(low, high, levels)
    step = ConvertDialect(to="qdq", exact=Exactness.NEAR)
    plain = ["QuantizeLinear", "Clip", "DequantizeLinear"][:: 2 if levels == 256 else 1]
    untuned = load(ir.from_onnx_text(text))
    untuned.apply(step)
    assert [node.op_type for node in untuned.ir.graph] != plain
    model, _ = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    report = model.apply(step)
    assert [node.op_type for node in model.ir.graph] == plain
    assert single(report).verdict.exactness is Exactness.NEAR


def test_other_output_ranges_are_tuned_on_their_own(check_pass):
    text = fake_quantize(-0.73, 1.21, 256, (-2.1, 1.9))
    model, report = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    low, high, below, above = (float(end) for end in ends_of(model))
    for a, b in ((low, high), (below, above)):
        assert a / ((b - a) / 255) == np.rint(a / ((b - a) / 255))
    assert (low, high) == pytest.approx((-0.73, 1.21), abs=0.5 * 1.94 / 255 + 1e-5)
    assert (below, above) == pytest.approx((-2.1, 1.9), abs=0.5 * 4 / 255 + 1e-5)
    reason = single(report).reason
    assert "input zero point" in reason
    assert "output zero point" in reason


def test_an_output_range_of_codes_stays(check_pass):
    text = fake_quantize(-0.73, 1.21, 256, (0, 255))
    model, _ = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    assert [float(end) for end in ends_of(model)[2:]] == [0, 255]


def test_a_reversed_output_range_stays_reversed(check_pass):
    text = fake_quantize(0, 2.55, 256, (1.21, -0.73))
    model, _ = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    below, above = (float(end) for end in ends_of(model)[2:])
    assert below > above
    assert below / ((below - above) / 255) == np.rint(below / ((below - above) / 255))


def test_weights_are_compared_by_their_values(check_pass):
    values = np.random.default_rng(1).normal(size=(4, 50)).astype(F)
    listed = ", ".join(f"{value:.9g}" for value in values.ravel())
    text = f"""<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[4, 50] x) => (float[4, 50] y)
        <float[4, 50] w = {{{listed}}}, float[4, 1] a = {{-1, -2, -1.5, -3}},
         float[4, 1] b = {{1, 2, 1.5, 3}}> {{
            [node] q = org.openvinotoolkit.FakeQuantize <levels = 16> (w, a, b, a, b)
            y = Mul (x, q)
        }}"""
    model, report = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    entry = single(report)
    low, high = ends_of(model)[:2]
    changed, steps = 0, 0.0
    for channel, edge in enumerate([1, 2, 1.5, 3]):
        before = formula(values[channel], -edge, edge, -edge, edge, 16)
        ends = low[channel, 0], high[channel, 0]
        after = formula(values[channel], *ends, *ends, 16)
        changed += np.count_nonzero(before != after)
        steps = max(steps, np.abs(before.astype(float) - after).max() / (2 * edge / 15))
    assert entry.verdict.differing_inputs == changed
    assert entry.figures["largest_change_steps"] == pytest.approx(steps, rel=1e-6)
    assert entry.figures["largest_change_over"] == "the elements of the constant"


@pytest.mark.parametrize(
    ("low", "high", "mode", "reason"),
    [
        (2, -2, Mode.AUTO, "its input range is reversed, from 2 down to -2"),
        (0.5, 0.5, Mode.AUTO, "its input range is a point, 0.5"),
        ("nan", 1, Mode.AUTO, "not a finite number"),
        (-1e-44, 1e-44, Mode.AUTO, "no float32 range with an integer zero point and 256 levels"),
        (-3e38, 3e38, Mode.AUTO, "the width of a range exceeds float32"),
    ],
)
def test_ranges_that_cannot_be_tuned(check_pass, low, high, mode, reason):
    model = load(ir.from_onnx_text(fake_quantize(0, 1, 256)))
    for name, end in zip("abcd", (low, high, low, high), strict=True):
        model.ir.graph.initializers[name].const_value = ir.tensor(F(end), name=name)
    report = model.apply(TuneRanges(mode=mode))
    assert single(report).outcome is SiteStatus.REFUSED
    assert reason in single(report).reason


def test_other_types_are_left_alone():
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float16[5] x) => (float16[5] y) <float16 a = {-1}, float16 b = {1}> {
            [node] y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, a, b, a, b)
        }"""
    report = load(ir.from_onnx_text(text)).apply(TuneRanges())
    assert single(report).outcome is SiteStatus.REFUSED
    assert single(report).reason.startswith("'x' is FLOAT16; only float32 is supported; ")


def test_two_levels_have_no_middle(check_pass):
    _, report = check_pass(TuneRanges(mode=Mode.SYMMETRIC), fake_quantize(-1, 1, 2))
    assert "mode=asymmetric" in single(report).reason


def test_a_bound_is_a_number_of_steps():
    with pytest.raises(OptionError, match="accept=-1"):
        TuneRanges(accept=-1.0)


def test_nodes_keep_their_names_and_shared_constants_their_values(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[500] x) => (float[500] y, float[500] z)
        <float a = {-1}, float b = {1}> {
            [one] y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, a, b, a, b)
            z = Mul (x, a)
        }"""
    source = ir.from_onnx_text(text)
    source.graph[0].metadata_props["origin"] = "layer 1"
    model, _ = check_pass(TuneRanges(), source, exactly=Exactness.DIFFERENT)
    node, product = model.ir.graph
    assert (node.name, node.metadata_props["origin"]) == ("one", "layer 1")
    assert node.outputs[0].name == "y"
    assert model.constant(product.inputs[1]) == -1
    assert "b" not in model.ir.graph.initializers


def test_branches_and_functions_are_tuned_too(check_pass):
    text = """<ir_version: 8, opset_import: ["": 16, "org.openvinotoolkit": 1, "local": 1]>
        g (float[500] x) => (float[500] y) <bool c = {1}, float a = {-1}, float b = {1}> {
            r = If (c) <
                then_branch = yes () => (float[500] u) {
                    [inner] u = org.openvinotoolkit.FakeQuantize <levels = 256> (x, a, b, a, b) },
                else_branch = no () => (float[500] v) { v = Neg (x) }>
            y = local.rounded (r)
        }
        <domain: "local", opset_import: ["": 16, "org.openvinotoolkit": 1]>
        rounded (i) => (o) {
            k = Constant <value = float {-1}> ()
            l = Constant <value = float {1}> ()
            [called] o = org.openvinotoolkit.FakeQuantize <levels = 16> (i, k, l, k, l)
        }"""
    model, report = check_pass(TuneRanges(), text, exactly=Exactness.DIFFERENT)
    assert report.count(SiteStatus.CHANGED) == 2
    assert ends_of(model, "inner")[0] == pytest.approx(-128 / 127, rel=2.0**-16)
    assert ends_of(model, "called")[0] == pytest.approx(-8 / 7, rel=2.0**-16)


@pytest.mark.parametrize("name", ["nncf_cnn_int8_sym", "nncf_cnn_w4a4", "nncf_mlp_int8_mixed"])
def test_real_models(models, name):
    model = load(models / f"{name}.onnx")
    data = np.load(models / f"{name}.npz")
    report = model.apply(TuneRanges())
    # NNCF makes zero points whole, but for one activation with a scale per channel
    changed = [site for site in report if site.outcome is SiteStatus.CHANGED]
    assert len(changed) == (name == "nncf_cnn_w4a4")
    assert report.count(SiteStatus.REFUSED) == 0
    found = model.run({model.inputs[0].name: data["x"]}, backend="numpy")
    (scores,) = found.values()
    agree = (scores.argmax(axis=1) == data["y"].argmax(axis=1)).mean()
    assert agree >= 0.98


def test_a_zero_point_of_0_is_told_without_a_sign():
    zero_point = CodeGrid.of(np.array(F(0)), np.array(F(4.75)), 23).zero_point
    assert str(float(zero_point)) == "0.0"


@pytest.mark.parametrize(("steps", "text"), [(1.00000008, "1 step ("), (1.25, "1.25 steps (")])
def test_one_step_is_told_as_one(steps, text):
    assert LargestChange(steps, 0.5, 0, 2.0, 1.0, 1.5).text().startswith(text)

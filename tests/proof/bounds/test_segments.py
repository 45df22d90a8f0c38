"""Segments of two models: which roundings are paired, and what enters them."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Against, Bounding


def chain(layers: int, first: str) -> ir.Model:
    """Return layers of one form: codes times weights, quantized again; ``first`` is a weight."""
    lines = "\n".join(
        f"""m{k} = MatMul (a{k}, w{k % 3})
        [round_{k}] q{k + 1} = QuantizeLinear (m{k}, s, z)
        a{k + 1} = DequantizeLinear (q{k + 1}, s, z)"""
        for k in range(layers)
    )
    weights = ", ".join(
        f"float[2,2] w{k} = {{{first}, {k + 0.5}, 0.1, {1.5 - k}}}" for k in range(3)
    )
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2] x) => (float[1,2] a{layers})
        <float s = {{0.1}}, int8 z = {{0}}, {weights}> {{
            a0 = DequantizeLinear (x, s, z)
            {lines}
        }}""")


@pytest.mark.slow
def test_layers_of_one_form_are_paired_in_their_order():
    found = qgraph.prove(chain(24, "0.3"), chain(24, "0.30001"), within="1step")
    assert found.verdict == "bounded"
    bounded = [region for region in found.regions if region.verdict == "bounded"]
    assert len(bounded) == 24
    assert all(region.reference_nodes == region.candidate_nodes for region in bounded)
    assert not found.beyond


@pytest.mark.slow
def test_models_without_any_bound_are_different_if_they_are_without_a_limit():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2] x) => (float[1,2] y)
        <float s = {0.1}, int8 z = {0}, float[2,2] w = {1, 2, 3, 4}, float f = {0.3}> {
            a = DequantizeLinear (x, s, z)
            b = MatMul (a, w)
            MIDDLE
            y = Mul (m, f)
        }"""
    extra = "q = QuantizeLinear (b, s, z) m = DequantizeLinear (q, s, z)"
    models = [ir.from_onnx_text(text.replace("MIDDLE", m)) for m in ("m = Add (b, b)", extra)]
    for limit in ((), "1step"):
        assert qgraph.prove(*models, within=limit).verdict == "different"


def test_an_input_needs_a_range():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[1,2] x) => (float[1,1] y)
        <float[2,1] w = {1, 3}, float[1,2] v = {1, 3}, float[2,1] u = {1, 9}> { SUM }"""
    forms = "m = Mul (x, v) y = MatMul (m, w)", "y = MatMul (x, u)"
    models = [ir.from_onnx_text(text.replace("SUM", form)) for form in forms]
    found = qgraph.prove(*models, within="1step")
    assert found.verdict == "undecided"
    found = qgraph.prove(*models, within=Bounding("1step", ranges={"x": (-1, 1)}))
    assert found.verdict == "bounded"
    (region,) = found.regions
    # each model rounds three times at most, and no number exceeds 10
    assert 0 < region.bound.absolute <= 2 * 3 * 10 * 2.0**-24


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("bias", "steps"), [("1.25", 1), ("1.75", 3), ("3", 8)])
def test_a_bias_that_is_off_is_not_taken_for_another_zero_point(bias, steps):
    # No limit of the codes is reached, and the next scale is so large that it hides the bias.
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2] x) => (float[1,1] y)
        <int8[2,1] w = {3, -5}, float s = {0.01}, float s_y = {0.25}, float big = {50},
         int8 z = {0}, float[1] b = {B}, float[1,1] v = {1}> {
            a = DequantizeLinear (x, s, z)
            u = DequantizeLinear (w, s, z)
            m = MatMul (a, u)
            n = Add (m, b)
            [first] q = QuantizeLinear (n, s_y, z)
            d = DequantizeLinear (q, s_y, z)
            k = MatMul (d, v)
            p = QuantizeLinear (k, big, z)
            y = DequantizeLinear (p, big, z)
        }"""
    models = [ir.from_onnx_text(text.replace("{B}", f"{{{b}}}")) for b in ("1", bias)]
    found = qgraph.prove(*models, within="1step")
    (first,) = (region for region in found.regions if region.reference_nodes == ("first",))
    assert first.bound.max_steps >= steps
    assert first.bound.ideal_shift == pytest.approx(steps, rel=1e-3)
    assert bool(found.beyond)


RENUMBERED = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2] x) => (float[1,1] y)
    <int8[2,1] w = {3, -5}, float s = {0.01}, float s_y = {0.25}, float big = {50}, int8 z = {0},
     int8 low = {LOW}, int8 high = {HIGH}, int8 z_y = {ZERO}, float[1] b = {BIAS},
     float[1,1] v = {1}> {
        a = DequantizeLinear (x, s, z)
        u = DequantizeLinear (w, s, z)
        m = MatMul (a, u)
        n = Add (m, b)
        [first] q = QuantizeLinear (n, s_y, ROUNDED)
        c = Clip (q, low, high)
        d = DequantizeLinear (c, s_y, z_y)
        k = MatMul (d, v)
        p = QuantizeLinear (k, big, z)
        y = DequantizeLinear (p, big, z)
    }"""


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("change", "steps"),
    [
        # limits that differ by as much as the bias are no other numbering: 3 steps, and a tie
        ({"BIAS": "1.75", "LOW": "-97", "HIGH": "103"}, 4),
        # these are the same codes, which are numbered otherwise
        ({"LOW": "-97", "HIGH": "103", "ZERO": "3", "ROUNDED": "z_y"}, 0),
    ],
)
def test_the_decoded_zero_tells_how_codes_are_numbered(change, steps):
    same = {"BIAS": "1", "LOW": "-100", "HIGH": "100", "ZERO": "0", "ROUNDED": "z"}
    models = []
    for values in (same, same | change):
        text = RENUMBERED
        for name, value in values.items():
            text = text.replace(name, f"{value}")
        models.append(ir.from_onnx_text(text))
    found = qgraph.prove(*models, within="1step")
    (first,) = (r for r in found.regions if "first" in r.reference_nodes)
    assert (first.bound.max_steps if first.bound else 0) == steps
    assert found.verdict == ("bounded" if steps else "proved")


@pytest.mark.slow
def test_rounding_codes_to_themselves_is_no_segment():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2] x) => (float[1,1] y)
        <float s = {0.013}, float s_y = {0.25}, int8 z = {0}, uint8 zu = {128},
         float[2,1] w = {0.3, LAST}> {
            a = DequantizeLinear (x, s, z)
            MORE
            m = MatMul (DATA, w)
            [end] p = QuantizeLinear (m, s_y, z)
            y = DequantizeLinear (p, s_y, z)
        }"""
    again = "r = QuantizeLinear (a, s, zu) c = DequantizeLinear (r, s, zu)"
    plain = text.replace("MORE", "").replace("DATA", "a").replace("LAST", "0.7")
    twice = text.replace("MORE", again).replace("DATA", "c").replace("LAST", "0.70001")
    for models in ((plain, twice), (twice, plain)):
        found = qgraph.prove(*map(ir.from_onnx_text, models), within="1step")
        assert found.verdict == "bounded"
        assert not found.beyond


def test_codes_of_a_clipped_quantizer_of_any_input_differ_near_ties_only():
    texts = (
        """[end] y = qonnx.custom_op.general.Quant
        <signed = 0, narrow = 0, rounding_mode = "ROUND">(x, s, t, b)""",
        "c = QuantizeLinear (x, s, z) [end] y = DequantizeLinear (c, s, z)",
    )
    models = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[N] x) => (float[N] y)
        <float s = {{0.1}}, float t = {{3}}, uint8 z = {{3}}, float b = {{8}}> {{ {text} }}""")
        for text in texts
    ]
    found = qgraph.prove(*models, within="1step")
    bound = next(region.bound for region in found.regions if region.bound is not None)
    assert bound.max_steps == 1
    assert bound.tie_distance_steps < 1e-4
    # neighbours of all ties, and numbers beyond both ends
    ties = (np.arange(-8, 260) + np.float32(0.5)) * np.float32(0.1)
    steps = np.arange(-8, 9)[:, None] * np.spacing(ties)
    x = np.concatenate([(ties + steps).ravel(), [-1e30, -5, 5e3, 1e30]]).astype(np.float32)
    ours, theirs = (qgraph.load(model).run({"x": x}, backend="numpy")["y"] for model in models)
    meant = x.astype(np.float64) / float(np.float32(0.1)) + 3
    apart = ours != theirs
    assert apart.any()
    far = np.abs(meant - np.floor(meant) - 0.5)[apart]
    assert far.max() <= bound.tie_distance_steps


def test_against_the_ideal_ties_are_those_of_what_the_reference_means():
    """A long float sum may be off by steps; the integer kernel in its place is not."""
    size = 2048
    weights = np.random.default_rng(0).integers(-127, 128, size)
    bodies = (
        """d = DequantizeLinear (a, s, z) v = DequantizeLinear (w, t) m = MatMul (d, v)
        c = QuantizeLinear (m, r, z)""",
        "c = QLinearMatMul (a, s, z, w, t, o, r, z)",
    )
    models = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (uint8[N,{size}] a) => (float[N,1] y)
        <float s = {{0.013}}, float t = {{0.0371}}, float r = {{0.5}},
         uint8 z = {{0}}, int8 o = {{0}}, int8[{size},1] w = {{{", ".join(map(str, weights))}}}> {{
            {body} y = DequantizeLinear (c, r, z)
        }}""")
        for body in bodies
    ]
    for against, is_near in ((Against.IDEAL, True), (Against.EXECUTION, False)):
        found = qgraph.prove(*models, within=Bounding("8step", against=against))
        bound = next(region.bound for region in found.regions if region.bound is not None)
        assert bound.reference_error > 1
        assert (bound.tie_distance_steps < 1e-4) is is_near
    codes = np.random.default_rng(1).integers(0, 256, (4000, size), np.uint8)
    executed = qgraph.load(models[1]).run({"a": codes}, backend="numpy")["y"][:, 0] / 0.5
    unit = Fraction(float(np.float32(0.013))) * Fraction(float(np.float32(0.0371))) * 2
    sums = codes.astype(np.int64) @ weights
    meant = [min(max(round(int(each) * unit), 0), 255) for each in sums]
    ties = [abs((int(each) * unit) % 1 - Fraction(1, 2)) < 1e-4 for each in sums]
    assert ((executed == meant) | ties).all()
    assert np.mean(ties) < 0.01


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("scale", "verdict"), [("0.05", "bounded"), ("0.0505", "undecided")])
def test_a_product_by_one_step_on_codes_is_no_segment(scale, verdict):
    """QLinearMul by 250 * 0.002 with steps of 0.1 before and 0.05 behind gives the codes back.

    With steps of 0.0505 codes from 50 on are other ones.
    """
    weights = ", ".join(map(str, np.random.default_rng(0).integers(-127, 128, 8)))
    bodies = (
        """c = com.microsoft.QLinearMul (a, s, z, k, t, z, r, z)
        y = QLinearMatMul (c, r, z, w, t, o, s, z)""",
        """d = DequantizeLinear (a, s, z) v = DequantizeLinear (w, t) m = MatMul (d, v)
        n = Mul (m, f) y = QuantizeLinear (n, s, z)""",
    )
    models = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        net (uint8[N,8] a) => (uint8[N,1] y)
        <float s = {{0.1}}, float t = {{0.002}}, float r = {{{scale}}}, float f = {{0.5}},
         uint8 z = {{0}}, uint8 k = {{250}}, int8 o = {{0}}, int8[8,1] w = {{{weights}}}> {{
            {body}
        }}""")
        for body in bodies
    ]
    found = qgraph.prove(*models, within="1step")
    assert found.verdict == verdict


def test_what_no_output_depends_on_is_no_segment():
    """A quantizer of an input without range, whose scales differ, has no bound."""
    models = []
    for weight, scale in (("0.3", 0.1), ("0.30001", 0.7)):
        model = chain(1, weight)
        data = ir.val("p", shape=[1, 2], type=ir.TensorType(ir.DataType.FLOAT))
        constant = ir.val("t", const_value=ir.tensor(np.float32(scale), name="t"))
        model.graph.inputs.append(data)
        model.graph.initializers.add(constant)
        model.graph.append(ir.node("QuantizeLinear", [data, constant]))
        models.append(model)
    found = qgraph.prove(*models, within="1step")
    assert found.verdict == "bounded"
    assert [region.reference_value for region in found.regions] == ["q1", "a1"]


@pytest.mark.slow
def test_outputs_of_unknown_shape_say_so():
    """onnx and its reference implementation disagree about the sizes of this pool."""
    sums = "m = Conv (a, w) n = Mul (m, f)", "n = Conv (a, v)"
    sides = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,1,6,4] x) => (float[1,1,h,w] y)
        <float s = {{0.1}}, int8 z = {{0}}, float f = {{0.3}}, float[1,1,1,2] w = {{0.7, -0.4}},
         float[1,1,1,2] v = {{0.21, -0.12}}> {{
            a = DequantizeLinear (x, s, z)
            {total}
            y = MaxPool <kernel_shape = [2, 3], pads = [0, 1, 0, 0]> (n)
        }}""")
        for total in sums
    ]
    (region,) = qgraph.prove(*sides, within="1step").regions
    assert region.verdict == "undecided"
    assert str(region.reason) == "the shape of 'y' is not known"


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("kind", "added", "apart"), [("Floor", -0.5, 0), ("Floor", 0.5, 1), ("Ceil", 0.5, 0)]
)
def test_roundings_of_two_kinds_are_compared_by_their_thresholds(kind, added, apart):
    """Floor changes its result at whole numbers, Round halfway between them."""

    def rounded(op: str, number: float) -> ir.Model:
        return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[1,2] q) => (float[1,2] y)
            <float s = {{0.37}}, int8 z = {{0}}, float[2,2] w = {{1, -0.7, 0.3, 2}},
             float b = {{{number}}}, float lo = {{-8}}, float hi = {{7}}, float t = {{0.25}}> {{
                a = DequantizeLinear (q, s, z)
                m = MatMul (a, w)
                d = Add (m, b)
                r = {op} (d)
                c = Clip (r, lo, hi)
                y = Mul (c, t)
            }}""")

    found = qgraph.prove(rounded(kind, 0.0), rounded("Round", added), within="10step")
    bound = next(region.bound for region in found.regions if region.bound is not None)
    assert bound.deviation_steps == pytest.approx(apart, abs=1e-3)
    assert bound.max_steps > apart


MODES = {
    "ROUND": round,
    "FLOOR": math.floor,
    "CEIL": math.ceil,
    "DOWN": math.trunc,
    "UP": lambda steps: math.ceil(steps) if steps > 0 else math.floor(steps),
}


def rounded_sums(mode: str, *nodes: str) -> ir.Model:
    domain = "qonnx.custom_op.general"
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, "{domain}": 1]>
        net (int8[1,2] x) => (float[1,1] y)
        <float s = {{0.1}}, int8 z = {{0}}, float[2,1] w = {{0.3, 0.5}}, float[2,1] v = {{3, 5}},
         float f = {{0.1}}, float b = {{8}}, float o = {{0}}> {{
            a = DequantizeLinear (x, s, z)
            {" ".join(nodes)}
            y = {domain}.Quant <signed = 1, narrow = 0, rounding_mode = "{mode}">
                (m, s, o, b)
        }}""")


@pytest.mark.parametrize("modes", [*itertools.combinations(MODES, 2)])
def test_rounding_modes_differ_far_from_their_thresholds(modes):
    """Up and Down round numbers between whole ones to other codes, not only numbers near one."""
    models = (
        rounded_sums(modes[0], "m = MatMul (a, w)"),
        rounded_sums(modes[1], "t = MatMul (a, v)", "m = Mul (t, f)"),
    )
    sums = [Fraction(3 * i + 5 * j, 10) for i in range(-9, 9) for j in range(-9, 9)]
    ones, others = ([MODES[mode](steps) for steps in sums] for mode in modes)
    whole = 0 if modes[0] == "ROUND" else Fraction(1, 2)
    places = [steps + whole for steps in sums]  # thresholds lie at halves
    ties = [abs(place - math.floor(place) - Fraction(1, 2)) for place in places]
    parts = zip(ones, others, ties, strict=True)
    apart = [(abs(one - other), tie) for one, other, tie in parts if one != other]
    (region, *_) = qgraph.prove(*models, within="0.05step").regions
    assert region.bound.max_steps >= max(steps for steps, _ in apart)
    assert region.bound.tie_distance_steps >= max(tie for _, tie in apart)
    assert region.bound.deviation_steps > 0.05


def truncated(factor: float, scale: float) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (uint8[N] x) => (float[N] y)
        <float s = {{0.05}}, uint8 z = {{0}}, float step = {{0.1}}, float none = {{0}},
         float f = {{{factor!r}}}, float g = {{{1 / factor!r}}}, float bits = {{8}},
         float wide = {{{scale!r}}}> {{
            d = DequantizeLinear (x, s, z) a = Mul (d, f) b = Mul (a, g)
            y = qonnx.custom_op.general.Trunc <signed = 0, rounding_mode = "FLOOR">
                (b, step, none, bits, wide, bits)
        }}""")


@pytest.mark.parametrize(
    ("scales", "apart"), [((0.8, 1.6), 9), ((0.025, 0.025), 4), ((0.8, 0.8), 1)]
)
def test_codes_that_are_truncated_differ_by_what_both_roundings_move(scales, apart):
    """By 1.3 and back, 255 halves of a step are less than 127.5, and rounded to 127, not to 128."""
    sides = [truncated(*side) for side in zip((1.0, 1.3), scales, strict=True)]
    x = np.arange(256, dtype=np.uint8)
    codes = []
    for factor, wide in zip((1.0, 1.3), scales, strict=True):
        data = x * np.float32(0.05) * np.float32(factor) * np.float32(1 / factor)
        whole = np.rint(data / np.float32(0.1))
        codes.append(np.floor(np.minimum(whole / np.float32(wide / 0.1), 255)))
    assert np.abs(codes[0] - codes[1]).max() == apart
    found = qgraph.prove(*sides, within="1step")
    (bound,) = [r.bound for r in found.regions if r.bound is not None and not r.bound.absolute]
    assert apart <= bound.max_steps <= apart + 1

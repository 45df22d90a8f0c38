"""Bounds of sums against sums that are executed in many orders, and against exact numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.proof.bounds.paired_models import paired

CODES = np.arange(-128, 128)


def quantized(weights: np.ndarray, scale: float, x_scale: float, y_scale: float) -> ir.Model:
    """Return codes, decoded, times weight codes, decoded, quantized again."""
    rows, columns = weights.shape
    numbers = ", ".join(map(str, weights.reshape(-1)))
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,{rows}] x) => (int8[1,{columns}] y)
        <int8[{rows},{columns}] w = {{{numbers}}}, float s_w = {{{scale!r}}},
         float s_x = {{{x_scale!r}}}, float s_y = {{{y_scale!r}}}, int8 z = {{0}}> {{
            a = DequantizeLinear (x, s_x, z)
            b = DequantizeLinear (w, s_w, z)
            m = MatMul (a, b)
            [end] y = QuantizeLinear (m, s_y, z)
        }}""")


def bound_of(reference: ir.Model, candidate: ir.Model, **options: object):
    found = qgraph.prove(reference, candidate, within=Bounding("1000step", **options))
    assert found.verdict == "bounded"
    return next(region.bound for region in found.regions if region.verdict == "bounded")


def executed(x: np.ndarray, weights: np.ndarray, scales: tuple[float, ...], order: np.ndarray):
    """Return what is rounded, in steps, with the products added in the given order."""
    s_x, s_w, s_y = map(np.float32, scales)
    products = (x.astype(np.float32) * s_x)[:, None] * (weights.astype(np.float32) * s_w)
    total = np.zeros(weights.shape[1], np.float32)
    for place in order:
        total = total + products[place]
    return total / s_y


def ideal(x: np.ndarray, column: np.ndarray, scales: tuple[float, ...]) -> Fraction:
    """Return the same in exact numbers."""
    s_x, s_w, s_y = (Fraction(float(np.float32(scale))) for scale in scales)
    return Fraction(int(x.astype(np.int64) @ column.astype(np.int64))) * s_x * s_w / s_y


@pytest.mark.parametrize("rows", [3, 64, 300])
def test_no_order_of_additions_leaves_the_bound(rows):
    generator = np.random.default_rng(rows)
    weights = generator.integers(-127, 128, (rows, 4))
    scales = (0.0123, 0.0457, 0.37)
    # the same codes with a scale that is a few units in the last place larger
    moved = float(np.nextafter(np.float32(scales[1]), np.float32(1)))
    bound = bound_of(
        quantized(weights, scales[1], scales[0], scales[2]),
        quantized(weights, moved, scales[0], scales[2]),
    )
    worst = 0.0
    for _ in range(40):
        x = generator.choice(CODES, rows)
        products = x * weights[:, 0]
        for order in (generator.permutation(rows), np.argsort(products), np.argsort(-products)):
            found = executed(x, weights, scales, order)
            for column in range(4):
                exact = ideal(x, weights[:, column], scales)
                if abs(exact) < 129:  # beyond, both are clipped
                    worst = max(worst, abs(float(Fraction(float(found[column])) - exact)))
    assert 0 < worst <= bound.reference_error
    # Codes end at 128 steps, so the difference of the scales moves no more than these.
    reach = (np.abs(weights).sum(axis=0) * 128).max() * np.prod(scales[:2]) / scales[2]
    share = moved / float(np.float32(scales[1])) - 1
    assert bound.ideal_shift == pytest.approx(share * min(reach, 129), rel=0.02)
    assert bound.deviation_steps == pytest.approx(
        bound.reference_error + bound.candidate_error + bound.ideal_shift, rel=1e-9
    )


def test_sequential_chunks_have_a_smaller_bound():
    generator = np.random.default_rng(0)
    weights = generator.integers(-127, 128, (1024, 2))
    models = [quantized(weights, scale, 0.0123, 0.37) for scale in (0.01, 0.011)]
    any_order, chunks = (bound_of(*models, order=order) for order in ("any", "chunk:256"))
    assert any_order.reference_error >= 3 * chunks.reference_error


def test_a_bias_that_is_off_by_one_step_shifts_the_ideal_by_it():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2] x) => (int8[1,1] y)
        <int8[2,1] w = {3, -5}, float s = {0.5}, float s_y = {0.25}, int8 z = {0},
         float[1] b = {B}> {
            a = DequantizeLinear (x, s, z)
            v = DequantizeLinear (w, s, z)
            m = MatMul (a, v)
            n = Add (m, b)
            y = QuantizeLinear (n, s_y, z)
        }"""
    bound = bound_of(*(ir.from_onnx_text(text.replace("B", b)) for b in ("1", "1.25")))
    assert bound.ideal_shift == pytest.approx(1, rel=1e-3)
    # powers of two: nothing is rounded in any order
    assert bound.reference_error == bound.candidate_error == 0
    # so both codes are known for every sum, and a step before rounding is one after it
    assert bound.max_steps == 1


def test_codes_of_another_type_are_the_same_codes():
    texts = [
        """<ir_version: 10, opset_import: ["": 21]>
        net (float[1,2] x) => (float[1,2] y)
        <float s = {0.1}, TYPE z = {ZERO}, float[2,2] w = {1, 2, 3, 4}> {
            q = QuantizeLinear (x, s, z)
            a = DequantizeLinear (q, s, z)
            y = MatMul (a, w)
        }""".replace("TYPE", kind).replace("ZERO", zero)
        for kind, zero in (("uint8", "128"), ("int8", "0"))
    ]
    found = qgraph.prove(*map(ir.from_onnx_text, texts), within="1step")
    assert found.verdict in ("proved", "bounded")
    assert not found.beyond


def test_common_divisors_of_long_rows_belong_to_the_scale():
    ones, twice = np.full((40, 1), -1), np.full((40, 1), -2)
    reference = quantized(ones, 0.5, 0.25, 0.25)
    assert qgraph.prove(reference, quantized(twice, 0.25, 0.25, 0.25)).verdict == "proved"
    # the last weight is off by 0.25, times 128 codes of 0.25, in steps of 0.25
    twice[-1] = -3
    bound = bound_of(reference, quantized(twice, 0.25, 0.25, 0.25))
    assert bound.ideal_shift == pytest.approx(32, rel=1e-3)


def test_a_mean_has_the_errors_of_its_elements():
    """All elements may be off by as much, in one direction."""

    def pooled(pool: str, step: float) -> ir.Model:
        weights = ", ".join(["1", "-0.7", "1"] * 40)
        return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[1,120,2,2] x) => (int8[] y)
            <float s = {{0.1}}, int8 z = {{0}}, float[1,120,1,1] w = {{{weights}}},
             float t = {{{step}}}> {{
                a = DequantizeLinear (x, s, z)
                c = Conv (a, w)
                m = {pool} (c)
                y = QuantizeLinear (m, t, z)
            }}""")

    plain, mean = (
        bound_of(pooled(pool, 0.5), pooled(pool, 0.50001)).reference_error
        for pool in ("Identity", "GlobalAveragePool")
    )
    assert plain <= mean <= 1.1 * plain


def test_a_cast_beyond_its_type_has_no_bound():
    def cast(high: int, step: float) -> ir.Model:
        return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[1,2] q) => (float[1,2] y)
            <float s = {{0.37}}, int8 z = {{0}}, float[2,2] w = {{1, -0.7, 0.3, 2}},
             float lo = {{-8}}, float hi = {{{high}}}, float t = {{{step}}}> {{
                a = DequantizeLinear (q, s, z)
                m = MatMul (a, w)
                d = Div (m, t)
                r = Round (d)
                c = Clip (r, lo, hi)
                k = Cast <to = 3> (c)
                f = Cast <to = 1> (k)
                y = Mul (f, t)
            }}""")

    for high, is_bounded in ((127, True), (128, False)):
        segments = paired((cast(high, 0.25), cast(high, 0.25001)), Bounding()).segments
        reasons = [segment.reason for segment in segments]
        assert (reasons == [None] * len(reasons)) == is_bounded, reasons


def test_terms_that_cancel_are_added_before_or_after_the_others():
    def fused(step: float) -> ir.Model:
        return ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        net (uint8[1,1,16,16] x, uint8[1,1,16,16] v) => (int8[1,1,16,16] y)
        <uint8 z = {{0}}, float s = {{0.0039}}, float r = {{8}}, float low = {{999}},
         float high = {{1001}}, float[1,1,1,1] w = {{0.37}}, float[1] bias = {{-1000}},
         float t = {{{step}}}, int8 p = {{0}}> {{
            a = DequantizeLinear (x, s, z)
            b = DequantizeLinear (v, r, z)
            c = Clip (b, low, high)
            m = com.microsoft.FusedConv (a, w, bias, c)
            y = QuantizeLinear (m, t, p)
        }}""")

    found = bound_of(fused(1e-4), fused(1.00001e-4))
    products = np.arange(256, dtype=np.float32) * np.float32(0.0039) * np.float32(0.37)
    last = (products + np.float32(1000)) - np.float32(1000)
    off = np.max(np.abs(last - products)) / 1e-4
    assert 0.1 < off <= found.reference_error


def test_subnormal_products_are_multiplied_after_their_rounding():
    def scaled(step: float) -> ir.Model:
        return ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        net (uint8[1,8] x, uint8[8,1] v) => (uint8[1,1] y)
        <uint8 z = {{0}}, float scale = {{1e-6}}, float step = {{{step}}}> {{
            s = Cast <to = 10> (scale)
            t = Cast <to = 10> (step)
            a = DequantizeLinear (x, s, z)
            b = DequantizeLinear (v, s, z)
            m = com.microsoft.FusedMatMul <alpha = 32768.0> (a, b)
            y = QuantizeLinear (m, t, z)
        }}""")

    found = bound_of(scaled(0.001), scaled(0.00101))
    data = np.float16(200) * np.float16(1e-6)
    exact = 8 * float(data) ** 2 * 32768
    executed = float(np.float16(8) * (data * data)) * 32768
    assert 4 < abs(executed - exact) / 0.001 <= found.reference_error


TURNED = """<ir_version: 10, opset_import: ["": 21]>
net (uint8[1,2,3] c) => (float[1,3,1] y)
<float s = {0.25}, uint8 z = {128}, float[3] g = {1, 2, 100}, float[2,1] w = {1, 0.5},
 float[1] b = {BIAS}, float t = {0.5}> {
    x = DequantizeLinear (c, s, z)
    n = LayerNormalization (x, g)
    q = QuantizeLinear (n, s, z)
    d = DequantizeLinear (q, s, z)
    r = Transpose <perm = [0, 2, 1]> (d)
    m = MatMul (r, w)
    a = Add (m, b)
    e = QuantizeLinear (a, t, z)
    y = DequantizeLinear (e, t, z)
}"""


def test_data_may_have_other_limits_in_each_place_of_a_channel() -> None:
    """Normalized data times g are within 1.42, 2.83 and 141: limits of rows, not added."""
    reference, candidate = (ir.from_onnx_text(TURNED.replace("BIAS", b)) for b in ("0", "0.1"))
    segments = paired((reference, candidate), Bounding("1step")).segments
    assert [segment.reason for segment in segments] == [None] * 3
    # the bias of 0.1, in steps of 0.5
    assert float(segments[1].deviation.max()) == pytest.approx(0.2, rel=1e-3)


TWO_CONVS = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[1,1,5,5] one, uint8[1,3,5,5] three) => (uint8[1,2,5,5] y)
    <float s = {0.3}, uint8 z = {Z}, uint8 z3 = {Z3}, float[2,1,3,3] w = {W},
     float[2,3,3,3] w3 = {W3}, float s_y = {0.1}, uint8 z_y = {100}> {
        a = DequantizeLinear (one, s, z)
        b = DequantizeLinear (three, s, z3)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        d = Conv <pads = [1, 1, 1, 1]> (b, w3)
        t = Add (TERMS)
        [end] y = QuantizeLinear (t, s_y, z_y)
    }"""


@pytest.mark.parametrize("terms", ["c, d", "d, c"])
def test_borders_of_one_and_of_three_channels_are_no_borders_of_equal_weights(terms: str) -> None:
    """The offsets of one and of three channels do not cancel: 9 * (3 - 1) * 0.3 * 0.01 is left."""
    text = TWO_CONVS.replace("TERMS", terms)
    for name, count in (("{W}", 18), ("{W3}", 54)):
        text = text.replace(name, f"{{{', '.join(['0.01'] * count)}}}")
    models = [
        ir.from_onnx_text(text.replace("{Z}", f"{{{z}}}").replace("{Z3}", f"{{{other}}}"))
        for z, other in ((10, 10), (11, 9))
    ]
    (region,) = (
        region for region in qgraph.prove(*models, within="100step").regions if region.bound
    )
    assert region.bound is not None
    assert region.bound.ideal_shift >= 0.54


PADDED = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[1,3,5,5] x) => (uint8[1,2,6,6] y)
    <float[N] s = {S}, uint8[N] z = {Z}, int8[2,N,1,1] w = {W}, float s_w = {0.01},
     float s_y = {0.1}, uint8 z_y = {100}, int64[8] pads = {0, 0, 0, 0, 0, 1, 0, 0},
     uint8 four = {FILL}> {
        PAD
        a = DequantizeLinear (p, s, z)
        v = DequantizeLinear (w, s_w)
        t = Conv <pads = [1, 1, 0, 0]> (a, v)
        [end] y = QuantizeLinear (t, s_y, z_y)
    }"""


@pytest.mark.parametrize(("fill", "weight", "most"), [(4, 0, 1e-2), (9, 0, None), (4, 1, None)])
def test_an_added_channel_may_have_a_scale_of_its_own(fill, weight, most) -> None:
    three = ("{0.3, 0.2, 0.1}", "{4, 4, 4}", "{7, -8, 20, 3, 11, -2}", "p = Identity (x)")
    four = (
        "{0.3, 0.2, 0.1, 0.7}",
        "{4, 4, 4, 4}",
        f"{{7, -8, 20, {weight}, 3, 11, -2, {weight}}}",
        "p = Pad (x, pads, four)",
    )
    models = []
    for count, (scales, points, weights, pad) in ((3, three), (4, four)):
        text = PADDED.replace("[N]", f"[{count}]").replace(",N,", f",{count},")
        text = text.replace("{S}", scales).replace("{Z}", points).replace("{W}", weights)
        models.append(ir.from_onnx_text(text.replace("PAD", pad).replace("FILL", str(fill))))
    proof = qgraph.prove(*models, within="1step")
    bounds = [region.bound for region in proof.regions if region.bound is not None]
    assert not any("shape" in (region.reason or "") for region in proof.regions)
    if most is not None:
        assert bounds[0].deviation_steps < most

"""Segments whose codes are compared for every whole number that enters them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

import qgraph

HEAD = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2] x) => (TYPE[1,2] y)
    <int8[2,2] w = {3, -5, 7, 100}, float s_x = {0.0123}, float s_w = {0.0371}, float s_y = {3.7},
     float unit = {UNIT}, int8 z = {0}, int8 z_x = {3}, float one = {1}, float i = {0.25},
     float j = {2.1}, float k = {0.7}> """
UNIT = np.float32(0.0123) * np.float32(0.0371)
OPERATORS = "{ [end] y = QLinearMatMul (x, s_x, z_x, w, s_w, z, s_y, z) }"
SUMS = """{
    a = DequantizeLinear (x, one, z_x)
    v = Cast <to = 1> (w)
    m = MatMul (a, v)
    n = Mul (m, unit)
    [end] y = QuantizeLinear (n, s_y, z)
}"""


def prove(*bodies: str, kind: str = "int8", within: str = "1step", unit: object = UNIT):
    head = HEAD.replace("UNIT", repr(float(unit))).replace("TYPE", kind)
    return qgraph.prove(*(ir.from_onnx_text(head + body) for body in bodies), within=within)


@pytest.mark.cases(fast=0)
@pytest.mark.parametrize("bodies", [(SUMS, OPERATORS), (OPERATORS, SUMS)])
def test_exact_sums_are_proved_where_multiplier_and_division_give_the_same_codes(bodies):
    found = prove(*bodies)
    assert (found.verdict, found.exactness) == ("proved", "values")
    end = found.regions[0]
    # What is rounded does differ: one model multiplies by a quotient, and the other one divides.
    assert end.bound.deviation_steps > 0
    assert end.bound.max_steps == 0


def test_exact_sums_that_give_other_codes_are_counted():
    # 0.1 / 0.2 is half a step for one unit of the sum: every second sum is a tie
    f = np.float32
    body = SUMS.replace("s_y, z)", "k, z)")
    divided = body.replace("Mul (m, unit)", "Div (m, i)")
    head = HEAD.replace("UNIT", "0.1").replace("TYPE", "int8").replace("0.25", "10")
    head = head.replace("k = {0.7}", "k = {0.2}")
    found = qgraph.prove(*(ir.from_onnx_text(head + b) for b in (body, divided)), within="1step")
    # x - 3 lies in -131 .. 124; the weights of a channel are 3 and 7, or 5 times -1 and 20
    sums = [np.arange(-131 * 10, 124 * 10 + 1), 5 * np.arange(-124 - 131 * 20, 131 + 124 * 20 + 1)]
    counts, largest = 0, 0
    for total in sums:
        ours, theirs = (
            np.clip(np.rint(n / f(0.2)), -128, 127)
            for n in (total.astype(f) * f(0.1), total.astype(f) / f(10))
        )
        counts += int((ours != theirs).sum())
        largest = max(largest, int(np.abs(ours - theirs).max()))
    end = found.regions[0]
    assert counts
    assert (found.verdict, end.bound.max_steps, end.differing_inputs) == (
        "bounded",
        largest,
        counts,
    )
    channel, at = end.witness_channel, end.witness.input
    assert at in sums[channel] / (1, -5)[channel]
    assert end.witness.reference != end.witness.candidate


ELEMENTWISE = """{
    a = DequantizeLinear (x, s_x, z_x)
    r = Relu (a)
    m = Mul (r, k)
    [end] q = QuantizeLinear (m, i, z)
    y = DequantizeLinear (q, i, z)
}"""


def test_an_elementwise_chain_is_counted_over_all_codes():
    other = ELEMENTWISE.replace("s_x, z_x", "k, z_x").replace("(r, k)", "(r, s_x)")
    found = prove(ELEMENTWISE, other, kind="float")
    f = np.float32
    codes = np.arange(-128, 128) - 3
    sides = [
        np.clip(np.rint(np.maximum(codes.astype(f) * a, 0) * b / f(0.25)), -128, 127)
        for a, b in ((f(0.0123), f(0.7)), (f(0.7), f(0.0123)))
    ]
    assert found.verdict == ("proved" if np.array_equal(*sides) else "bounded")
    exact = Fraction(float(f(0.0123))) * Fraction(float(f(0.7)))
    assert abs(float(exact) - 0.0123 * 0.7) < 1e-7


LAYERS = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2] x) => (float[1,2] y)
    <int8[2,2] w = {3, -5, 7, 100}, int8[2,2] v = {9, 50, -70, 1}, float s = {0.01}, int8 z = {0},
     float t = {0.02}, int8 lo = {LOW}, int8 hi = {HIGH}> {
        a = DequantizeLinear (x, s, z)
        b = DequantizeLinear (FIRST, s, z)
        m = MatMul (a, b)
        [first] q = QuantizeLinear (m, s, z)
        c = Clip (q, lo, hi)
        d = DequantizeLinear (c, s, z)
        e = DequantizeLinear (SECOND, s, z)
        n = MatMul (d, e)
        [second] p = QuantizeLinear (n, t, z)
        y = DequantizeLinear (p, t, z)
    }"""


def bounds_of(*changes: dict[str, str]):
    models = []
    for change in changes:
        text = LAYERS
        for name, value in (
            {"LOW": "-9", "HIGH": "15", "FIRST": "w", "SECOND": "v"} | change
        ).items():
            text = text.replace(name, value)
        models.append(ir.from_onnx_text(text))
    found = qgraph.prove(*models, within="1step")
    assert found.verdict == "bounded"
    return {region.reference_nodes[-1]: region for region in found.regions}, found


@pytest.mark.cases(fast=0)
@pytest.mark.parametrize("flip", [False, True])
def test_codes_beyond_the_limits_of_one_model_count(flip):
    changes = [{}, {"HIGH": "127"}]
    regions, found = bounds_of(*(changes[::-1] if flip else changes))
    # 100 * 127 * 0.01 is beyond 127 steps
    assert regions["first"].bound.max_steps >= 127 - 15
    assert found.beyond


def test_exchanged_weights_are_no_proof_of_the_second_layer():
    regions, _ = bounds_of({}, {"FIRST": "v", "SECOND": "w"})
    # sums of a first channel for codes of -9 to 15: 3 * 15 + 5 * 9 there, or 9 * 15 + 50 * 15
    assert regions["second"].verdict == "bounded"
    assert regions["second"].bound.max_steps > 1


WRAPPING = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,1,2] x) => (int8[1,1,2] y)
    <int8[1,1,1] w = {100}, float s = {0.5}, float[1] t = {0.25}, float s_y = {STEP}, int8 z = {0},
     int8[1] z_w = {0}, int32[1] b = {2147480000}, float[1] c = {268435000}> """
WRAPS = "{ [end] y = QLinearConv (x, s, z, w, t, z_w, s_y, z, b) }"
GOES_ON = """{
    a = DequantizeLinear (x, s, z)
    v = DequantizeLinear <axis = 0> (w, t, z_w)
    m = Conv (a, v, c)
    [end] y = QuantizeLinear (m, s_y, z)
}"""


def wrapping(*bodies: tuple[str, str]):
    texts = [WRAPPING.replace("STEP", step) + body for body, step in bodies]
    return qgraph.prove(*map(ir.from_onnx_text, texts), within="1step")


def test_sums_that_wrap_around_alike_are_bounded_and_named():
    found = wrapping((WRAPS, "2.5e6"), (WRAPS, "2.500001e6"))
    assert found.verdict == "bounded"
    # 100 * 127 + 2147480000 is beyond 2**31 - 1
    assert any("it is 2147492700 where" in condition for condition in found.conditions)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("bodies", [(WRAPS, GOES_ON), (GOES_ON, WRAPS)])
def test_a_sum_that_wraps_around_in_one_model_is_named(bodies):
    found = wrapping(*((body, "2.5e6") for body in bodies))
    assert found.verdict == "undecided"
    assert "QG065" in [region.reason_id for region in found.regions]


def test_a_sum_that_wraps_around_is_named_at_an_output():
    text = (
        """<ir_version: 10, opset_import: ["": 21]> net (uint8[N,33100] x) => (float[N,1] y) BODY"""
    )
    bodies = (
        "{ a = MatMulInteger (x, w) y = Cast <to = 1> (a) }",
        "{ a = Cast <to = 1> (x) b = Cast <to = 1> (w) y = MatMul (a, b) }",
    )
    pair = [ir.from_onnx_text(text.replace("BODY", body)) for body in bodies]
    for model in pair:
        weights = ir.tensor(np.full((33100, 1), 255, np.uint8), name="w")
        value = next(v for node in model.graph for v in node.inputs if v.name == "w")
        value.const_value, value.dtype, value.shape = weights, weights.dtype, weights.shape
        model.graph.register_initializer(value)
    assert 33100 * 255 * 255 > 2**31
    (region,) = qgraph.prove(*pair, within="1step").regions
    assert (region.verdict, region.reason_id) == ("undecided", "QG065")
    assert "it is 2152327500 where codes less their zero point are 255" in str(region.reason)

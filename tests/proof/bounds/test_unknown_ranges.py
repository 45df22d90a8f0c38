"""Bounds of sums with an input of unknown range: beyond the limits of the codes, all is clipped."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from tests.verify.checking import checked

WEIGHTS = np.float32([[0.31, -0.52], [0.17, 0.44]])
SCALE = np.float32(0.0371)


def model(factor: float, scale: np.float32) -> ir.Model:
    weights = ", ".join(repr(float(w)) for w in np.float32(WEIGHTS * factor).reshape(-1))
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2] x, float[N,2] a) => (float[N,2] y)
        <float s = {{0.05}}, int8 z = {{0}}, float t = {{{float(scale)!r}}},
         float[2,2] w = {{{weights}}}> {{
            i = Mul (x, t)
            q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z)
            m = MatMul (d, w) r = Add (i, m) e = Add (r, m)
            [last] p = QuantizeLinear (e, t, z) y = DequantizeLinear (p, t, z)
        }}""")


def test_sums_with_an_input_of_unknown_range_are_bounded_up_to_the_limits_of_the_codes():
    near = np.nextafter(SCALE, np.float32(1))
    sides = model(1.0, SCALE), model(1 + 2.0**-18, near)
    found = qgraph.prove(*sides, within="1step")
    assert found.verdict == "bounded"
    (bound,) = [r.bound for r in found.regions if "last" in r.reference_nodes]
    assert bound.ideal_shift < 2e-3
    random = np.random.default_rng(3)
    x = random.uniform(-200, 200, (4000, 2)) * 10.0 ** random.integers(-3, 30, (4000, 1))
    x, a = x.astype(np.float32), random.uniform(-8, 8, (4000, 2)).astype(np.float32)
    codes, products = np.clip(np.rint(a / np.float32(0.05)), -128, 127), []
    decoded = (codes.astype(np.float32) * np.float32(0.05)).astype(np.float64)
    for factor, scale in ((1.0, SCALE), (1 + 2.0**-18, near)):
        w = np.float32(WEIGHTS * factor).astype(np.float64)
        products.append(x.astype(np.float64) + 2 * (decoded @ w) / float(scale))
    executed = [
        qgraph.load(side).run({"x": x, "a": a}, backend="numpy")["y"] / np.float32(scale)
        for side, scale in zip(sides, (SCALE, near), strict=True)
    ]
    ours, theirs = (np.clip(product, -128, 127) for product in products)
    assert np.abs(ours - theirs).max() <= bound.ideal_shift
    errors = bound.reference_error, bound.candidate_error
    for ideal, found_codes, error in zip((ours, theirs), executed, errors, strict=True):
        assert (np.abs(np.rint(found_codes) - ideal) <= 0.5 + error).all()


def test_other_factors_of_an_input_of_unknown_range_move_codes_up_to_the_limits():
    text = str(ir.to_onnx_text(model(1.0, SCALE))).replace("Mul (x, t)", "Mul (x, u)")
    other = ir.from_onnx_text(text.replace("int8 z", "float u = {0.0557}, int8 z", 1))
    sides = model(1.0, SCALE), other
    found = qgraph.prove(*sides, within="200step")
    (bound,) = [r.bound for r in found.regions if "last" in r.reference_nodes]
    x, a = np.float32([[85, -85]]), np.zeros((1, 2), np.float32)
    ours, theirs = (qgraph.load(s).run({"x": x, "a": a}, backend="numpy")["y"] for s in sides)
    assert 42 <= np.abs(ours - theirs).max() / SCALE <= bound.max_steps


def scaled(up: float, down: float, *more: str, scale: float = 2.0**60) -> ir.Model:
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[1,2] x) => (uint8[1,2] y)
        <float s = {{{scale!r}}}, uint8 z = {{0}}, float f = {{{up!r}}}, float g = {{{down!r}}}> {{
            a = Mul (x, f)
            {" ".join(more) or "b = Identity (a)"}
            c = Mul (b, g)
            [last] y = QuantizeLinear (c, s, z)
        }}""")


OVERFLOWING = {
    "plain": (),
    "moved": ("m = Transpose <perm = [1, 0]> (a)", "b = Transpose <perm = [1, 0]> (m)"),
    "limited": ("b = Relu (a)",),
}


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("name", OVERFLOWING)
def test_products_that_overflow_are_not_bounded(name):
    """All numbers above 2**28 become infinite, and code 3 becomes 255."""
    nodes = OVERFLOWING[name]
    models = scaled(2.0, 0.5, *nodes), scaled(2.0**100, 2.0**-100, *nodes)
    x = np.float32([[3 * 2.0**60, 2.0**61]])
    with np.errstate(over="ignore"):
        results = [
            qgraph.load(each).run({"x": x}, backend="numpy")["y"].tolist() for each in models
        ]
    assert results == [[[3, 2]], [[255, 255]]]
    found = qgraph.prove(*models, within="1step")
    assert all(r.verdict != "bounded" or r.bound.max_steps >= 252 for r in found.regions)


def test_a_certificate_is_not_confirmed_for_products_that_overflow():
    near = scaled(4.0, 0.25), scaled(3.0, 0.3334)
    document = qgraph.prove(*near, within="1step", evidence=True).to_json()
    assert document["verdict"] == "bounded"
    others = scaled(4.0, 0.25), scaled(3 * 2.0**100, 0.3334 * 2.0**-100)
    assert document["regions"][0]["verdict"] == "bounded"
    assert str(checked(document, *near).regions[0].status) == "checked"
    assert str(checked(document, *others).regions[0].status) != "checked"


@pytest.mark.parametrize("limit", ["Max (d, low)", "Min (low, d)"])
def test_data_with_a_limit_for_each_channel_are_bounded(limit):
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[N,2] x) => (float[N,2] y)
        <float s = {0.05}, uint8 z = {0}, float[2] low = {0.3, 0.7}, float f = {FACTOR}> {
            q = QuantizeLinear (x, s, z) e = DequantizeLinear (q, s, z) d = Mul (e, f)
            m = LIMIT p = QuantizeLinear (m, s, z) y = DequantizeLinear (p, s, z)
        }"""
    models = [
        ir.from_onnx_text(text.replace("LIMIT", limit).replace("FACTOR", factor))
        for factor in ("1.3", "1.3001")
    ]
    found = qgraph.prove(*models, within="1step")
    assert found.verdict == "bounded"

"""Codes that show how far two segments lie apart at least."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Bound, SeenCodes
from qgraph.certificate import Certificate, RegionVerdict, json_schema
from qgraph.text import json_text
from tests.verify.checking import verify

CONV = """<ir_version: 10, opset_import: ["": 21]>
    net (float[1,2,6,6] x) => (float y)
    <float s = {0.015625}, int8 z = {0}, int8[4,2,3,3] w = {W}, float s_w = {0.0078125},
     float t = {0.0625}, float[4] b = {0.1, -0.2, 0.3, BIAS}> {
        q = QuantizeLinear (x, s, z)
        a = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, s_w, z)
        m = Conv <strides = [2, 1]> (a, v, b)
        p = QuantizeLinear (m, t, z)
        y = DequantizeLinear (p, t, z)
    }"""
WEIGHTS = np.random.default_rng(0).integers(-3, 4, (4, 2, 3, 3))


def conv(weights: np.ndarray, bias: float = 0.4) -> ir.Model:
    numbers = f"{{{', '.join(map(str, weights.ravel().tolist()))}}}"
    return ir.from_onnx_text(CONV.replace("{W}", numbers).replace("BIAS", str(bias)))


def region(certificate: Certificate, name: str) -> RegionVerdict:
    return next(each for each in certificate.regions if each.reference_value == name)


def bound_of(certificate: Certificate, name: str = "p") -> Bound:
    bound = region(certificate, name).bound
    assert bound is not None
    return bound


def results(model: ir.Model, x: np.ndarray) -> np.ndarray:
    return qgraph.load(model).run({"x": x.astype(np.float32)}, backend="numpy")["y"]


@pytest.fixture
def far() -> tuple[ir.Model, ir.Model]:
    """Two models whose weights differ so that no constant codes show it: the sum is the same."""
    others = WEIGHTS.copy()
    others[2, 0, 1, 2] += 60
    others[2, 1, 0, 0] -= 60
    return conv(WEIGHTS), conv(others)


def test_what_is_seen_is_what_the_models_compute(far):
    bound = bound_of(qgraph.prove(*far, within="1step"))
    seen = bound.seen
    assert seen is not None
    # 60 * (127 + 128) products of 2**-13, in steps of 2**-4
    most = 60 * 255 * 2.0**-9
    assert most - 1 <= seen.difference <= np.ceil(most)
    assert bound.max_steps == 60 * 256 // 2**9 + 1
    (start,) = seen.starts
    assert start.value == "q"
    codes = start.array((1, 2, 6, 6))
    one, other = (results(model, codes * 2.0**-6) for model in far)
    apart = np.abs(one - other) / 0.0625
    assert apart.max() == apart[seen.element] == seen.difference


def test_a_bias_shows_as_a_difference_of_one_step():
    models = conv(WEIGHTS), conv(WEIGHTS, 0.42)
    bound = bound_of(qgraph.prove(*models, within="0.1step"))
    # 0.02 / 0.0625 are 0.32 steps
    assert bound.seen is not None
    assert bound.seen.difference == bound.max_steps == 1


def test_bounds_within_the_limits_are_not_run(far):
    assert bound_of(qgraph.prove(*far, within="40step")).seen is None


def test_certificates_hold_what_was_seen(far):
    certificate = qgraph.prove(*far, within="1step", evidence=True)
    document = json.loads(json_text(certificate.to_json()))
    jsonschema.validate(document, json_schema())
    assert Certificate.from_json(document).regions == certificate.regions
    assert verify(document, *far) == "bounded"
    (stated,) = [r["bound"] for r in document["regions"] if r["reference_value"] == "p"]
    # The checker leaves this bound to the prover, which must find the same difference.
    stated["seen"]["difference"] -= 1
    assert verify(document, *far) == "undecided"
    del stated["seen"]
    assert bound_of(Certificate.from_json(document)).seen is None


def test_mixed_codes_are_those_of_their_formula():
    codes = SeenCodes("q", -8.0, ((1, 2),), (5.0,), levels=16).array((2, 3))
    expected = [-8 + (40503 * i % 65521) % 16 for i in range(5)]
    assert codes.ravel().tolist() == [*expected, 5]


MATMUL = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[N,4] x) => (uint8[N,2] y)
    <float s = {0.5}, uint8 z = {3}, float[4,2] w = {1, 2, 3, -4, OTHER, 6, -7, 8}, float t = {8}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        y = QuantizeLinear (m, t, z)
    }"""


def test_segments_that_start_from_an_input_show_it():
    models = [ir.from_onnx_text(MATMUL.replace("OTHER", text)) for text in ("5", "5.6")]
    seen = bound_of(qgraph.prove(*models, within="1step"), "y").seen
    assert seen is not None
    (start,) = seen.starts
    assert start.value == "x"
    x = start.array((1, 4)).astype(np.uint8)
    one, other = (
        qgraph.load(model).run({"x": x}, backend="numpy")["y"].astype(int) for model in models
    )
    # up to 252 * 0.5 * 0.6 / 8 = 9.45 steps
    assert np.abs(one - other).max() == seen.difference >= 9


def test_a_segment_without_elements_shows_nothing():
    text = """<ir_version: 10, opset_import: ["": 21]>
    net (float[0,4] x) => (float[0,4] y) <float s = {0.5}, int8 z = {0}> {
        c = QuantizeLinear (x, s, z)
        y = DequantizeLinear (c, s, z)
    }"""
    one = ir.from_onnx_text(text)
    other = qgraph.load(one)
    qgraph.convert(other, to="onnx")
    found = qgraph.prove(one, other)
    assert str(found.verdict) in ("proved", "bounded")
    assert all(each.bound is None or each.bound.seen is None for each in found.regions)

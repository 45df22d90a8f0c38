"""Passes that change nothing change nothing for unusual parameters and shapes, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.reports import SiteStatus
from qgraph.transforms.canonical_operators import CanonicalOperators
from qgraph.transforms.lowered_operators import RaiseIntegerOperators
from qgraph.transforms.runtime_faults import FloatSoftmax, SeparatePairs

HEAD = '<ir_version: 9, opset_import: ["": 19]> '


def model(text: str, **constants: np.ndarray) -> Model:
    proto = onnx.parser.parse_model(HEAD + text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return qgraph.load(proto)


def run(tested: Model, data: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return tested.run({tested.inputs[0].name: data}, backend="numpy")["y"]


@pytest.mark.parametrize("step", ["s = Squeeze (m)", "s = Reshape (m, none)"])
@pytest.mark.parametrize("end", ["Mul (s, k)", "Mul (k, s)", "Div (s, k)"])
def test_a_factor_of_shape_1_gives_a_number_an_axis(step, end):
    text = f"""g (int8[1,3] c) => (float y) <float t = {{0.5}}, float[1] k = {{3}}> {{
        d = DequantizeLinear (c, t)
        v = DequantizeLinear (w, t)
        m = MatMul (d, v)
        {step}
        y = {end}
    }}"""
    constants = {"w": np.int8([[1], [3], [5]]), "none": np.int64([])}
    tested, codes = model(text, **constants), np.int8([[2, 4, 6]])
    before = run(tested, codes)
    assert before.shape == (1,)
    tested.apply(CanonicalOperators())
    after = run(tested, codes)
    assert after.shape == (1,)
    np.testing.assert_array_equal(before, after)


FLAT = """g (float[N,3,2] x) => (float[N,M] y) <float t = {0.5}> {
    q = QuantizeLinear (x, t)
    d = DequantizeLinear (q, t)
    y = Flatten (d)
}"""


@pytest.mark.runtime
def test_an_empty_batch_is_flattened():
    runtime = pytest.importorskip("onnxruntime")
    tested = model(FLAT)
    (site,) = tested.apply(CanonicalOperators(forms="flatten")).sites
    assert site.verdict is not None
    assert (site.spelling, site.verdict.exactness) == ("Reshape", Exactness.BITS)
    session = runtime.InferenceSession(
        tested.to_proto().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for rows in (0, 2):
        (y,) = session.run(None, {"x": np.ones((rows, 3, 2), np.float32)})
        assert y.shape == (rows, 6)


@pytest.mark.parametrize("step", [SeparatePairs(), FloatSoftmax()])
@pytest.mark.parametrize(("scale", "zero"), [(np.inf, 0), (-np.inf, 255)])
def test_infinite_scales_have_no_lowest_number(step, scale, zero):
    """The code of zero stands for NaN then, and a Max with NaN would give NaN everywhere."""
    text = """g (uint8[4] c) => (float[4] y) <float t = {0.1}, int8 u = {0}> {
        d = DequantizeLinear (c, s, z)
        p = QuantizeLinear (d, t, u)
        f = DequantizeLinear (p, t, u)
        o = Softmax (d)
        y = Identity (f)
    }"""
    tested = model(text, s=np.float32(scale), z=np.uint8(zero))
    codes = np.uint8([0, 1, 200, 255])
    before = run(tested, codes)
    assert np.isfinite(before).all()
    assert len(np.unique(before)) == 2
    report = tested.apply(step)
    assert report.count(SiteStatus.CHANGED) == 0
    np.testing.assert_array_equal(before, run(tested, codes))


@pytest.mark.parametrize("limit", ["Relu (m)", "Clip (m, low)"])
@pytest.mark.parametrize(("scale", "raised"), [(0.5, True), (-0.5, False)])
def test_saturation_replaces_no_limit_before_a_negative_scale(limit, scale, raised):
    text = f"""g (int8[256,1] c) => (int8[256,2] y)
        <float t = {{0.5}}, float s = {{{scale}}}, int8 z = {{-128}}, float low = {{0}}> {{
        d = DequantizeLinear (c, t)
        v = DequantizeLinear (w, t)
        m = MatMul (d, v)
        r = {limit}
        y = QuantizeLinear (r, s, z)
    }}"""
    tested, codes = model(text, w=np.int8([[1, -2]])), np.arange(-128, 128)
    codes = codes.astype(np.int8).reshape(-1, 1)
    before = run(tested, codes)
    sums = np.maximum(codes.astype(int) * [1, -2] * 0.25, 0)
    np.testing.assert_array_equal(before, np.clip(np.rint(sums / scale) - 128, -128, 127))
    report = tested.apply(RaiseIntegerOperators(exact=Exactness.NEAR))
    assert report.count(SiteStatus.CHANGED) == raised
    np.testing.assert_array_equal(before, run(tested, codes))

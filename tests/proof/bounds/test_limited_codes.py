"""A Relu or Clip behind a quantizer in one model, and before it in the other."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest

import qgraph
from qgraph.proof.bounds.paired_models import with_limited_codes
from qgraph.text import json_text
from tests.verify.checking import checked, verify

MODEL = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,4] i) => (float[1,3] y)
    <float s = {0.05}, TYPE z = {ZERO}, int8 none = {0}, float zero = {0}, float six = {6},
     float[4,3] w = {1.1, -2.2, 0.3, 4.7, -0.5, 0.6, 1.9, 0.8, -0.9, 1.3, -1.7, 0.2},
     float[3] b = {0.1, -0.2, 0.3}> {
        d = DequantizeLinear (i, s, none)
        SUM
        NODES
    }"""
SUMS = "x = Gemm (d, w, b)", "m = MatMul (d, w) x = Add (m, b)"
INNER = "q = QuantizeLinear (x, s, z) a = DequantizeLinear (q, s, z)"
OUTER = "p = QuantizeLinear (r, s, z) y = DequantizeLinear (p, s, z)"


def pair(
    nodes: tuple[str, str],
    kind: str = "int8",
    zero: int = 0,
    *,
    constants: str = "",
    shape: str = "1,3",
) -> tuple[ir.Model, ir.Model]:
    text = (
        MODEL.replace("TYPE", kind)
        .replace("float[1,3] y", f"float[{shape}] y")
        .replace("ZERO", str(zero))
        .replace("<float s", f"<{constants}float s")
    )
    one, other = (
        ir.from_onnx_text(text.replace("SUM", each).replace("NODES", some))
        for each, some in zip(SUMS, nodes, strict=True)
    )
    return one, other


def largest(models: tuple[ir.Model, ir.Model]) -> float:
    """Return the largest number of steps between results of random codes."""
    random, worst = np.random.default_rng(0), 0.0
    for _ in range(12):
        codes = random.integers(-128, 128, (1, 4)).astype(np.int8)
        one, other = (qgraph.load(m).run({"i": codes}, backend="numpy")["y"] for m in models)
        worst = max(worst, float(np.abs(one - other).max() / 0.05))
    return worst


LIMITS = {"Relu": "r = Relu (X)", "Clip": "r = Clip (X, zero, six)"}


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("kind", "zero"), [("int8", 0), ("int8", -5), ("uint8", 128)])
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_decoded_codes_is_one_of_codes(name, kind, zero, turned):
    limit = LIMITS[name]
    nodes = f"{INNER} {limit.replace('X', 'a')} {OUTER}", f"{limit.replace('X', 'x')} {OUTER}"
    models = pair(nodes[::-1] if turned else nodes, kind, zero)
    certificate = qgraph.prove(*models, within="1step", evidence=True)
    assert str(certificate.verdict) == "bounded"
    assert not certificate.beyond
    assert largest(models) <= 1.001
    document = json.loads(json_text(certificate.to_json()))
    assert verify(document, *models) == "bounded"


@pytest.mark.cases(fast=1, slow=1)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("zero", [0, 128])
def test_a_limit_is_that_of_decoded_codes_as_executed(zero, turned):
    """The limit 3 * 0.05 is above the real number, and four steps are above it."""
    step = np.float32(0.05)
    top = np.float32(3) * step
    assert 3 * float(step) < float(top) < 4 * float(step)
    limit = "r = Clip (X, zero, top)"
    nodes = f"{INNER} {limit.replace('X', 'a')} {OUTER}", f"{limit.replace('X', 'x')} {OUTER}"
    constants = f"float top = {{{float(top)!r}}}, "
    models = pair(nodes[::-1] if turned else nodes, "uint8", zero, constants=constants)
    assert not qgraph.prove(*models, within="1step").beyond
    assert largest(models) <= 1.001


MOVES = {
    "Transpose": ("t = Transpose (X)", "3,1"),
    "Reshape": ("t = Reshape (X, rows)", "3"),
    "MaxPool": ("u = Reshape (X, cube) t = MaxPool <kernel_shape = [2]> (u)", "1,1,2"),
}


@pytest.mark.cases(fast=2, slow=3)
@pytest.mark.parametrize("lower", [0, 20])
@pytest.mark.parametrize(("kind", "zero"), [("int8", -5), ("uint8", 128)])
@pytest.mark.parametrize("name", MOVES)
def test_codes_that_are_limited_after_they_moved(name, kind, zero, lower):
    """Limits of moved codes are limits before the movement; other limits are told apart."""
    move, shape = MOVES[name]
    limited = f"q = QuantizeLinear (x, s, z) {move.replace('X', 'q')} c = Clip (t, z, top)"
    nodes = (
        f"{move.replace('X', 'x')} r = Relu (t) {OUTER}",
        f"{limited} y = DequantizeLinear (c, s, z)",
    )
    top = np.iinfo(kind).max - lower
    constants = f"{kind} top = {{{top}}}, int64[1] rows = {{3}}, int64[3] cube = {{1, 1, 3}}, "
    models = pair(nodes, kind, zero, constants=constants, shape=shape)
    certificate = qgraph.prove(*models, within="1step", evidence=True)
    assert bool(certificate.beyond) is (lower > 0)
    assert largest(models) <= 1.001 + lower
    document = json.loads(json_text(certificate.to_json()))
    assert verify(document, *models) == "bounded"


def test_codes_below_zero_need_no_relu_if_there_are_none():
    models = pair((OUTER.replace("(r,", "(x,"), f"r = Relu (x) {OUTER}"), "uint8")
    assert not qgraph.prove(*models, within="1step").beyond


AGAIN = f"{OUTER.replace('y =', 't =')} y = Clip (t, zero, six)"


@pytest.mark.cases(fast=1, slow=1)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("kind", "zero"), [("int8", 0), ("int8", -5), ("uint8", 128)])
def test_both_limits_of_codes_that_are_quantized_again_hold(kind, zero, turned):
    """Codes that only the second limit clips differ by up to 94 steps without it."""
    limits = f"{INNER} r = Relu (a) {AGAIN}", f"r = Relu (x) {AGAIN}"
    models = pair(limits[::-1] if turned else limits, kind, zero)
    assert not qgraph.prove(*models, within="1step").beyond
    assert largest(models) <= 1.001


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("again", ["(r, c, z)", "(r, s, other)"])
def test_a_limit_after_other_codes_is_none_of_the_codes_before(again):
    inner = AGAIN.replace("(r, s, z)", again)
    constants = "float c = {0.02}, int8 other = {100}, "
    models = pair((f"{INNER} r = Relu (a) {inner}", f"r = Relu (x) {AGAIN}"), constants=constants)
    certificate = qgraph.prove(*models, within="1step")
    assert str(certificate.verdict) == "undecided" or certificate.beyond
    assert largest(models) > 20


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("other", ["r = Relu (a)", "r = LeakyRelu (a)"])
def test_limits_that_are_none_are_told_apart(other):
    """Where the other model keeps negative codes, some differ by their whole range."""
    models = pair((f"{INNER} {other} {OUTER}", f"r = Identity (x) {OUTER}"))
    certificate = qgraph.prove(*models, within="1step")
    assert str(certificate.verdict) == "undecided" or certificate.beyond
    assert largest(models) > 1.001


def test_other_uses_of_the_codes_keep_them():
    nodes = f"{INNER} r = Relu (a) t = Add (r, a) {OUTER.replace('(r,', '(t,')}"
    models = pair((nodes, nodes))
    certificate = qgraph.prove(*models, within="1step")
    (bound,) = [each.bound for each in certificate.regions if each.reference_value == "q"]
    assert bound is not None
    assert bound.levels == 255


def test_a_limit_of_channels_with_several_scales_is_the_widest_of_codes():
    """Code 60 stands for 6 in the second channel, and for 3 in the others."""
    parts = "q = QuantizeLinear (x, c, o)", "a = DequantizeLinear (K, c, o) r = Clip (a, zero, six)"
    nodes = (
        f"{parts[0]} {parts[1].replace('K', 'q')} {OUTER}",
        f"{parts[0]} k = Clip (q, none, sixty) {parts[1].replace('K', 'k')} {OUTER}",
    )
    constants = "float[3] c = {0.05, 0.1, 0.05}, int8[3] o = {0, 0, 0}, int8 sixty = {60}, "
    models = pair(nodes, constants=constants)
    certificate = qgraph.prove(*models, within="1step")
    assert str(certificate.verdict) != "bounded" or certificate.beyond
    assert largest(models) > 20


@pytest.mark.parametrize(("kind", "high"), [("FLOAT", 120), ("FLOAT16", 120), ("BFLOAT16", 127)])
def test_limits_are_joined_only_where_codes_stay(kind, high):
    """In bfloat16, 0.05 times a code has 8 bits, so that another code may follow."""
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[1,4] x) => (float[1,4] y)
    <float s = {0.05}, int8 z = {0}, float zero = {0}, float six = {6}> {
        q = QuantizeLinear (x, s, z) a = DequantizeLinear (q, s, z) r = Relu (a)
        p = QuantizeLinear (r, s, z) t = DequantizeLinear (p, s, z) y = Clip (t, zero, six)
    }"""
    proto, number = onnx.parser.parse_model(text), getattr(onnx.TensorProto, kind)
    for name, real in ("s", 0.05), ("zero", 0.0), ("six", 6.0):
        (held,) = (each for each in proto.graph.initializer if each.name == name)
        held.CopyFrom(onnx.helper.make_tensor(name, number, held.dims, [real]))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = number
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    (limited,) = with_limited_codes([model])
    first = next(node for node in limited.graph if node.op_type == "Clip")
    assert first.inputs[0].name == "q"
    assert int(first.inputs[2].const_value.numpy()) == pytest.approx(high, abs=1)


def decoded_after_a_limit(cap: float) -> ir.Model:
    """Limit numbers, quantize them in steps of 0.1, and quantize what they are decoded to again."""
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[1,2] x) => (int8[1,2] y)
        <float low = {{0}}, float high = {{0.35}}, float s = {{0.1}}, uint8 z = {{0}},
         float cap = {{{cap}}}, int8 v = {{0}}, float t = {{0.01}}> {{
            c = Clip (x, low, high)
            q = QuantizeLinear (c, s, z)
            d = DequantizeLinear (q, s, z)
            k = Min (d, cap)
            y = QuantizeLinear (k, t, v)
        }}""")


@pytest.mark.runtime
def test_codes_reach_as_far_as_a_limit_is_executed():
    """0.35 / 0.1 is 3.4999999 in real numbers, but 3.5 in float32, which is code 4."""
    runtime = pytest.importorskip("onnxruntime")
    models = [decoded_after_a_limit(cap) for cap in (9, 0.3001)]
    results = []
    for model in models:
        data = ir.to_proto(model).SerializeToString()
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
        results.append(session.run(None, {"x": np.full((1, 2), 9, np.float32)})[0].tolist())
    assert results == [[[40, 40]], [[30, 30]]]
    found = qgraph.prove(*models, within="1step")
    ends = [r for r in found.regions if r.reference_value == "y" and r.entries == (("q", "q"),)]
    assert all(r.bound is None or r.bound.max_steps >= 10 for r in ends)
    assert all(r.verdict != "proved" for r in ends)


def decoded_in_float16(*cap: float) -> ir.Model:
    """Limit numbers to 2.549, and quantize them in steps of 0.1307, then in steps of a quarter."""
    low, high, s, t, c = (
        int(np.float16(number).view(np.uint16))
        for number in (0, 2.549, 0.1307, 0.1307 / 4, *cap, 9)[:5]
    )
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float16[1,2] x) => (uint8[1,2] y)
        <float16 low = {{{low}}}, float16 high = {{{high}}}, float16 s = {{{s}}}, uint8 z = {{0}},
         float16 cap = {{{c}}}, float16 t = {{{t}}}> {{
            c = Clip (x, low, high)
            q = QuantizeLinear (c, s, z)
            d = DequantizeLinear (q, s, z)
            k = Clip (d, low, cap)
            y = QuantizeLinear (k, t, z)
        }}""")


def test_limits_are_executed_with_the_digits_of_their_type():
    """The limit is 19.496 steps in real numbers, and 19.5 in float16, which is code 20."""
    high, step = np.float16(2.549), np.float16(0.1307)
    assert float(high) / float(step) < 19.497
    assert high / step == 19.5
    models = decoded_in_float16(), decoded_in_float16(19 * float(step))
    x = np.full((1, 2), 9, np.float16)
    ours, theirs = (
        qgraph.load(each).run({"x": x}, backend="numpy")["y"].astype(int) for each in models
    )
    assert np.abs(ours - theirs).max() == 4
    document = qgraph.prove(*models, within="4step", evidence=True).to_json()
    (region,) = [r for r in document["regions"] if r["entries"] == [["q", "q"]]]
    assert region["bound"]["max_steps"] >= 4
    stated = {"deviation_steps": 0.4, "ideal_shift": 0.1, "tie_distance_steps": 0.3}
    region["bound"] |= {**stated, "max_steps": 1, "levels": 1.0, "channels": []}
    found = checked(document, *models).regions[document["regions"].index(region)]
    assert str(found.status) != "checked"


@pytest.mark.parametrize("low", [0.0, -3.0])
def test_numbers_that_are_not_negative_may_be_made_absolute(low):
    """As ``separate-limits`` writes them; the sums are computed in two ways."""
    nodes = (
        f"c = Clip (x, low, six) r = Identity (c) {OUTER}",
        f"c = Clip (x, low, six) r = Abs (c) {OUTER}",
    )
    models = pair(nodes, constants=f"float low = {{{low}}}, ")
    certificate = qgraph.prove(*models, within="1step", evidence=True)
    assert str(certificate.verdict) == ("bounded" if low == 0 else "undecided")
    assert (largest(models) <= 1.001) is (low == 0)
    if low == 0:
        assert not certificate.beyond
        document = json.loads(json_text(certificate.to_json()))
        assert verify(document, *models) == "bounded"

"""Roundings that OpenVINO 2026.4.1 drops or adds: of sums, 16 bits, limits, means, maxima."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import qgraph
from qgraph import load
from qgraph.exactness import ProofVerdict
from qgraph.reports import SiteStatus
from qgraph.transforms.simpler_ranges import KeepRoundings

DATA = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
ONE = f"""{DATA} e = DequantizeLinear (w, t) f = Conv (d, e) MORE
    g = QuantizeLinear (f, u, z) h = DequantizeLinear (g, u, z) p = Neg (x)"""
TWO = f"""{ONE} i = DequantizeLinear (v, t) j = Conv (d, i)
    k = QuantizeLinear (j, u, z) l = DequantizeLinear (k, u, z)"""
DEEP = TWO.replace("Conv (d, i)", "Conv (h, i)")
LOW = "n = QuantizeLinear (m, u, z) o = DequantizeLinear (n, u, z)"
LAST = "c = QuantizeLinear (a, r, z) y = DequantizeLinear (c, r, z)"
WIDE = "c = QuantizeLinear (o, s, z) d = DequantizeLinear (c, s, z)"


def between(operator: str) -> str:
    """Return a body with an operator between the convolution and its quantizer."""
    return f"{ONE} a = Add (h, p) {LAST}".replace("f = Conv", "m = Conv").replace("MORE", operator)


SUMS = {
    "two convolutions": (f"{TWO} a = Add (h, l) {LAST}", 2),
    "exchanged": (f"{TWO} a = Add (l, h) {LAST}", 2),
    "Sub": (f"{TWO} a = Sub (h, l) {LAST}", 2),
    "Sum": (f"{TWO} a = Sum (h, l) {LAST}", 2),
    "a skip of two layers": (f"{DEEP} a = Add (l, d) {LAST}", 1),
    "its own decoder": (f"{DEEP} o = DequantizeLinear (q, s, z) a = Add (o, l) {LAST}", 1),
    "a skip from a convolution": (
        f"{DEEP} m = Conv (l, e) {LOW} a = Add (o, h) {LAST}", 1),
    "biases": (f"{TWO} a = Add (h, l) {LAST}".replace("d, e)", "d, e, b)"), 2),
    "floats": (f"{ONE} a = Add (h, p) {LAST}", 1),
    "Relu after": (f"{ONE} o = Add (h, p) a = Relu (o) {LAST}", 1),
    "SiLU after": (f"{ONE} o = Add (h, p) i = Sigmoid (o) a = Mul (o, i) {LAST}", 1),
    "Mul after": (f"{ONE} o = Add (h, p) a = Mul (half, o) {LAST}", 1),
    "Clip between": (between("f = Clip (m, low, high)"), 1),
    "Add between": (between("f = Add (m, half)"), 1),
    "FakeQuantize": (
        re.sub(r"g = .*? (?=p =)", "h = org.openvinotoolkit.FakeQuantize <levels = 256> "
               "(f, low, top, low, top) ", f"{ONE} a = Add (h, p) {LAST}", flags=re.DOTALL), 1),
}  # fmt: skip
KEPT = {
    "no quantizer": f"{TWO} a = Add (h, l) y = Neg (a)",
    "a skip of one layer": f"{ONE} a = Add (h, d) {LAST}",
    "its decoder": f"{ONE} o = DequantizeLinear (q, s, z) a = Add (o, h) {LAST}",
    "a constant": f"{ONE} a = Add (h, half) {LAST}",
    "LeakyRelu": between("f = LeakyRelu <alpha = 0.1> (m)"),
    "HardSwish": between("f = HardSwish (m)"),
    "16 bits between": f"o = Neg (x) {WIDE} y = Relu (d)".replace("d = D", "i = Identity (c) d = D")
    .replace("DequantizeLinear (c", "DequantizeLinear (i"),
    "8 bits": f"o = Neg (x) {WIDE} y = Relu (d)",
}  # fmt: skip
LIMITS = {
    "a Clip": f"{DATA} y = Clip (d, low, high)",
    "before a quantizer": f"{DATA} a = Clip (d, low, high) {LAST}",
    "before a convolution": f"{DATA} a = Clip (d, low, high) y = Conv (a, wf)",
    "Max and Min": f"{DATA} o = Max (low, d) y = Min (o, high)",
    "moved codes": f"{DATA} o = MaxPool <kernel_shape = [1, 1]> (d) y = Clip (o, low, high)",
    "codes with another sign": f"{DATA} o = Neg (d) y = Clip (o, low, high)",
    "ranges, Min": "d = org.openvinotoolkit.FakeQuantize <levels = 256> "
    "(x, wlow, four, wlow, four) o = Min (d, high) y = Clip (o, low, half)",
    "ranges and a constant": "d = org.openvinotoolkit.FakeQuantize <levels = 256> "
    "(x, wlow, four, wlow, four) o = Add (d, half) y = Clip (o, low, high)",
    "ranges": "d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, wlow, four, wlow, four) "
    "y = Clip (d, low, high)",
}
EXACT_LIMITS = {
    "zero": f"{DATA} y = Clip (d, zero)",
    "Max alone": f"{DATA} y = Max (d, low)",
    "after a convolution": f"{DATA} e = Conv (d, wf) y = Clip (e, low, high)",
    "no code beyond": f"{DATA} y = Clip (d, , four)",
}
PAIRS = {
    "FakeQuantize": "o = Neg (x) y = org.openvinotoolkit.FakeQuantize <levels = 65536> "
    "(o, wlow, whigh, wlow, whigh)",
    "one reader": f"o = Neg (x) {WIDE} y = Conv (d, wf)",
    "two readers": f"o = Neg (x) {WIDE} n = Sigmoid (d) y = Add (d, n)",
    "channels": f"o = Neg (x) {WIDE} y = Relu (d)".replace("Linear (", "Linear <axis = 1> (")
    .replace(", s, z)", ", sc, zc)"),
}  # fmt: skip


PADDED = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
MEAN = "m = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d)"
COUNTED = MEAN.replace("> (d)", ", count_include_pad = 1> (d)")
MEANS = {
    "Conv": f"{DATA} {MEAN} e = DequantizeLinear (w, t) y = Conv (m, e)",
    "after MaxPool": f"{DATA} d2 = MaxPool <{PADDED}> (d) {MEAN} y = Mul (m, half)".replace(
        "> (d) y", "> (d2) y"
    ),
    "floats as weights": f"{DATA} {MEAN} y = MatMul (m, square)",
    "Mul": f"{DATA} {MEAN} y = Mul (m, half)",
    "moved, Add": f"{DATA} {MEAN} o = Transpose <perm = [0, 1, 3, 2]> (m) y = Add (o, half)",
    "a truncated mean": f"{DATA} {MEAN} o = Div (m, r) p = Floor (o) a = Mul (p, r) {LAST}",
    "squares": f"{DATA} {MEAN} y = Mul (m, m)",
    "padding": f"{DATA} {COUNTED} a = Relu (m) {LAST}",
    "a Pad between two": f"{DATA} {MEAN} g = Pad (m, ends) "
    f"a = AveragePool <kernel_shape = [3, 3]> (g) {LAST}",
    "a Pad": f"{DATA} g = Pad (d, ends) a = AveragePool <kernel_shape = [3, 3]> (g) {LAST}",
    "Clip": f"{DATA} {MEAN} a = Clip (m, low, high) {LAST}",
    "LeakyRelu": f"{DATA} {MEAN} a = LeakyRelu <alpha = 0.3> (m) {LAST}",
    "Neg": f"{DATA} {MEAN} a = Neg (m) {LAST}",
    "PRelu": f"{DATA} {MEAN} a = PRelu (m, half) {LAST}",
    "Relu and Clip": f"{DATA} {MEAN} o = Relu (m) a = Clip (o, zero, high) {LAST}",
    "ranges": "d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, wlow, four, wlow, four) "
    f"{MEAN} a = Neg (m) {LAST}",
}
EXTREMES = {
    "ReduceMax": f"o = Sigmoid (x) m = ReduceMax (o, axes) a = Neg (m) {LAST}",
    "ReduceMin": f"{DATA} e = DequantizeLinear (w, t) o = Conv (d, e) "
    f"a = ReduceMin (o, axes) {LAST}",
    "GlobalMaxPool": f"{DATA} e = DequantizeLinear (w, t) o = Conv (d, e) m = GlobalMaxPool (o) "
    f"a = Relu (m) {LAST}",
}
LAYER = f"e = DequantizeLinear (wide, t) y = Conv <{PADDED}> (o, e)"
SHIFTS = {
    "a fraction": "d = org.openvinotoolkit.FakeQuantize <levels = 16> (x, wlow, four, wlow, four) "
    "o = MaxPool <kernel_shape = [1, 1]> (d) e = DequantizeLinear (w, t) y = Conv (o, e)",
    "Sub": f"{DATA} o = Sub (d, half) {LAYER}",
    "Sub, MaxPool": f"{DATA} i = Sub (d, half) o = MaxPool <{PADDED}> (i) {LAYER}",
    "ranges": "d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, wlow, four, wlow, four) "
    f"o = Add (d, half) {LAYER}",
}
KEPT |= {
    "padding of codes with a sign": "d = org.openvinotoolkit.FakeQuantize <levels = 256> "
    f"(x, even, odd, even, odd) {COUNTED} a = Relu (m) {LAST}",
    "a maximum of codes": f"{DATA} a = GlobalMaxPool (d) {LAST}",
    "a mean, Sigmoid": f"{DATA} {MEAN} y = Sigmoid (m)",
    "a mean, a result": f"{DATA} {MEAN} y = Transpose <perm = [0, 1, 3, 2]> (m)",
    "a mean, FakeQuantize": f"{DATA} {MEAN} o = MaxPool <{PADDED}> (m) "
    "y = org.openvinotoolkit.FakeQuantize <levels = 256> (o, wlow, four, wlow, four)",
    "a mean": f"{DATA} a {MEAN[1:]} {LAST}",
    "a mean, Relu": f"{DATA} {MEAN} a = Relu (m) {LAST}",
    "a mean in float": f"{DATA} e = LeakyRelu <alpha = 1.0> (d) {MEAN} a = Neg (m) {LAST}".replace(
        "> (d) a", "> (e) a"
    ),
}


def model(body: str, zero: np.generic) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]> net '
        f"(float[1,64,14,14] x) => (float[1,64,A,A] y) {{ {body.replace('MORE', '')} }}"
    )
    random, f = np.random.default_rng(1), np.float32
    arrays = {
        "s": f(0.03), "t": f(0.00201), "u": f(0.02137), "r": f(0.03119), "half": f(0.5),
        "wlow": f(-3), "whigh": f(652.35),
        "low": f(-1.013), "high": f(1.5), "top": f(4.1), "four": f(4), "zero": f(0), "z": zero,
        "b": random.normal(size=64),
        "w": random.integers(-64, 64, (64, 64, 1, 1)).astype(np.int8),
        "v": random.integers(-64, 64, (64, 64, 1, 1)).astype(np.int8),
        "wf": random.normal(size=(64, 64, 1, 1)) / 10, "sc": np.geomspace(0.01, 0.05, 64),
        "zc": np.full(64, zero), "square": random.normal(size=(14, 14)),
        "wide": random.integers(-64, 64, (64, 64, 3, 3)).astype(np.int8),
        "ends": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "axes": np.array([2, 3]), "even": f(-2.56), "odd": f(2.54),
    }  # fmt: skip
    for name, array in arrays.items():
        if re.search(rf"\b{name}\b", re.sub(r"\w+ =", "", body)):
            array = array.astype(f) if array.dtype == np.float64 else np.asarray(array)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def share_that_differs(proto: onnx.ModelProto, expected: np.ndarray, step: float) -> float:
    """Return the share of results of OpenVINO that are more than a fraction of a step off."""
    openvino = pytest.importorskip("openvino")
    read = openvino.Core().read_model(proto.SerializeToString())
    run = openvino.Core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return float(np.mean(np.abs(run([feeds()["x"]])[0] - expected) > step / 10))


def feeds() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(1, 64, 14, 14))
    return {"x": x.astype(np.float32)}


ROUNDINGS = {"QG306", "QG307", "QG308", "QG320", "QG323", "QG330", "QG331"}
CASES = {name: (*each, np.uint8(128), 0.03119) for name, each in SUMS.items()}
CASES |= {f"limits, {name}": (body, 1, np.uint8(128), 0.03) for name, body in LIMITS.items()}
CASES |= {f"means, {name}": (body, 1, np.uint8(128), 0.03119) for name, body in MEANS.items()}
CASES |= {f"extremes, {name}": (b, 1, np.uint8(128), 0.03119) for name, b in EXTREMES.items()}
CASES |= {f"constants, {name}": (body, 1, np.uint8(0), 0.03) for name, body in SHIFTS.items()}
CASES |= {f"16 bits, {name}": (body, 1, np.uint16(300), 0.01) for name, body in PAIRS.items()}


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.parametrize("name", ["two convolutions", "16 bits, one reader", *CASES])
def test_no_value_changes(name):
    body, count, zero, _ = CASES[name]
    proto = model(body, zero)
    loaded = load(proto)
    assert loaded.apply(KeepRoundings()).count(SiteStatus.CHANGED) == count
    assert qgraph.prove(proto, loaded).exactness in ("bits", "values")
    assert not loaded.apply(KeepRoundings()).sites


KINDS = ["means, Conv", "means, a truncated mean", "means, padding", "constants, a fraction"]
KINDS += ["constants, Sub", "extremes, ReduceMin", "limits, codes with another sign"]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_found_once(name):
    body, count, zero, _ = CASES[name]
    loaded = load(model(body, zero))
    assert loaded.apply(KeepRoundings()).count(SiteStatus.CHANGED) == count
    assert not loaded.apply(KeepRoundings()).sites


@pytest.mark.cases(fast=0, slow=4)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two convolutions", "16 bits, one reader", *CASES])
def test_openvino_rounds_after_a_deployment_only(name):
    """Where the first line fails, OpenVINO has mended it: the trap ends with that version."""
    body, _, zero, step = CASES[name]
    proto = model(body, zero)
    (expected,) = load(proto).run(feeds(), backend="numpy").values()
    assert share_that_differs(proto, expected, step) > 0.05
    deployed = load(proto)
    deployment = qgraph.deploy(deployed, "openvino-cpu")
    assert deployment.certificate.verdict in (ProofVerdict.PROVED, ProofVerdict.BOUNDED)
    assert not {each.rule.id for each in deployment.findings} & ROUNDINGS
    assert share_that_differs(deployed.to_proto(), expected, step) < 0.002
    once = deployed.to_proto()
    qgraph.deploy(deployed, "openvino-cpu")
    assert deployed.to_proto() == once


@pytest.mark.runtime
@pytest.mark.parametrize("name", KEPT | EXACT_LIMITS)
def test_what_openvino_rounds_stays(name):
    zero = np.uint16(300) if name == "16 bits between" else np.uint8(128)
    proto = model((KEPT | EXACT_LIMITS)[name], zero)
    (expected,) = load(proto).run(feeds(), backend="numpy").values()
    assert share_that_differs(proto, expected, 0.03) < 0.001
    assert not load(proto).apply(KeepRoundings()).sites


def test_levels_of_another_operator_say_nothing():
    model = load(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "own": 1]>
        net (float[2] x) => (float[2] y) { y = own.F <levels = 2.5> (x) }""")
    )
    assert not model.apply(KeepRoundings()).sites


FAKE = "d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, a, b, a, b)"
COUNTING = "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (d)"
UNUSUAL = {
    "operators of another domain": "{ y = own.AveragePool () z = own.Conv (x) w = own.F () }",
    "equal ends": f"<float a = {{2}}, float b = {{2}}> {{ {FAKE} {COUNTING} }}",
    "ends that are no numbers": f"<float a = {{nan}}, float b = {{inf}}> {{ {FAKE} {COUNTING} }}",
    "one level": f"<float a = {{-1}}, float b = {{2}}> {{ {FAKE} {COUNTING} }}".replace("256", "1"),
    "equal ends before a Conv": "<float a = {2}, float b = {2}, float s = {1}, int8[1,4,1,1] "
    f"w = {{1, 2, 3, 4}}> {{ {FAKE} e = DequantizeLinear (w, s) y = Conv (d, e) }}",
    "no scale": "<float[0] s = {}, uint8[0] z = {}> { q = QuantizeLinear (x, s, z) "
    f"d = DequantizeLinear (q, s, z) {COUNTING} }}",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_parameters_are_left_alone(name):
    text = f"""<ir_version: 10, opset_import: ["": 21, "own": 1, "org.openvinotoolkit": 1]>
        net (float[1,4,4,4] x) => (float[n,m,k,l] y) {UNUSUAL[name]}"""
    assert not load(onnx.parser.parse_model(text)).apply(KeepRoundings()).sites


def test_the_limit_of_a_maximum_has_its_type():
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float16[1,4,4,4] x) => (float16[1,4,1,1] y) <uint8 z = {3}> {
            a = Sigmoid (x) b = GlobalMaxPool (a)
            q = QuantizeLinear (b, s, z) y = DequantizeLinear (q, s, z) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(0.1), "s"))
    loaded = load(proto)
    loaded.apply(KeepRoundings())
    onnx.checker.check_model(loaded.to_proto(), full_check=True)
    assert len(list(loaded.nodes("Max"))) == 1

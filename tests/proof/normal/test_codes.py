"""Operators of com.microsoft on codes and their definitions, which ONNX Runtime computes too."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.graph.schema import OpKey
from qgraph.proof.normal.normalise import shared_operators
from tests.proof.normal.conftest import is_one, parse

NUMBERS = (
    "float s = {0.25}, float t = {0.3}, float u = {0.7}, uint8 z = {3}, uint8 p = {0}, "
    "uint8 w = {5}, float e = {1}, "
)
PAIRS = "g (uint8[256,256] x, uint8[256,256] v) => (uint8[] y)"
IMAGE = "g (uint8[1,2,4,4] x, uint8[1,2,4,4] v) => (uint8[] y)"
WIDE = "a = Cast <to = 11> (x) b = Cast <to = 11> (v) "
SUM = WIDE + (
    "c = Mul(b, n) d = Add(c, f) g = Cast <to = 1> (d) h = Cast <to = 11> (g) i = Mul(a, m) "
    "j = Add(i, h) k = Cast <to = 1> (j) y = QuantizeLinear(k, e, p)"
)


def single(number: float) -> np.float32:
    return np.float32(number)


def factors() -> str:
    """The constants of the definition of a sum with scales 0.25, 0.3 and 0.7."""
    m, n = single(0.25) / single(0.7), single(0.3) / single(0.7)
    # what is exact in float64 is rounded once
    fixed = single(5) - single(np.float64(3) * m + np.float64(single(0) * n))
    return (
        f"double m = {{{float(m)!r}}}, double n = {{{float(n)!r}}}, double f = {{{float(fixed)!r}}}"
    )


WINDOWS = (
    "d = DequantizeLinear(x, s, z) a = Slice(d, o, k, ax, two) b = Slice(d, r, l, ax, two) "
    "c = Add(a, b) g = Div(c, h) q = Div(g, u) m = Add(q, five) y = QuantizeLinear(m, e, p)"
)
BOUNDS = (
    "int64[2] o = {0, 0}, int64[2] k = {4, 3}, int64[2] r = {0, 1}, int64[2] l = {4, 4}, "
    "int64[2] ax = {2, 3}, int64[2] two = {1, 2}, float h = {2}, float five = {5}"
)
POOL = (
    "y = com.microsoft.QLinearAveragePool <kernel_shape = [1, 2], strides = [1, 2]> (x, s, z, u, w)"
)
JOINED = "a = DequantizeLinear(x, s, z) b = DequantizeLinear(v, t, p) "

FORMS = {
    "add": (PAIRS, "y = com.microsoft.QLinearAdd(x, s, z, v, t, p, u, w)", SUM, factors()),
    "pool": (IMAGE, POOL, WINDOWS, BOUNDS),
    "concat": (
        IMAGE,
        "y = com.microsoft.QLinearConcat <axis = 1> (u, w, x, s, z, v, t, p)",
        f"{JOINED} c = Concat <axis = 1> (a, b) y = QuantizeLinear(c, u, w)",
        "float o = {0}",
    ),
}
MISTAKES = {
    "add": [("Add(i, h)", "Sub(i, h)"), ("Mul(a, m)", "Mul(a, n)")],
    "pool": [("Div(c, h)", "Mul(c, h)"), ("{0, 1}", "{0, 0}"), ("five = {5}", "five = {4}")],
    "concat": [
        ("Concat <axis = 1> (a, b)", "Concat <axis = 1> (b, a)"),
        ("(v, t, p)", "(v, s, p)"),
    ],
}


def models(name: str, change: tuple[str, str] = ("", "")) -> tuple[ir.Model, ir.Model]:
    """Return the operator and its definition, with a text changed in the latter."""
    head, operator, definition, constants = FORMS[name]
    texts = operator, f"<{NUMBERS}{constants}> {{ {definition} }}".replace(*change)
    return (
        parse(f"{head} <{NUMBERS}float o = {{0}}> {{ {operator} }}"),
        parse(f"{head} {texts[1]}"),
    )


def run(model: ir.Model) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    data = ir.to_proto(model).SerializeToString()
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    every = np.arange(256, dtype=np.uint8)
    pairs = {"x": np.repeat(every, 256), "v": np.tile(every, 256)}
    feeds = {
        value.name: pairs[value.name].reshape(value.shape)
        if 256 in value.shape
        else random.integers(0, 256, value.shape).astype(np.uint8)
        for value in session.get_inputs()
    }
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize("name", FORMS)
def test_operators_are_their_definitions(name):
    ours, theirs = models(name)
    assert is_one(ours, theirs)
    np.testing.assert_array_equal(run(ours), run(theirs))


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.parametrize(("name", "change"), [(n, c) for n, some in MISTAKES.items() for c in some])
def test_definitions_with_a_mistake_are_not_proved(name, change):
    ours, theirs = models(name, change)
    assert qgraph.prove(ours, theirs).verdict is not ProofVerdict.PROVED
    assert (run(ours) != run(theirs)).any()


def test_operators_that_both_models_have_stay():
    text = f"{IMAGE} <{NUMBERS}float o = {{0}}> {{ {POOL} }}"
    model = parse(text)
    assert shared_operators([model, parse(text)]) == {OpKey("com.microsoft", "QLinearAveragePool")}
    assert not shared_operators([model, models("pool")[1]])
    assert qgraph.prove(model, parse(text)).notes == ()


def test_a_shape_that_is_computed_is_moved_before_functions_with_one_parameter():
    """The parameter of the second function differs by element, so that it stays."""
    head = "g (float[N,M] x, int64[K] r) => (float[] y) <float s = {0.25}, uint8 z = {3}, "
    before = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {} y = Reshape(a, r)"
    after = "b = Reshape(x, r) q = QuantizeLinear(b, s, z) d = DequantizeLinear(q, s, z) {}"
    for constant, same in (("float c = {2}", True), ("float[1,2] c = {2, 3}", False)):
        ours = parse(f"{head}{constant}> {{ {before.format('a = Add(d, c)')} }}")
        theirs = parse(f"{head}{constant}> {{ {after.format('y = Add(d, c)')} }}")
        assert is_one(ours, theirs) == same


@pytest.mark.parametrize(("divisor", "is_proved"), [("t", True), ("u", False)])
def test_concat_of_one_scale_is_proved_beside_a_part_without_codes(divisor, is_proved):
    """Pairs of that scale are joined behind the Concat of one model, but not of the other."""
    head = f"{IMAGE} <{NUMBERS}float o = {{0}}, float i = {{255}}>"
    joined = "y = com.microsoft.QLinearConcat <axis = 1> (u, w, q, t, p, v, t, p)"
    ours = f"d = DequantizeLinear(x, s, z) q = QuantizeLinear(d, t, p) {joined}"
    theirs = (
        f"d = DequantizeLinear(x, s, z) r = Div(d, {divisor}) n = Round(r) m = Clip(n, o, i) "
        "a = Mul(m, t) b = DequantizeLinear(v, t, p) c = Concat <axis = 1> (a, b) "
        "y = QuantizeLinear(c, u, w)"
    )
    models = [parse(f"{head} {{ {body} }}") for body in (ours, theirs)]
    assert (qgraph.prove(*models).verdict is ProofVerdict.PROVED) == is_proved
    assert np.array_equal(*map(run, models)) == is_proved

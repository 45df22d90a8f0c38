"""Models are called different only where a forced pairing or an input of the models shows it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.conditions import Demonstration
from qgraph.errors import EquivalenceError
from qgraph.execution.demonstration import feeds_of
from qgraph.proof import certify
from qgraph.proof.functions import enumeration
from tests.verify.checking import verify

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
SCALE = "float s = {0.1}, int8 z = {0}"
POOL = "MaxPool <kernel_shape = [2,2], strides = [2,2]>"


def model(body: str, constants: str = SCALE, signature: str = "") -> ir.Model:
    signature = signature or "(float[1,2,4,4] x) => (float[N,C,H,W] y)"
    return ir.from_onnx_text(f"{HEADER} g {signature} <{constants}> {{ {body} }}")


def verdict(ours: str, theirs: str, constants: str = SCALE, signature: str = "") -> str:
    pair = model(ours, constants, signature), model(theirs, constants, signature)
    return str(qgraph.prove(*pair).verdict)


@pytest.fixture(autouse=True)
def few_inputs(monkeypatch):
    """Where all inputs would be tried one by one, try one block in 128."""
    starts = enumeration._starts()[::128]
    monkeypatch.setattr(enumeration, "_starts", lambda: starts)


def fake(x: str, y: str, scale: str = "s") -> str:
    return f"q_{y} = QuantizeLinear({x}, {scale}, z) {y} = DequantizeLinear(q_{y}, {scale}, z) "


EQUAL = {
    "a quantizer behind and before a permutation": (
        "t = Transpose <perm = [0,2,3,1]> (x) " + fake("t", "y"),
        fake("x", "t") + "y = Transpose <perm = [0,2,3,1]> (t)",
    ),
    "a quantizer behind and before a pool": (
        f"t = {POOL} (x) " + fake("t", "y"),
        fake("x", "t") + f"y = {POOL} (t)",
    ),
    "Relu behind and before a pool": (
        f"t = {POOL} (x) y = Relu(t)",
        f"t = Relu(x) y = {POOL} (t)",
    ),
    "a quantizer that is repeated behind a pool": (
        fake("x", "a") + f"y = {POOL} (a)",
        fake("x", "a") + f"t = {POOL} (a) " + fake("t", "y"),
    ),
    "Relu that is repeated behind a pool": (
        f"a = Relu(x) t = {POOL} (a) y = Relu(t)",
        f"t = {POOL} (x) y = Relu(t)",
    ),
    "Relu of what is never negative": (
        "a = Softmax(x) y = Relu(a)",
        "y = Softmax(x)",
    ),
    "Relu of an average of what is never negative": (
        "a = Relu(x) b = GlobalAveragePool(a) y = Relu(b)",
        "a = Relu(x) y = GlobalAveragePool(a)",
    ),
    "factors that cancel in series": (
        "a = Mul(x, two) b = GlobalAveragePool(a) y = Mul(b, half)",
        "y = GlobalAveragePool(x)",
    ),
    "factors that cancel around an operator without a rule": (
        "a = Mul(x, two) b = Softmax(a) c = Relu(b) y = Exp(c)",
        "a = Add(x, x) b = Softmax(a) y = Exp(b)",
    ),
    "differences in parallel": (
        "a = Relu(x) b = Neg(x) p = Sigmoid(a) q = Sigmoid(b) y = Max(p, q)",
        "b = Neg(x) a = Relu(x) p = Sigmoid(b) q = Sigmoid(a) y = Max(p, q)",
    ),
    "a size that nothing sees": (
        "a = Mul(x, two) b = Transpose <perm = [0,2,1,3]> (a) y = Sign(b)",
        "b = Transpose <perm = [0,2,1,3]> (x) y = Sign(b)",
    ),
    "names that mislead": (
        "a = Relu(x) b = Sigmoid(a) c = Transpose <perm = [0,1,3,2]> (b) y = Neg(c)",
        "b = Relu(x) a = Sigmoid(b) c = Transpose <perm = [0,1,3,2]> (a) y = Neg(c)",
    ),
}
"""Pairs that compute the same, by the definitions of their operators."""


def half(body: str) -> ir.Model:
    """Return a model of float16, whose values are few."""
    # float16 numbers are written by their bits
    constants = "float16 s = {11878}, int8 z = {0}, float16 two = {16384}, float16 half = {14336}"
    return model(body, constants, "(float16[1,2,4,4] x) => (float16[N,C,H,W] y)")


@pytest.mark.cases(fast=3, slow=7)
@pytest.mark.parametrize("name", EQUAL)
def test_equal_models_are_never_different(name):
    pair = tuple(map(half, EQUAL[name]))
    found = qgraph.prove(*pair, evidence=True)
    assert found.verdict in ("proved", "bounded", "undecided")
    assert verify(found.to_json(), *pair) == found.verdict
    first = certify.certify(*pair, counts=False).certificate
    assert first.verdict in ("proved", "undecided")


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_equal_models_of_float32_are_never_different(name):
    constants = f"{SCALE}, float two = {{2}}, float half = {{0.5}}"
    pair = [model(body, constants) for body in EQUAL[name]]
    assert qgraph.prove(*pair).verdict in ("proved", "bounded", "undecided")


def test_weights_that_are_permuted_are_not_different():
    constants = "float[2,2] v = {1,2,3,4}, float[2,1] w = {5,6}"
    swapped = "float[2,2] v = {2,1,4,3}, float[2,1] w = {6,5}"
    signature = "(float[N,2] x) => (float[N,1] y)"
    body = "a = MatMul(x, v) b = Relu(a) y = MatMul(b, w)"
    pair = model(body, constants, signature), model(body, swapped, signature)
    assert qgraph.prove(*pair).verdict == "undecided"


def test_constants_that_change_places_are_not_different():
    signature = "(float[N,2] x) => (float[N,2] y)"
    constants = "float[2,2] v = {1,2,3,4}, float[2,2] w = {5,6,7,8}"
    body = "a = MatMul(x, {}) b = MatMul(x, {}) y = Sum(a, b)"
    pair = (body.format(*names) for names in (("v", "w"), ("w", "v")))
    assert verdict(*pair, constants, signature) == "proved"


IF = """c = ReduceMax <keepdims = 0> (x) d = Less(c, s)
    y = If (d) <then_branch = t () => (float[N,4] p) {{ {} p = Transpose <perm = [1,0]> (r) }},
                else_branch = e () => (float[N,4] o) {{ o = Neg(x) }}>"""


def test_branches_are_not_different_by_a_guess():
    ours = IF.format("q = Transpose <perm = [1,0]> (x) r = Relu(q)")
    theirs = IF.format("q = Relu(x) r = Transpose <perm = [1,0]> (q)")
    assert verdict(ours, theirs, SCALE, "(float[4,4] x) => (float[4,4] y)") == "undecided"


DIFFERENT = {
    "a scale at the input": (
        fake("x", "y"),
        fake("x", "y", "t"),
    ),
    "a scale behind a sum": (
        "a = Conv(x, w) " + fake("a", "b") + "y = Conv(b, w)",
        "a = Conv(x, w) " + fake("a", "b", "t") + "y = Conv(b, w)",
    ),
    "two thresholds that moved by a bit": (
        fake("x", "a", "u") + "b = Conv(a, w) " + fake("b", "y", "u"),
        fake("x", "a", "v") + "b = Conv(a, w) " + fake("b", "y", "v"),
    ),
    "Relu that is left out": (
        "a = Conv(x, w) b = Relu(a) y = Conv(b, w)",
        "a = Conv(x, w) y = Conv(a, w)",
    ),
    "a weight": ("y = Conv(x, w)", "y = Conv(x, k)"),
    "two weights": ("a = Conv(x, w) y = Conv(a, w)", "a = Conv(x, k) y = Conv(a, k)"),
    "one of two branches": (
        "a = Relu(x) p = Conv(a, w) q = Conv(x, w) y = Sub(p, q)",
        "p = Conv(x, w) q = Conv(x, w) y = Sub(p, q)",
    ),
    "quantizers on either side of a pool": (
        fake("x", "a") + f"b = {POOL} (a) " + fake("b", "y"),
        fake("x", "a") + f"b = {POOL} (a) " + fake("b", "y", "t"),
    ),
}


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_models_are_different(name):
    constants = (
        f"{SCALE}, float t = {{0.3}}, float u = {{0.1}}, float v = {{0.10000001}},"
        "float[2,2,1,1] w = {1,-0.5,0.75,1}, float[2,2,1,1] k = {1,-0.5,0.75,3}"
    )
    assert verdict(*DIFFERENT[name], constants) == "different"


HIDDEN = {
    "a bias beyond a Clip": "c = Conv(a, {w}, far) y = Clip(c, zero, six)",
    "a bias beyond a Relu": "c = Conv(a, {w}, low) y = Relu(c)",
    "a bias beyond a quantizer": "c = Conv(a, {w}, far) " + fake("c", "y"),
    "a power of zero": "c = Conv(a, {w}) y = Pow(c, zero)",
    "a factor of zero": "c = Conv(a, {w}) y = Mul(c, zero)",
    "a value and itself": "c = Conv(a, {w}) y = Sub(c, c)",
    "a minimum": "c = Conv(a, {w}) y = Min(c, bottom)",
    "a maximum": "c = Conv(a, {w}) y = Max(c, top)",
    "a choice": "c = Conv(a, {w}) y = Where(yes, x, c)",
    "a comparison": "c = Conv(a, {w}) g = Greater(c, top) y = Cast <to = 1> (g)",
    "a wide step": "c = Conv(a, {w}) m = Mul(c, tiny) " + fake("m", "y"),
    "a large sum": "c = Conv(a, {w}) d = Add(c, top) e = Sub(d, top) y = Clip(e, top, top)",
}
"""What follows a quantizer, with a weight that makes no difference."""


@pytest.mark.cases(fast=4, slow=8)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_later_operators_hide_is_no_difference(name):
    constants = (
        f"{SCALE}, float[2,2,1,1] w = {{1,-0.5,0.75,1}}, float[2,2,1,1] k = {{1,-0.5,0.75,3}}, "
        "float[2] far = {1000, 1000}, float[2] low = {-1000, -1000}, float zero = {0}, "
        "float six = {6}, float top = {1e9}, float bottom = {-1e9}, float tiny = {1e-9}, "
        "bool yes = {1}"
    )
    body = fake("x", "a") + HIDDEN[name]
    pair = [model(body.replace("{w}", weight), constants) for weight in "wk"]
    x = {"x": np.random.default_rng(0).normal(0, 50, (1, 2, 4, 4)).astype(np.float32)}
    results = [qgraph.load(each).run(x, backend="numpy")["y"] for each in pair]
    assert np.array_equal(*results)
    assert qgraph.prove(*pair).verdict in ("bounded", "undecided")


NEVER = {
    "a number less its positive part": "r = Relu(x) b = Sub(x, r)",
    "a number and its negative": "r = Neg(x) b = Add(x, r)",
    "a residual": "r = Abs(x) n = Neg(r) b = Add(n, x)",
}
"""Sums that are never positive, though the limits of both operands are infinite."""


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("name", NEVER)
def test_a_difference_on_numbers_that_a_sum_never_takes_is_no_difference(name):
    constants = "float zero = {0}, float six = {6}"
    bodies = f"{NEVER[name]} y = Relu(b)", f"{NEVER[name]} y = Clip(b, zero, six)"
    assert qgraph.prove(*(model(body, constants) for body in bodies)).verdict != "different"


def test_a_difference_on_nan_alone_is_one_of_bits():
    constants = (
        f"{SCALE}, float one = {{1}}, float two = {{2}}, float zero = {{0}}, float m = {{-1}}"
    )
    # only NaN is neither greater than 0 nor equal to it behind this Clip
    before = "c = Clip(x, one, two) g = GreaterOrEqual(c, zero) w = Where(g, one, m) " + fake(
        "w", "d"
    )
    pair = [model(f"{before} y = {last}(d)", constants) for last in ("Relu", "Abs")]
    assert qgraph.prove(*pair).verdict != "different"
    assert qgraph.prove(*pair, exact="bits").verdict == "different"


def test_a_difference_that_no_run_shows_has_a_condition():
    """The quantizers differ on few numbers between 1e30 and 2e30 only."""
    constants = (
        "float[2,2,1,1] w = {1,-0.5,0.75,1}, float low = {-3}, float six = {1e30}, "
        "float more = {1.1e30}"
    )
    bodies = (f"c = Conv(x, w) y = Clip(c, low, {top})" for top in ("six", "more"))
    found = qgraph.prove(*(model(body, constants) for body in bodies))
    assert found.verdict == "different"
    assert found.shown_by is None
    assert "sums-reach" in [condition.kind for condition in found.conditions]


def test_a_difference_that_a_run_shows_has_no_condition():
    constants = "float[2,2,1,1] w = {1,-0.5,0.75,1}, float zero = {0}, float one = {1}"
    bodies = "c = Conv(x, w) y = Clip(c, zero, one)", "c = Conv(x, w) y = Relu(c)"
    found = qgraph.prove(*(model(body, constants) for body in bodies))
    assert found.verdict == "different"
    assert found.shown_by is not None
    assert "sums-reach" not in [condition.kind for condition in found.conditions]


def test_a_difference_beyond_a_limit_is_shown_by_large_inputs():
    """Without a quantizer at the start, large inputs bring the sums between the limits."""
    constants = (
        "float[2,2,1,1] w = {1,-0.5,0.75,1}, float[2,2,1,1] k = {1,-0.5,0.75,3}, "
        "float[2] far = {1000, 1000}, float zero = {0}, float six = {6}"
    )
    bodies = (f"c = Conv(x, {weight}, far) y = Clip(c, zero, six)" for weight in "wk")
    pair = [model(body, constants) for body in bodies]
    found = qgraph.prove(*pair)
    assert found.verdict == "different"
    assert found.shown_by is not None
    assert found.shown_by.scale > 1
    feeds = feeds_of(found.shown_by, pair[0].graph)
    results = [qgraph.load(each).run(feeds, backend="numpy")["y"] for each in pair]
    assert not np.array_equal(*results)
    assert Demonstration.from_json(found.shown_by.to_json()) == found.shown_by


def test_one_of_several_outputs_is_enough():
    signature = "(float[2,2] x) => (float[2,2] y, float[2,2] z, float[2,2] e)"
    rest = "e = Relu(x) a = Neg(x) z = {}(a)"
    ours, theirs = (
        f"y = {first} {rest.format(other)}"
        for first, other in (
            ("Relu(x)", "Erf"),
            ("Abs(x)", "Tanh"),
        )
    )
    assert verdict(ours, theirs, SCALE.replace("z", "k"), signature) == "different"


def test_a_certificate_whose_difference_another_one_undoes_is_refused(monkeypatch):
    pair = tuple(map(half, EQUAL["factors that cancel in series"]))
    honest = qgraph.prove(*pair, evidence=True)
    assert honest.verdict == "undecided"
    unforced = lambda matching, shown, *_, **__: (matching, shown, None)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(certify, "establish", unforced)
        made = qgraph.prove(*pair, evidence=True).to_json()
    assert made["verdict"] == "different"
    with pytest.raises(EquivalenceError, match="the prover finds"):
        verify(made, *pair)


def test_an_input_that_shows_nothing_is_refused():
    pair = [half(text) for text in EQUAL["Relu behind and before a pool"]]
    changed = half(EQUAL["Relu behind and before a pool"][1].replace("Relu", "Abs"))
    found = qgraph.prove(pair[0], changed, evidence=True).to_json()
    assert found["verdict"] == "different"
    assert found["shown_by"] is not None
    assert verify(found, pair[0], changed) == "different"
    with pytest.raises(EquivalenceError):
        verify(found | {"shown_by": None}, pair[0], changed)
    with pytest.raises(EquivalenceError, match="another witness, or none"):
        verify(found | {"shown_by": {"batch": 0, "input": "x", "value": 1.0}}, pair[0], changed)

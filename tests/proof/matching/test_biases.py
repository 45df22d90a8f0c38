"""A bias in a Conv, and the same bias in an Add behind it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import qgraph
from qgraph.conditions import BIAS_LAST
from qgraph.errors import EquivalenceError
from qgraph.proof.functions import enumeration
from tests.verify.checking import verify

CONSTANTS = (
    "float[2,2,1,1] w = {1,-0.5,0.75,1}, float[2] b = {0.1,-0.2}, float[1,2,1,1] b4 = {0.1,-0.2},"
    "float[2,1,1] b3 = {0.1,-0.2}, float[1,2,1,1] other = {0.1,-0.3}, float[2] zero = {0,0},"
    "float[2,1,1,1] g = {0.5, 3}, int32[2] codes = {1, -2}, float s = {0.1},"
    "int32 i = {0}, float[1] one = {0.1}, float[1,1,1,1] same = {0.1}, float[2] alike = {0.1, 0.1}"
)
SIGNATURE = "(float[1,2,4,4] x) => (float[N,C,H,W] y)"


def model(body: str, signature: str = SIGNATURE, constants: str = CONSTANTS) -> ir.Model:
    text = f'<ir_version: 10, opset_import: ["": 21]> g {signature} <{constants}> {{ {body} }}'
    return ir.from_onnx_text(text)


@pytest.fixture(autouse=True)
def few_inputs(monkeypatch):
    """Where all inputs would be tried one by one, try one block in 128."""
    starts = enumeration._starts()[::128]
    monkeypatch.setattr(enumeration, "_starts", lambda: starts)


def proved(*bodies: str):
    pair = tuple(map(model, bodies))
    found = qgraph.prove(*pair, evidence=True)
    assert verify(found.to_json(), *pair) == found.verdict
    return found


@pytest.mark.parametrize(
    "other",
    [
        "t = Conv(x, w) y = Add(t, b4)",
        "t = Conv(x, w) y = Add(b3, t)",
        "t = Conv(x, w) c = Unsqueeze(b, axes) y = Add(t, c)",
    ],
)
@pytest.mark.parametrize("first", ["y = Conv(x, w, b)", "i0 = Identity(b) y = Conv(x, w, i0)"])
def test_a_bias_may_be_added_behind(first, other):
    axes = "axes = Constant <value_ints = [1, 2]> () "
    for bodies in ((first, axes + other), (axes + other, first)):
        found = proved(*bodies)
        assert found.verdict == "proved"
        assert BIAS_LAST in found.conditions


def test_a_scalar_is_a_bias_of_equal_elements():
    assert proved("y = Conv(x, w, alike)", "t = Conv(x, w) y = Add(t, same)").verdict == "proved"


def test_groups_and_transposed_ones_have_biases_too():
    for op, weight in (("Conv <group = 2>", "g"), ("ConvTranspose <group = 2>", "g")):
        found = proved(f"y = {op}(x, {weight}, b)", f"t = {op}(x, {weight}) y = Add(t, b4)")
        assert (found.verdict, BIAS_LAST in found.conditions) == ("proved", True)


def test_a_bias_of_codes_is_a_bias():
    decoded = "d = DequantizeLinear(codes, s, i) "
    found = proved(decoded + "y = Conv(x, w, d)", decoded + "t = Conv(x, w) y = Add(t, b4)")
    assert found.verdict in ("proved", "undecided")  # 0.1 * 2 is rounded
    assert BIAS_LAST in found.conditions


def test_a_bias_of_zeros_changes_the_sign_of_zeros_only():
    behind = "q = QuantizeLinear(a, s) y = DequantizeLinear(q, s)"
    found = proved(
        f"a = Conv(x, w, zero) {behind}",
        f"t = Conv(x, w) n = Relu(t) {behind.replace('a,', 't,')}",
    )
    assert found.verdict in ("proved", "undecided")
    assert BIAS_LAST not in found.conditions  # nothing is added in the other model


def test_biases_that_both_models_have_need_no_condition():
    found = proved("a = Conv(x, w, b) y = Relu(a)", "a = Conv(x, w, b) y = Relu(a)")
    assert (found.verdict, BIAS_LAST in found.conditions) == ("proved", False)


@pytest.mark.parametrize(
    "other",
    [
        "t = Conv(x, w) y = Add(t, other)",
    ],
)
def test_another_bias_is_not_proved(other):
    behind = "q = QuantizeLinear(v, s) y = DequantizeLinear(q, s)"
    found = proved(f"v = Conv(x, w, b) {behind}", f"{other.replace('y =', 'v =')} {behind}")
    assert found.verdict != "proved"
    regions = [region for region in found.regions if region.verdict == "different"]
    assert all(region.conditions == (BIAS_LAST,) for region in regions)


def test_float16_is_left_undecided():
    constants = "float16[1,1,1,1] w = {11878}, float16[1] b = {11878}, float16[1,1,1,1] c = {11878}"
    signature = "(float16[1,1,4,4] x) => (float16[N,C,H,W] y)"
    bodies = "y = Conv(x, w, b)", "t = Conv(x, w) y = Add(t, c)"
    pair = [model(body, signature, constants) for body in bodies]
    found = qgraph.prove(*pair)
    assert found.verdict == "undecided"
    assert any("different orders of additions or roundings" in str(r.reason) for r in found.regions)


def test_a_branch_has_biases_too():
    branches = """c = ReduceMax <keepdims = 0> (x) d = Less(c, s)
        y = If (d) <then_branch = t () => (float[N,C,H,W] p) {{ {} }},
                    else_branch = e () => (float[N,C,H,W] o) {{ o = Neg(x) }}>"""
    forms = "p = Conv(x, w, b)", "t = Conv(x, w) p = Add(t, b4)"
    found = proved(*map(branches.format, forms))
    assert (found.verdict, BIAS_LAST in found.conditions) == ("proved", True)


def test_a_bias_that_is_fed_is_split_too():
    signature = "(float[1,2,4,4] x, float[2] f) => (float[N,C,H,W] y)"
    bodies = "y = Conv(x, w, f)", "r = Reshape(f, k) t = Conv(x, w) y = Add(t, r)"
    constants = f"{CONSTANTS}, int64[4] k = {{1, 2, 1, 1}}"
    found = qgraph.prove(*(model(body, signature, constants) for body in bodies))
    assert (found.verdict, BIAS_LAST in found.conditions) == ("proved", True)


def test_a_certificate_has_to_name_the_condition():
    pair = model("y = Conv(x, w, b)"), model("t = Conv(x, w) y = Add(t, b4)")
    document = qgraph.prove(*pair, evidence=True).to_json()
    document["conditions"].remove(BIAS_LAST.to_json())
    with pytest.raises(EquivalenceError, match="the bias is added last"):
        verify(document, *pair)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("y = Gemm(x, m, b)", "t = MatMul(x, m) y = Add(t, b)"),
        pytest.param(
            "y = ReduceMean <keepdims = 1> (x, k)",
            "t = ReduceSum <keepdims = 1> (x, k) y = Div(t, two)",
            marks=pytest.mark.slow,
        ),
        ("y = Softmax(x)", "e = Exp(x) r = ReduceSum <keepdims = 1> (e, k) y = Div(e, r)"),
    ],
)
def test_rewrites_of_sums_are_undecided_and_say_why(first, second):
    constants = "float[2,2] m = {1,2,3,4}, float[2] b = {1,2}, int64[1] k = {1}, float two = {2}"
    signature = "(float[N,2] x) => (float[N,M] y)"
    found = qgraph.prove(*(model(body, signature, constants) for body in (first, second)))
    assert found.verdict == "undecided"
    assert any("only a bound on their difference" in str(r.reason) for r in found.regions)

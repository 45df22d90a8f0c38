"""Models that differ however sums are added: the verdict DIFFERENT, with an input that shows it."""

from __future__ import annotations

import json
from fractions import Fraction

import jsonschema
import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import Certificate, json_schema
from qgraph.errors import EquivalenceError
from qgraph.text import json_text
from tests.verify.checking import verify

SUMS = {
    "MatMul": "m = MatMul (a, v) n = Add (m, b)",
    "Gemm": "n = Gemm (a, v, b)",
}
MODEL = """<ir_version: 10, opset_import: ["": 21]>
    net (float[1,6] x) => (float[1,LAST] y)
    <float s = {0.05}, int8 z = {0}, int8[6,3] w = {W}, float s_w = {0.01}, float t = {0.02},
     float[3] b = {0.1, -0.2, BIAS}, float[3,2] w_2 = {1, 2, 3, 4, LATER}> {
        q = QuantizeLinear (x, s, z)
        a = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, s_w, z)
        SUM
        [round] p = QuantizeLinear (n, t, z)
        c = DequantizeLinear (p, t, z)
        END
    }"""
WEIGHTS = np.random.default_rng(2).integers(-9, 10, (6, 3))


def model(
    form: str,
    weights: np.ndarray = WEIGHTS,
    bias: float = 0.3,
    later: str | None = None,
) -> ir.Model:
    text = MODEL.replace("SUM", SUMS[form]).replace("BIAS", repr(bias))
    text = text.replace("W}", ", ".join(map(str, weights.ravel().tolist())) + "}")
    text = text.replace("LATER", later or "5, 6").replace("LAST", "2" if later else "3")
    return ir.from_onnx_text(
        text.replace("END", f"y = {'MatMul (c, w_2)' if later else 'Identity (c)'}")
    )


def others() -> np.ndarray:
    """Return weights that differ, but add up to the same."""
    weights = WEIGHTS.copy()
    weights[4, 1] += 40
    weights[0, 1] -= 40
    return weights


def exact_codes(weights: np.ndarray, bias: float, x: np.ndarray) -> list[Fraction]:
    """Return what is rounded in rational numbers, from the decoded float32 numbers."""

    def real(number: float) -> Fraction:
        return Fraction(float(np.float32(number)))

    codes = np.rint(x.reshape(-1) / np.float32(0.05)).astype(int).tolist()
    biases = [real(0.1), real(-0.2), real(bias)]
    unit = real(0.05) * real(0.01)
    return [
        (sum(c * int(w) for c, w in zip(codes, column, strict=True)) * unit + b) / real(0.02)
        for column, b in zip(weights.T, biases, strict=True)
    ]


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("weights", "bias"), [(others(), 0.3), (WEIGHTS, 0.9)])
def test_a_changed_constant_is_a_difference_with_an_input(weights, bias):
    pair = model("MatMul"), model("Gemm", weights, bias)
    certificate = qgraph.prove(*pair)
    assert certificate.verdict == "different"
    x = certificate.counterexample["x"]
    ours, theirs = exact_codes(WEIGHTS, 0.3, x), exact_codes(weights, bias, x)
    apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    assert max(apart) > 2  # codes differ, and no rounding of a few terms is that large
    results = [qgraph.load(each).run({"x": x}, backend="numpy")["y"] for each in pair]
    assert (results[0] != results[1]).any()
    (region,) = [each for each in certificate.regions if each.verdict == "different"]
    assert region.reference_nodes == ("round",)


def test_a_limit_asks_for_bounds():
    certificate = qgraph.prove(model("MatMul"), model("Gemm", bias=0.9), within="1step")
    assert certificate.verdict == "bounded"


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("bias", [0.3, 0.30000004])
def test_what_an_order_of_additions_may_bring_back_is_bounded(bias):
    assert qgraph.prove(model("MatMul"), model("Gemm", bias=bias)).verdict == "bounded"


@pytest.mark.slow
def test_a_difference_has_to_reach_an_output():
    pairs = [
        (model("MatMul", later=later), model("Gemm", bias=0.9, later=later))
        for later in ("0, 0", "0, 1")
    ]
    assert [str(qgraph.prove(*pair).verdict) for pair in pairs] == ["bounded", "different"]


@pytest.mark.slow
def test_certificates_state_the_input():
    pair = model("MatMul"), model("Gemm", others())
    certificate = qgraph.prove(*pair, evidence=True)
    document = json.loads(json_text(certificate.to_json()))
    jsonschema.validate(document, json_schema())
    example = Certificate.from_json(document).shown_by
    assert example == certificate.shown_by
    array = np.full((1, 6), example.value, np.float32)
    for element, number in zip(example.elements, example.values, strict=True):
        array[element] = number
    assert np.array_equal(array, certificate.counterexample["x"])
    assert verify(document, *pair) == "different"
    document["shown_by"]["values"][0] += 1
    with pytest.raises(EquivalenceError, match="another witness"):
        verify(document, *pair)


@pytest.mark.slow
def test_a_difference_in_a_later_segment_is_shown_if_the_codes_before_are_known():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[1,2,5,5] x) => (float y)
        <float s = {0.0625}, int8 z = {0}, int8[2,2,3,3] w = {CODES}, float[2] b = {0.2, -0.3},
         float[2,2,3,3] u = {NUMBERS}, BIAS> {
            q = QuantizeLinear (x, s, z)
            a = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, s, z)
            m = Conv (a, v, b)
            p = QuantizeLinear (m, s, z)
            c = DequantizeLinear (p, s, z)
            SUM
            [last] r = QuantizeLinear (n, s, z)
            y = DequantizeLinear (r, s, z)
        }"""
    random = np.random.default_rng(0)
    codes = ", ".join(map(str, random.integers(-9, 10, 36).tolist()))
    numbers = ", ".join(f"{x:.4f}" for x in random.normal(size=36))
    text = text.replace("CODES", codes).replace("NUMBERS", numbers)
    sums = {
        "n = Conv (c, u, d)": "float[2] d = {0.1, 0.1}",
        "l = Conv (c, u) n = Add (l, d)": "float[1,2,1,1] d = {0.1, 0.9}",
    }
    pair = [text.replace("SUM", end).replace("BIAS", bias) for end, bias in sums.items()]
    certificate = qgraph.prove(*map(ir.from_onnx_text, pair))
    different = [
        each.reference_nodes for each in certificate.regions if each.verdict == "different"
    ]
    assert (str(certificate.verdict), different) == ("different", [("last",)])


def test_codes_without_ends_give_no_examples():
    pair = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (float[2,4] x) => (int64[2] y)
            <float low = {{-1}}, float high = {{1}}, int64 least = {{{least}}}> {{
                whole = Floor (x)
                some = Clip (whole, low, high)
                first = ArgMax <axis = 1, keepdims = 0> (some)
                y = Min (least, first)
            }}""")
        for least in (-1, 0)
    ]
    assert qgraph.prove(*pair).verdict == "bounded"


@pytest.mark.parametrize("name", ["x", "x0"])
def test_segments_with_graphs_are_not_followed(name):
    """Branches read a value that is no operand, also by a name that an operand has elsewhere."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[2,3] IN, bool c) => (float[2,3] y)
        <float s = {0.1}, int8 z = {0}, float[3,3] w = {1, 2, -3, 4, 5, 6, -7, 8, 9},
         float[3] b = {0.1, 0.2, 0.3}> {
            q = QuantizeLinear (IN, s, z)
            a = DequantizeLinear (q, s, z)
            SUM
            i = If (c) <then_branch = one () => (float[2,3] t) { t = Relu (IN) },
                else_branch = other () => (float[2,3] e) { e = Neg (IN) }>
            k = Add (i, n)
            p = QuantizeLinear (k, s, z)
            y = DequantizeLinear (p, s, z)
        }""".replace("IN", name)
    sums = "n = Gemm (a, w, b)", "m = MatMul (a, w) n = Add (m, b)"
    pair = [ir.from_onnx_text(text.replace("SUM", each)) for each in sums]
    assert str(qgraph.prove(*pair).verdict) in ("bounded", "undecided")

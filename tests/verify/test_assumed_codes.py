"""Segments that begin at codes that the checker cannot bound."""

from __future__ import annotations

import copy
import json
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.text import json_text
from tests.verify.checking import checked, leaves

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,4] x) => (int8[1,2] y)
    <float s = {0.01}, int8 z = {0}, float t = {0.005}, float k = {K}, float s_y = {0.05},
     float[4,4] w = {1.5, 2, 3, -4, 5, 6, -7, 8, 1, -2, 3, 4, -5, 6, 7, -8},
     int8[4,2] v = {5, 11, -15, 2, 7, 1, 3, -9}, float s_v = {0.1}, float f = {F}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        n = Mul (m, k)
        h = Tanh (n)
        q = QuantizeLinear (h, t, z)
        d = DequantizeLinear (q, t, z)
        u = DequantizeLinear (v, s_v, z)
        o = MatMul (d, u)
        p = Mul (o, f)
        y = QuantizeLinear (p, s_y, z)
    }"""


def model(k: float, f: float) -> ir.Model:
    return ir.from_onnx_text(TEXT.replace("{K}", f"{{{k}}}").replace("{F}", f"{{{f}}}"))


def test_what_follows_codes_without_a_bound_is_checked():
    pair = model(0.1, 1.3), model(0.10001, 1.3001)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json()))
    verdicts = [region["verdict"] for region in document["regions"]]
    assert verdicts == ["bounded", "bounded", "proved"]
    result = checked(document, *pair)
    assert [str(part.status) for part in result.regions] == ["unchecked", "checked", "checked"]
    assert "no bound for Tanh" in str(result.regions[0].reason)
    assert str(result.verdict) == "undecided"
    # all codes of the type may be more than occur, so that a smaller bound is not refuted
    document["regions"][1]["bound"]["ideal_shift"] *= 0.5
    assert [str(part.status) for part in checked(document, *pair).regions][1] == "unchecked"


@pytest.mark.slow
def test_other_factors_behind_codes_without_a_bound_are_not_checked():
    pair = model(0.1, 1.3), model(0.10001, 1.3001)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json()))
    result = checked(document | {"facts": []}, pair[0], model(0.10001, 1.4))
    assert str(result.regions[1].status) != "checked"


TWO = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    net (int8[1,4] x) => (int8[1,2] y)
    <float s = {0.01}, int8 z = {0}, int8 z_q = {7}, float t = {0.005}, float k = {K},
     float s_y = {0.05}, float bits = {8}, float zero = {0},
     float[4,4] w = {1.5, 2, 3, -4, 5, 6, -7, 8, 1, -2, 3, 4, -5, 6, 7, -8},
     int8[4,2] v = {5, 11, -15, 2, 7, 1, 3, -9}, float s_v = {0.1}, float f = {F}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        n = Mul (m, k)
        h = FIRST (n)
        i = SECOND (n)
        ROUNDED
        d = Sub (b, c)
        u = DequantizeLinear (v, s_v, z)
        o = MatMul (d, u)
        p = Mul (o, f)
        y = QuantizeLinear (p, s_y, z)
    }"""
ROUNDED = {
    "codes": """q = QuantizeLinear (h, t, z_q) b = DequantizeLinear (q, t, z_q)
        r = QuantizeLinear (i, t, z) c = DequantizeLinear (r, t, z)""",
    "real numbers": """b = qonnx.custom_op.general.Quant (h, t, zero, bits)
        c = qonnx.custom_op.general.Quant (i, t, zero, bits)""",
}
ENDS = {"codes": ("q", "r"), "real numbers": ("b", "c")}


def two(kind: str, factors: tuple[float, float], first: str = "Tanh") -> ir.Model:
    """Two quantizers of functions that the checker does not bound, and a sum behind both."""
    text = TWO.replace("ROUNDED", ROUNDED[kind]).replace("FIRST", first).replace("SECOND", "Erf")
    for name, factor in zip(("{K}", "{F}"), factors, strict=True):
        text = text.replace(name, f"{{{factor}}}")
    return ir.from_onnx_text(text)


HONEST, NEAR = (0.1, 1.3), (0.10001, 1.3001)


def statuses(document: dict[str, Any], *pair: ir.Model) -> list[str]:
    return [str(part.status) for part in checked(document | {"facts": []}, *pair).regions]


def stated_of_two(kind: str) -> dict[str, Any]:
    pair = two(kind, HONEST), two(kind, NEAR)
    proof = qgraph.prove(*pair, evidence=True, within="8step")
    return dict(json.loads(json_text(proof.to_json())))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("kind", ROUNDED)
def test_the_segment_behind_quantizers_without_a_bound_is_checked(kind: str) -> None:
    document, one, other = stated_of_two(kind), two(kind, HONEST), two(kind, NEAR)
    first, second = ENDS[kind]
    values = [region["reference_value"] for region in document["regions"]]
    assert values == [first, second, "y", "y"]
    assert statuses(document, one, other) == ["unchecked", "unchecked", "checked", "checked"]
    # the codes of the two differ by up to 255 steps, and weights by up to 15
    assert statuses(document, one, two(kind, (0.10001, 1.4)))[2] != "checked"
    document["regions"][2]["bound"]["max_steps"] = 0
    assert statuses(document, one, other)[2] != "checked"


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("kind", ROUNDED)
def test_a_quantizer_of_another_function_is_not_checked(kind: str) -> None:
    """The numbers before rounding are not compared, whatever is stated of them."""
    document, one = stated_of_two(kind), two(kind, HONEST)
    for other in (two(kind, NEAR, "Sigmoid"), two(kind, NEAR, "Erf"), two(kind, NEAR)):
        result = checked(document | {"facts": []}, one, other)
        assert [str(part.status) for part in result.regions[:2]] == ["unchecked"] * 2
        assert str(result.verdict) == "undecided"
    for place in (0, 1):
        proved = copy.deepcopy(document)
        proved["regions"][place] |= {"verdict": "proved", "bound": None, "exactness": "values"}
        assert statuses(proved, one, two(kind, NEAR, "Sigmoid"))[place] == "unchecked"


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("kind", ROUNDED)
def test_exchanged_quantizers_without_a_bound_are_other_codes(kind: str) -> None:
    document = stated_of_two(kind)
    first, second = ENDS[kind]
    names = {first: second, second: first}
    nodes = [region["candidate_nodes"] for region in document["regions"]]
    for region, others in zip(document["regions"], (nodes[1], nodes[0], *nodes[2:]), strict=True):
        value = region["candidate_value"]
        region["candidate_value"] = names.get(value, value)
        region["candidate_nodes"] = others
        region["entries"] = [[a, names.get(b, b)] for a, b in region["entries"]]
    found = statuses(document, two(kind, HONEST), two(kind, NEAR))
    # b - c and c - b differ by up to 255 steps of both
    assert found[:3] == ["unchecked"] * 3


MOVED = """t = Transpose (n) h = Tanh (t) q = QuantizeLinear (h, u, z)
    d = DequantizeLinear (q, u, z)"""
NOT_MOVED = """h = Tanh (n) q = QuantizeLinear (h, u, z) t = Transpose (q)
    d = DequantizeLinear (USED, u, z)"""


def square(nodes: str, factor: float) -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[2,2] x) => (int8[2,2] y)
        <float s = {{0.01}}, int8 z = {{0}}, float u = {{0.005}}, float k = {{{factor}}},
         float[2,2] w = {{1.5, -2, 3, 4}}> {{
            a = DequantizeLinear (x, s, z)
            n = Mul (a, k)
            {nodes}
            o = MatMul (d, w)
            p = Mul (o, k)
            y = QuantizeLinear (p, s, z)
        }}"""
    )


def test_codes_without_a_bound_are_not_taken_for_moved_ones():
    one = square(NOT_MOVED.replace("USED", "t"), 1.1)
    plain = square(NOT_MOVED.replace("USED", "q"), 1.1001)
    same = square(NOT_MOVED.replace("USED", "t"), 1.1001)
    proof = qgraph.prove(one, same, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json()))
    assert statuses(document, one, same) == ["unchecked", "checked", "checked"]
    assert statuses(document, one, plain)[1] != "checked"
    assert statuses(document, one, square(MOVED, 1.1001))[:2] == ["unchecked"] * 2


def test_unknown_data_is_not_one_function_in_both_models():
    """What a quantizer takes may be used elsewhere, too."""

    def model(name: str, factor: float) -> ir.Model:
        nodes = f"h = {name} (n) q = QuantizeLinear (h, u, z) d = DequantizeLinear (q, u, z)"
        model = square(f"{nodes} e = Relu (h)", factor)
        model.graph.outputs.extend(v for node in model.graph for v in node.outputs if v.name == "e")
        return model

    pair = model("Tanh", 1.1), model("Tanh", 1.1001)
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json()))
    (region,) = (each for each in document["regions"] if each["reference_value"] == "e")
    region |= {"verdict": "proved", "bound": None, "exactness": "values"}
    found = statuses(document, pair[0], model("Sigmoid", 1.1001))
    assert found[document["regions"].index(region)] == "unchecked"


SCALES = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    net (uint8[1,4] x, uint8[1,4] i) => (int8[1,2] y)
    <float s = {0.01}, uint8 z = {135}, uint8 z_q = {121}, int8 none = {0}, float s_q = {0.005},
     float k = {K}, float[4,2] w = {1.5, 2, 3, -4, 5, 6, -7, 8}, float s_y = {0.05}> {
        PRODUCT
        d = DequantizeLinear (q, s_q, z_q)
        m = MatMul (d, w)
        n = Mul (m, k)
        y = QuantizeLinear (n, s_y, none)
    }"""
PRODUCTS = (
    "q = com.microsoft.QLinearMul (x, s, z, i, s, z, s_q, z_q)",
    """a = DequantizeLinear (x, s, z) b = DequantizeLinear (i, s, z)
        p = Mul (a, b) q = QuantizeLinear (p, s_q, z_q)""",
)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("turned", [False, True])
def test_codes_of_an_operator_without_a_bound_are_those_of_a_quantizer(turned: bool) -> None:
    one, other, off = (
        ir.from_onnx_text(SCALES.replace("{K}", f"{{{k}}}").replace("PRODUCT", product))
        for k, product in zip((0.5, 0.5001, 0.7), (*PRODUCTS, PRODUCTS[1]), strict=True)
    )
    pair = (other, one) if turned else (one, other)
    proof = qgraph.prove(*pair, evidence=True, within="8step")
    document = json.loads(json_text(proof.to_json()))
    assert [region["reference_value"] for region in document["regions"]] == ["q", "y", "y"]
    assert statuses(document, *pair) == ["unchecked", "checked", "checked"]
    assert statuses(document, *((off, one) if turned else (one, off)))[1] != "checked"


HARD = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,4] x) => (uint8[1,2] y)
    <float s = {0.1}, int8 z = {0}, uint8 low = {0}, float[4,2] w = {1.5, 2, 3, -4, 5, 6, -7, 8},
     float s_y = {0.004}, float k = {K}> {
        a = DequantizeLinear (x, s, z)
        m = MatMul (a, w)
        n = Mul (m, k)
        h = HardSigmoid <alpha = 0.01> (n)
        y = QuantizeLinear (h, s_y, low)
    }"""


def test_a_hard_sigmoid_is_bounded_by_its_slope():
    pair = [ir.from_onnx_text(HARD.replace("{K}", f"{{{k}}}")) for k in (1.0, 1.001)]
    document = json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json()))
    assert str(checked(document, *pair).verdict) == "bounded"
    # 0.01 * n is at most 1/2 inside, and 0.1 % of that are 1/8 of a step of 0.004
    bound = document["regions"][0]["bound"]
    assert bound["ideal_shift"] >= 0.124
    bound |= {"ideal_shift": 0.124, "channels": []}
    assert leaves(document, *pair)


LAST = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (uint8[2,3] x) => (float[2,2] y)
    <float s = {0.03}, uint8 z = {3}, float t = {0.05}, float[2] b = {0, 0.000001},
     float[3,2] w = {0.3, -0.7, 0.11, 0.9, -0.2, 0.55}> {
        d = DequantizeLinear (x, s, z)
        SUM
        y = qonnx.custom_op.general.BipolarQuant (m, t)
    }"""


def test_an_output_of_codes_without_a_bound_is_not_refuted():
    sums = "m = MatMul (d, w)", "m = Gemm (d, w, b)"
    one, other = (ir.from_onnx_text(LAST.replace("SUM", each)) for each in sums)
    proof = qgraph.prove(one, other, evidence=True, within="1step")
    document = json.loads(json_text(proof.to_json()))
    assert [region["reference_value"] for region in document["regions"]] == ["y", "y"]
    assert not checked(document, one, other).is_refuted

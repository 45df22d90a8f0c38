"""Where segments begin besides codes: results without a bound that both models compute alike."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph

MIDDLES = {
    "data of unknown range": "m = MatMul (x, v)",
    "behind codes": """i = QuantizeLinear (x, s, z) j = DequantizeLinear (i, s, z)
        k, l = MaxPool <kernel_shape = [1]> (j) o = Cast <to = 1> (l) m = MatMul (o, v)""",
}


def model(middle: str, bias: float, *, other: str = "1.5") -> ir.Model:
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[3,2,2] x) => (float[n,m,k] y)
        <float s = {{0.1}}, int8 z = {{0}}, float[2,2] v = {{1, {other}, -2, 3}},
         float[2,2] w = {{0.3, 0.5, -0.25, 0.7}}, float b = {{{bias}}}> {{
            {middle}
            q = QuantizeLinear (m, s, z)
            a = DequantizeLinear (q, s, z)
            n = MatMul (a, w)
            c = Add (n, b)
            [last] p = QuantizeLinear (c, s, z)
            y = DequantizeLinear (p, s, z)
        }}""")


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("name", MIDDLES)
def test_segments_begin_behind_equal_results(name):
    found = qgraph.prove(model(MIDDLES[name], 0.5), model(MIDDLES[name], 0.500001), within="1step")
    assert found.verdict == "bounded"
    (region,) = [region for region in found.regions if region.verdict == "bounded"]
    assert region.reference_nodes == ("last",)
    assert region.bound.ideal_shift == pytest.approx(1e-5, rel=0.1)
    assert any("operators" in condition for condition in found.conditions)


def test_results_of_other_weights_are_no_start_but_segments_behind_their_codes_are_bounded():
    middle = MIDDLES["behind codes"]
    sides = model(middle, 0.5), model(middle, 0.500001, other="1.500001")
    found = qgraph.prove(*sides, within="1step")
    assert found.verdict == "undecided"
    verdicts = {region.reference_value: region.verdict for region in found.regions}
    assert verdicts["a"] == "undecided"
    assert verdicts["p"] == "bounded"


def test_places_that_follow_from_static_sizes_are_constant():
    middle = """shape = Shape (x)
        two = Constant <value_ints = [2]> () none = Constant <value_ints = [0]> ()
        size = Gather (shape, two) half = Div (size, two)
        i = QuantizeLinear (x, s, z) j = DequantizeLinear (i, s, z)
        part = Slice (j, none, half, two) m = Concat <axis = 2> (part, part)"""
    found = qgraph.prove(model(middle, 0.5), model(middle, 0.500001), within="1step")
    assert found.verdict == "bounded"


def test_equal_quantizers_of_one_value_are_one():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2] x) => (float[1,2] y)
        <float s = {0.1}, float t = {0.07}, int8 z = {0}, float[2,2] w = {1, 2, 3, 4},
         float b = {BIAS}> {
            a = DequantizeLinear (x, s, z)
            p = QuantizeLinear (a, t, z) i = DequantizeLinear (p, t, z) m = MatMul (i, w)
            SECOND n = MatMul (j, w)
            c = Add (m, n) d = Add (c, b)
            q = QuantizeLinear (d, s, z) y = DequantizeLinear (q, s, z)
        }"""
    copies = "o = QuantizeLinear (a, t, z) j = DequantizeLinear (o, t, z)", "j = Identity (i)"
    biases = "0.5", "0.500001"
    sides = [
        ir.from_onnx_text(text.replace("SECOND", copy).replace("BIAS", bias))
        for copy, bias in zip(copies, biases, strict=True)
    ]
    found = qgraph.prove(*sides, within="1step")
    assert found.verdict == "bounded"
    assert not found.beyond


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("middle", ["r = Reshape (a, h)", "r = Identity (a)"])
def test_codes_that_are_only_moved_and_rounded_again_are_no_segment(middle):
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,4] x) => (float[n,2] y)
        <float s = {0.1}, int8 z = {0}, uint8 o = {0},
         float[4,4] v = {1, 2, 3, 4, -1, 0, 1, -2, 0, 1, 3, -3, 2, 2, -1, 1},
         float[4] b = {0.1, 0.2, 0.3, 0.4}, int64[2] h = {-1, 4},
         float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float c = {BIAS}> {
            d = DequantizeLinear (x, s, z)
            m = MatMul (d, v) e = Add (m, b) f = Relu (e)
            q = QuantizeLinear (f, s, o) a = DequantizeLinear (q, s, o)
            MIDDLE
            p = QuantizeLinear (r, s, o) i = DequantizeLinear (p, s, o)
            n = MatMul (i, w) k = Add (n, c)
            [last] t = QuantizeLinear (k, s, z) y = DequantizeLinear (t, s, z)
        }"""
    text = text.replace("MIDDLE", middle)
    sides = [ir.from_onnx_text(text.replace("BIAS", bias)) for bias in ("0.5", "0.500001")]
    found = qgraph.prove(*sides, within="1step")
    assert found.verdict == "bounded"
    assert {region.candidate_nodes for region in found.regions} >= {("last",)}
    assert not found.beyond


def long_sum(arithmetic: str, terms: int, end: str) -> ir.Model:
    """Return a sum of float16 products, in float16 or in float32."""
    product = {
        "FLOAT16": "m = MatMul (x, w)",
        "FLOAT": """i = Cast <to = 1> (x) v = Cast <to = 1> (w)
            j = MatMul (i, v) m = Cast <to = 10> (j)""",
    }[arithmetic]
    kind = "float16" if end == "Identity" else "int8"
    call = {
        "Identity": "y = Identity (m)",
        "QuantizeLinear": "o = Cast <to = 1> (m) [last] y = QuantizeLinear (o, s, z)",
    }[end]
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float16[2,{terms}] x, float16[{terms},1] w) => ({kind}[2,1] y)
        <float s = {{0.01}}, int8 z = {{0}}> {{ {product} {call} }}""")
    weights = model.graph.inputs.pop()
    weights.const_value = ir.tensor(np.full((terms, 1), 0.001, np.float16))
    model.graph.register_initializer(weights)
    return model


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("end", ["Identity", "QuantizeLinear"])
@pytest.mark.parametrize("narrow", ["reference", "candidate"])
@pytest.mark.parametrize("terms", [1023, 12000])
def test_sums_of_any_number_of_terms_have_an_error(terms, narrow, end):
    """Each of n roundings multiplies a term by up to 1 + 2**-11, and the terms sum to n * 0.001."""
    sides = [long_sum(each, terms, end) for each in ("FLOAT16", "FLOAT")]
    request = qgraph.Bounding(within="200step", ranges={"x": (-1.0, 1.0)})
    found = qgraph.prove(*(sides if narrow == "reference" else sides[::-1]), within=request)
    bound = found.regions[0].bound
    errors = {"reference": bound.reference_error, "candidate": bound.candidate_error}
    expected = ((1 + 2**-11) ** terms - 1) * terms * float(np.float16(0.001))
    step = 0.01 if end == "QuantizeLinear" else bound.absolute / bound.deviation_steps
    assert errors[narrow] * step == pytest.approx(expected, rel=2e-3)
    assert bool(found.beyond) == (terms == 12000)


def test_a_sum_that_may_exceed_the_range_of_float16_is_named():
    sides = (long_sum(each, 20000, "Identity") for each in ("FLOAT16", "FLOAT"))
    request = qgraph.Bounding(within="200step", ranges={"x": (-1.0, 1.0)})
    (region,) = qgraph.prove(*sides, within=request).regions
    # 20 times (1 + 2**-11)**20000 is 348,000
    assert str(region.reason).startswith("a sum of 20000 terms may exceed the range of FLOAT16")
    assert "--accumulate float32" in str(region.reason)


def test_quantizers_of_other_data_are_not_explained_by_sums_without_a_bound():
    """The reference rounds nothing but its long sum, and the candidate rounds the data itself."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[2,4] x, int8[2,4] u) => (int8[2,4] y)
        <float s = {0.01}, float h = {0.5}, int8 z = {0}> {
            d = DequantizeLinear (u, h, z)
            BODY
            [last] y = QuantizeLinear (m, s, z)
        }"""
    bodies = "m = CumSum (d, k)", "m = Relu (x)"
    text = text.replace("int8 z", "int64 k = {1}, int8 z")
    sides = (ir.from_onnx_text(text.replace("BODY", body)) for body in bodies)
    request = qgraph.Bounding(within="1step", ranges={"x": (-1.0, 1.0)})
    (region, _) = qgraph.prove(*sides, within=request).regions
    assert str(region.reason) == "no quantizer of the reference rounds the same data as 'last'"


def test_an_operator_without_a_bound_is_named_where_it_leaves_no_range():
    """A range of the input does not help: the scale is computed from it."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[N,4] x) => (float[N,2] y)
        <int8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float t = {0.02}> {
            q, s, z = DynamicQuantizeLinear (x)
            BODY
        }"""
    bodies = (
        "a = MatMulInteger (q, w, z) b = Cast <to = 1> (a) c = Mul (s, t) y = Mul (b, c)",
        "a = DequantizeLinear (q, s, z) b = DequantizeLinear (w, t) y = MatMul (a, b)",
    )
    pair = [ir.from_onnx_text(text.replace("BODY", body)) for body in bodies]
    request = qgraph.Bounding("1step", ranges={"x": (-1.0, 1.0)})
    (region,) = qgraph.prove(*pair, within=request).regions
    assert (region.verdict, region.reason_id) == ("undecided", "QG063")
    assert "DynamicQuantizeLinear" in str(region.reason)

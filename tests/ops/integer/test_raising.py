"""Operators on codes from their standard forms, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness, Method
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.lowered_operators import (
    LowerIntegerOperators,
    RaiseIntegerOperators,
    SumForm,
)

pytestmark = pytest.mark.sums

PRODUCTS = ["ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm"]


def names(model: Model) -> list[str]:
    return [node.op_type for node in model.ir.graph]


def there(model: ir.Model, form: SumForm) -> Model:
    found = load(model.clone())
    found.apply(LowerIntegerOperators(form=form, exact=Exactness.NEAR))
    return found


@pytest.mark.cases(fast=1, slow=6)
@pytest.mark.runtime
@pytest.mark.parametrize("name", PRODUCTS)
def test_there_and_back_has_the_same_bits(case, ort, name, scales):
    raised = 0
    for seed in range(10):
        made = case(name, seed, scales)
        found = there(made.model, SumForm.EXACT)
        report = found.apply(RaiseIntegerOperators(microsoft=True))
        onnx.checker.check_model(ir.to_proto(found.ir), full_check=True)
        if names(found) == [name]:
            raised += 1
            assert [site.verdict.exactness for site in report] == [Exactness.BITS]
        expected = ort(made.model, made.feeds)
        np.testing.assert_array_equal(ort(found.ir, made.feeds), expected)
        assert found.apply(RaiseIntegerOperators(microsoft=True)).count(SiteStatus.CHANGED) == 0
    # Every third QGemm gives real numbers, which no operator of this pass does.
    assert raised >= (4 if name == "QGemm" else 10)


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.runtime
@pytest.mark.parametrize("name", ["QLinearConv", "QLinearMatMul", "QGemm"])
def test_real_numbers_are_left_where_that_is_allowed_or_proved(case, ort, name, scales):
    counts = {Exactness.BITS: 0, Exactness.NEAR: 0}
    for seed in range(12):
        made = case(name, seed, scales)
        found = there(made.model, SumForm.QDQ)
        if names(found)[-1] != "QuantizeLinear":
            continue
        before = ort(found.ir, made.feeds)
        report = found.apply(RaiseIntegerOperators(microsoft=True, exact=Exactness.NEAR))
        (site,) = report
        assert names(found) == [name], site.reason
        counts[site.verdict.exactness] += 1
        after = ort(found.ir, made.feeds)
        np.testing.assert_array_equal(after, ort(made.model, made.feeds))
        if site.verdict.exactness is Exactness.BITS:
            np.testing.assert_array_equal(after, before)
    # An alpha that is not 1 proves nothing.
    assert counts[Exactness.BITS if scales == "powers" else Exactness.NEAR] >= 2


PAIRED = """<ir_version: 8, opset_import: ["": 13]>
    g ({head}) => (uint8[2, 2] y)
    <int8[3, 2] w = {{1, -2, 3, -4, 5, -6}}, float s = {{{s}}}, float t = {{0.5}},
     uint8 z = {{3}}, int8 n = {{0}}, float[2] p = {{0.5, 0.25}}, int8[2] o = {{0, 0}},
     float[3] r = {{0.5, 0.25, 1}}, int8[3] v = {{0, 0, 0}}> {{
        a = DequantizeLinear (q, s, z)
        b = {weights}
        m = {product}
        y = QuantizeLinear (m, t, {zero})
    }}"""
HEAD = "uint8[2, 3] q"
PLAIN = "DequantizeLinear (w, t, n)"


def paired(weights: str = PLAIN, product: str = "MatMul (a, b)", **more: Any) -> Model:
    known = {"head": HEAD, "s": 0.25, "zero": "z"} | more
    return load(ir.from_onnx_text(PAIRED.format(weights=weights, product=product, **known)))


def test_powers_of_two_are_proved_by_trying_all_sums():
    model = paired("DequantizeLinear <axis = 1> (w, p, o)")
    q = np.array([[0, 255, 3], [9, 77, 128]], np.uint8)
    before = model.run({"q": q}, backend="numpy")["y"]
    (site,) = model.apply(RaiseIntegerOperators())
    assert (site.verdict.exactness, site.verdict.method) == (Exactness.BITS, Method.EXHAUSTIVE)
    assert names(model) == ["QLinearMatMul"]
    np.testing.assert_array_equal(model.run({"q": q}, backend="numpy")["y"], before)


def test_other_scales_need_permission():
    model = paired(s=0.1)
    (site,) = model.apply(RaiseIntegerOperators())
    assert site.outcome is SiteStatus.REFUSED
    assert site.reason.endswith("accept it with exact=near")
    assert len(names(model)) == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": "DequantizeLinear <axis = 0> (w, r, v)"}, "scales differ along axis 0"),
        ({"product": "Gemm (a, b)"}, "allow it with microsoft=true"),
        (
            {"head": HEAD + ", float[2] u", "product": "Gemm (a, b, u)"},
            "bias is not decoded from int32 codes",
        ),
        (
            {"head": HEAD + ", float u", "weights": "DequantizeLinear (w, u, n)"},
            "scale or zero point is not constant",
        ),
    ],
)
def test_what_has_no_operator_is_refused_with_a_reason(options, reason):
    model = paired(**options)
    (site,) = model.apply(RaiseIntegerOperators(exact=Exactness.NEAR))
    assert site.outcome is SiteStatus.REFUSED
    assert reason in site.reason


def test_a_product_that_others_read_is_left():
    model = paired()
    total = next(node for node in model.ir.graph if node.op_type == "MatMul")
    model.ir.graph.outputs.append(total.outputs[0])
    total.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    total.outputs[0].shape = ir.Shape([2, 2])
    assert model.apply(RaiseIntegerOperators()).sites == []


def test_scales_that_are_equal_by_accident_need_no_bias_of_their_own():
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (uint8[1, 2, 4, 4] q) => (uint8[1, 1, 3, 3] y)
        <int8[1, 2, 2, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, int32[1] c = {77}, float s = {0.5},
         float t = {0.25}, uint8 z = {3}, int8 n = {0}> {
            a = DequantizeLinear (q, s, z)
            b = DequantizeLinear (w, s, n)
            d = DequantizeLinear (c, t)
            m = Conv (a, b, d)
            y = QuantizeLinear (m, s, z)
        }"""
    model = load(ir.from_onnx_text(text))
    q = np.random.default_rng(0).integers(0, 256, (1, 2, 4, 4)).astype(np.uint8)
    before = model.run({"q": q}, backend="numpy")["y"]
    model.apply(RaiseIntegerOperators())
    assert names(model) == ["QLinearConv"]
    np.testing.assert_array_equal(model.run({"q": q}, backend="numpy")["y"], before)
    other = load(ir.from_onnx_text(text.replace("t = {0.25}", "t = {0.125}")))
    (site,) = other.apply(RaiseIntegerOperators())
    assert "units of its bias" in site.reason


def test_sums_that_float32_rounds_are_not_raised():
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (uint8[1, 600] q, int8[600, 1] w) => (int32[1, 1] y) {
            a = Cast <to = 1> (q)
            b = Cast <to = 1> (w)
            m = MatMul (a, b)
            y = Cast <to = 6> (m)
        }"""
    model = load(ir.from_onnx_text(text))
    (site,) = model.apply(RaiseIntegerOperators())
    assert site.outcome is SiteStatus.REFUSED
    assert f"the sums may reach {600 * 255 * 128}" in site.reason


CLAMPED = """<ir_version: 8, opset_import: ["": 13]>
    g (uint8[1, 2, 4, 4] q) => (uint8[1, 2, 3, 3] y)
    <int8[2, 2, 2, 2] w, float[2] c = {{{bias}}}, float s = {{0.5}}, float t = {{0.25}},
     float v = {{4}}, uint8 z = {{3}}, uint8 o = {{{zero}}}, int8 n = {{0}}, float low = {{{low}}},
     float high = {{{high}}}> {{
        a = DequantizeLinear (q, s, z)
        x = Cast <to = 3> (k)
        b = DequantizeLinear (x, t, n)
        m = Conv (a, b, c)
        r = {clamp}
        y = QuantizeLinear (r, v, o)
    }}"""


def clamped(clamp: str, zero: int = 0, bias: str = "0.5, -3", low: float = 0, high: float = 1020):
    codes = ", ".join(map(str, np.random.default_rng(0).integers(-128, 128, 16)))
    text = CLAMPED.format(clamp=clamp, zero=zero, bias=bias, low=low, high=high)
    text = text.replace("int8[2, 2, 2, 2] w", f"int8[2, 2, 2, 2] w = {{{codes}}}")
    return load(ir.from_onnx_text(text.replace("x = Cast <to = 3> (k)", "x = Identity (w)")))


Q = np.random.default_rng(1).integers(0, 256, (1, 2, 4, 4)).astype(np.uint8)


@pytest.mark.runtime
@pytest.mark.parametrize("clamp", ["Relu (m)", "Clip (m, low, high)", "Clip (m, low)", "Clip (m)"])
def test_saturation_clamps_and_a_bias_becomes_codes(ort, clamp):
    model = clamped(clamp)
    before = ort(model.ir, {"q": Q})
    assert before.min() == 0
    (site,) = model.apply(RaiseIntegerOperators())
    assert site.verdict.exactness is Exactness.BITS
    assert names(model) == ["Identity", "QLinearConv"]
    (node,) = [node for node in model.ir.graph if node.op_type == "QLinearConv"]
    # 0.5 and -3 in units of 0.5 * 0.25
    assert node.inputs[8].const_value.numpy().tolist() == [4, -24]
    np.testing.assert_array_equal(ort(model.ir, {"q": Q}), before)
    np.testing.assert_array_equal(model.run({"q": Q}, backend="numpy")["y"], before)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clamp": "Relu (m)", "zero": 3}, "lower bound 0 has no lowest code"),
        ({"clamp": "Clip (m, low, high)", "high": 1000}, "upper bound 1000 has no highest code"),
        ({"clamp": "Clip (m, low, high)", "low": 4}, "lower bound 4 has no lowest code"),
        ({"clamp": "Relu (m)", "bias": "0.3, 1"}, "the bias is rounded to units of both scales"),
        ({"clamp": "Relu (m)", "bias": "3e9, 1"}, "its bias is 3e+09, which is too large"),
    ],
)
def test_what_saturation_does_not_do_is_refused(options, reason):
    model = clamped(**options)
    (site,) = model.apply(RaiseIntegerOperators())
    assert site.outcome is SiteStatus.REFUSED
    assert reason in site.reason


@pytest.mark.cases(fast=2)
@pytest.mark.runtime
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_pairs_of_codes_are_tried_out(case, ort, name, scales):
    outcomes = set()
    for seed in range(6):
        made = case(name, seed, scales)
        found = there(made.model, SumForm.QDQ)
        strict = found.clone()
        (site,) = strict.apply(RaiseIntegerOperators(microsoft=True))
        outcomes.add(site.outcome)
        before = ort(found.ir, made.feeds)
        np.testing.assert_array_equal(ort(strict.ir, made.feeds), before)
        assert (site.verdict.differing_inputs == 0) is (site.outcome is SiteStatus.CHANGED)
        assert names(strict) == [name] or site.outcome is SiteStatus.REFUSED
        (site,) = found.apply(RaiseIntegerOperators(microsoft=True, exact=Exactness.NEAR))
        assert names(found) == [name]
        np.testing.assert_array_equal(ort(found.ir, made.feeds), ort(made.model, made.feeds))
    assert found.apply(RaiseIntegerOperators(microsoft=True)).sites == []
    if scales != "any":
        assert SiteStatus.REFUSED in outcomes


def test_pairs_stay_unless_com_microsoft_is_asked_for(case):
    found = there(case("QLinearAdd", 0).model, SumForm.QDQ)
    assert found.apply(RaiseIntegerOperators(exact=Exactness.NEAR)).sites == []


@pytest.mark.runtime
@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("data", ["int8", "uint8"])
def test_operators_are_those_that_onnx_runtime_has_kernels_for(ort, data, weights):
    text = f"""<ir_version: 8, opset_import: ["": 13]>
        g ({data}[2,3] x) => ({data}[2,2] y)
        <float s = {{0.5}}, {data} z = {{1}}, {weights}[3,2] w = {{1, 2, 3, 4, 5, 6}},
         {weights} v = {{2}}> {{
            a = DequantizeLinear (x, s, z)
            b = DequantizeLinear (w, s, v)
            c = MatMul (a, b)
            y = QuantizeLinear (c, s, z)
        }}"""
    found = load(ir.from_onnx_text(text))
    (site,) = found.apply(RaiseIntegerOperators())
    if (data, weights) == ("int8", "uint8"):
        assert site.outcome is SiteStatus.REFUSED
        assert "repack{to=int8}" in site.reason
        return
    assert names(found) == ["QLinearMatMul"]
    x = np.arange(6, dtype=data).reshape(2, 3)
    sums = (x.astype(int) - 1) @ (np.arange(1, 7).reshape(3, 2) - 2)
    assert ort(found.ir, {"x": x}).tolist() == (np.rint(sums * 0.5) + 1).tolist()

"""Operators on codes in standard operators: the same bits, or how many codes differ."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness, Method
from qgraph.model import Model, load
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.lowered_operators import LowerIntegerOperators, SumForm

pytestmark = pytest.mark.sums

SEEDS = range(12)
SEED_OF_COLUMNS = 0
STANDARD = {
    "Add", "Cast", "Conv", "ConvInteger", "DequantizeLinear", "Gemm", "GlobalAveragePool", "MatMul",
    "MatMulInteger", "Mul", "QuantizeLinear", "ReduceSum", "Reshape", "Sub",
}  # fmt: skip


def lowered(model: ir.Model, **options: Any) -> tuple[Model, Report]:
    """Return a copy after the pass, checked, and the report; the second run changes nothing."""
    found = load(model.clone())
    report = found.apply(LowerIntegerOperators(**options))
    onnx.checker.check_model(ir.to_proto(found.ir), full_check=True)
    again = found.clone().apply(LowerIntegerOperators(**options))
    assert again.count(SiteStatus.CHANGED) == 0
    return found, report


def names(model: Model) -> list[str]:
    return [node.op_type for node in model.ir.graph]


def only(report: Report) -> SiteReport:
    (site,) = report
    return site


@pytest.mark.cases(fast=2, slow=7)
@pytest.mark.runtime
def test_the_exact_form_has_the_bits_of_the_operator(case, ort, operator_name, scales):
    for seed in SEEDS:
        made = case(operator_name, seed, scales)
        model, report = lowered(made.model)
        site = only(report)
        assert site.outcome is SiteStatus.CHANGED, site.reason
        assert site.verdict.exactness is Exactness.BITS
        assert set(names(model)) <= STANDARD
        assert "com.microsoft" not in model.ir.opset_imports
        expected = ort(made.model, made.feeds)
        np.testing.assert_array_equal(ort(model.ir, made.feeds), expected)
        np.testing.assert_array_equal(model.run(made.feeds, backend="numpy")["y"], expected)


@pytest.mark.cases(fast=1, slow=7)
@pytest.mark.runtime
def test_the_form_with_real_numbers_is_what_its_report_says(case, ort, operator_name, scales):
    proved = near = 0
    for seed in SEEDS:
        made = case(operator_name, seed, scales)
        model, report = lowered(made.model, form=SumForm.QDQ, exact=Exactness.NEAR)
        site = only(report)
        assert site.outcome is SiteStatus.CHANGED, site.reason
        expected, found = ort(made.model, made.feeds), ort(model.ir, made.feeds)
        if site.verdict.exactness is Exactness.BITS:
            proved += 1
            np.testing.assert_array_equal(found, expected)
        else:
            near += 1
            assert "differ" in site.verdict.reason or "not proved" in site.verdict.reason
            gap = np.abs(found.astype(np.float64) - expected.astype(np.float64))
            assert gap.max(initial=0) <= 1
    if operator_name in ("ConvInteger", "MatMulInteger"):
        assert proved == len(SEEDS)
    if scales == "any" and operator_name in ("QLinearConv", "QLinearMatMul"):
        assert near == len(SEEDS)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("name", ["QLinearConv", "QLinearMatMul"])
def test_powers_of_two_prove_the_form_with_real_numbers(case, name):
    for seed in SEEDS:
        site = only(lowered(case(name, seed, "powers").model, form="qdq")[1])
        assert site.outcome is SiteStatus.CHANGED
        assert (site.verdict.exactness, site.verdict.method) == (Exactness.BITS, Method.EXHAUSTIVE)


def test_what_is_not_proved_is_refused_unless_it_is_allowed(case):
    made = case("QLinearMatMul", 0)
    model, report = lowered(made.model, form="qdq")
    site = only(report)
    assert (site.outcome, names(model)) == (SiteStatus.REFUSED, ["QLinearMatMul"])
    assert "no powers of two" in site.reason
    assert site.reason.endswith("accept it with exact=near")
    assert site.verdict.exactness is Exactness.NEAR


@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
def test_all_pairs_of_codes_are_compared_for_sums_and_products(case, ort, name):
    pytest.importorskip("onnxruntime")
    counted = 0
    for seed in range(4):
        made = case(name, seed, "hundredths")
        every = np.arange(256).astype(np.uint8).view(made.feeds["i0"].dtype)
        feeds = {"i0": np.repeat(every, 256)[None], "i3": np.tile(every, 256)[None]}
        for value in (*made.model.graph.inputs, *made.model.graph.outputs):
            value.shape = ir.Shape([1, 65536])
        model, report = lowered(made.model, form="qdq", exact=Exactness.NEAR)
        differing = int((ort(model.ir, feeds) != ort(made.model, feeds)).sum())
        assert only(report).verdict.differing_inputs == differing
        counted += differing
    assert counted > 0


def test_a_sum_that_float64_rounds_twice_is_counted():
    """130 r is 2**-25 + 2**-55, so that the exact sum with a half lies above the middle of floats.

    float64 drops 2**-55, and the middle is rounded to one half, which is rounded to code 0.
    """
    r = 16519105 * 2.0**-56
    assert 130 * 16519105 == 2**31 + 2
    made = load(
        ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["": 19, "com.microsoft": 1]>
        g (uint8[N] a, uint8[N] b) => (uint8[N] y)
        <float r = {{{r!r}}}, uint8 z = {{0}}, float half = {{0.5}}, float one = {{1}}> {{
            y = com.microsoft.QLinearAdd (a, r, z, b, half, z, one, z) }}""")
    )
    site = only(lowered(made.ir)[1])
    assert (site.outcome, site.verdict.exactness) == (SiteStatus.REFUSED, Exactness.NEAR)
    model, report = lowered(made.ir, exact="near")
    feeds = {"a": np.array([130, 131], np.uint8), "b": np.array([1, 1], np.uint8)}
    assert made.run(feeds, backend="numpy")["y"].tolist() == [1, 1]
    assert model.run(feeds, backend="numpy")["y"].tolist() == [0, 1]
    assert only(report).verdict.differing_inputs == 1


def test_the_option_that_a_refused_softmax_names_writes_it():
    made = load(
        ir.from_onnx_text("""<ir_version: 8, opset_import: ["": 19, "com.microsoft": 1]>
        g (uint8[2,8] x) => (uint8[2,8] y) <float s = {0.1}, uint8 z = {10},
        float t = {0.00390625}, uint8 e = {0}> {
            y = com.microsoft.QLinearSoftmax <axis = 1, opset = 13> (x, s, z, t, e) }""")
    )
    refused = only(made.clone().apply(LowerIntegerOperators(exact="near")))
    assert "lower-integer-operators{form=qdq,exact=near}" in refused.reason
    made.apply(LowerIntegerOperators(form="qdq", exact="near"))
    assert names(made) == ["DequantizeLinear", "Softmax", "QuantizeLinear"]


def matmul(node_case, k: int, *, fed: tuple[int, ...] = (0,), name: str = "MatMulInteger") -> Any:
    random = np.random.default_rng(k)
    a = random.integers(0, 256, (2, k)).astype(np.uint8)
    b = random.integers(-128, 128, (k, 3)).astype(np.int8)
    if name == "MatMulInteger":
        return node_case(name, [a, b], fed, (2, 3), "INT32")
    one, zero = np.float32(0.01), np.uint8(7)
    arrays = [a, one, zero, b, one, np.int8(0), np.float32(5), zero]
    return node_case(name, arrays, fed, (2, 3), "UINT8")


@pytest.mark.parametrize(
    ("k", "fed", "kind"),
    [
        # float32 holds sums below 2**24 = 514.01 * 255 * 128
        (514, (0, 1), "FLOAT"),
        (515, (0, 1), "DOUBLE"),
        # known weights are small enough on the average
        (515, (0,), "FLOAT"),
        (70000, (0,), "DOUBLE"),
    ],
)
def test_the_type_of_the_sums_follows_from_their_bound(node_case, k, fed, kind):
    made = matmul(node_case, k, fed=fed)
    model, report = lowered(made.model)
    assert names(model) == ["Cast", "Cast", "MatMul", "Cast"]
    casts = [node.attributes["to"].as_int() for node in model.ir.graph if node.op_type == "Cast"]
    assert casts[:2] == [ir.DataType[kind].value] * 2
    assert f"are exact in {kind.lower()}" in only(report).verdict.reason
    a = made.feeds["i0"].astype(np.int64)
    known = made.model.graph.initializers.get("i1")
    b = made.feeds["i1"] if known is None else known.const_value.numpy()
    y = model.run(made.feeds, backend="numpy")["y"]
    np.testing.assert_array_equal(y, a @ b.astype(np.int64))


def test_larger_sums_stay_in_the_operator_that_has_them(node_case, ort):
    model, report = lowered(matmul(node_case, 70000, fed=(0, 1)).model)
    site = only(report)
    assert (site.outcome, names(model)) == (SiteStatus.KEPT, ["MatMulInteger"])
    assert f"may reach {70000 * 255 * 128}" in site.reason
    made = matmul(node_case, 70000, fed=(0, 3), name="QLinearMatMul")
    model, report = lowered(made.model)
    assert names(model) == ["MatMulInteger", "Cast", "Mul", "QuantizeLinear"]
    pytest.importorskip("onnxruntime")
    np.testing.assert_array_equal(ort(model.ir, made.feeds), ort(made.model, made.feeds))


def test_an_unknown_depth_keeps_the_operator(node_case):
    made = matmul(node_case, 20, fed=(0, 3), name="QLinearMatMul")
    for value in made.model.graph.inputs:
        value.shape = ir.Shape(["m", "k"]) if value.name == "i0" else ir.Shape(["k", 3])
    model, report = lowered(made.model)
    assert names(model)[0] == "MatMulInteger"
    assert only(report).verdict.reason == "MatMulInteger keeps the sums"


@pytest.mark.runtime
def test_a_big_convolution_keeps_its_sums_and_its_bias(node_case, ort):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (1, 300, 3, 3)).astype(np.uint8)
    w = random.choice(np.uint8([0, 255]), (2, 300, 3, 3))
    bias = random.integers(-(2**25), 2**25, 2).astype(np.int32)
    small, zero = np.float32(0.01), np.uint8(9)
    arrays = [x, small, zero, w, small * np.ones(2, np.float32), np.uint8(128)]
    arrays += [np.float32(30), zero, bias]
    made = node_case("QLinearConv", arrays, (0,), (1, 2, 1, 1), "UINT8")
    model, _ = lowered(made.model)
    expected = ["ConvInteger", "Reshape", "Add", "Cast", "Mul", "QuantizeLinear"]
    assert names(model) == expected
    np.testing.assert_array_equal(ort(model.ir, made.feeds), ort(made.model, made.feeds))


@pytest.mark.runtime
def test_scales_may_be_known_at_run_time(node_case, ort):
    random = np.random.default_rng(0)
    a = random.integers(0, 256, (2, 9)).astype(np.uint8)
    b = random.integers(-64, 65, (9, 3)).astype(np.int8)
    arrays = [a, np.array(0.013, np.float32), np.array(3, np.uint8), b]
    arrays += [np.float32([0.1, 0.2, 0.3]), np.zeros(3, np.int8)]
    arrays += [np.array(0.7, np.float32), np.array(40, np.uint8)]
    made = node_case("QLinearMatMul", arrays, (0, 1, 2, 6, 7), (2, 3), "UINT8")
    for form in SumForm:
        model, _ = lowered(made.model, form=form, exact=Exactness.NEAR)
        assert "QLinearMatMul" not in names(model)
        np.testing.assert_array_equal(ort(model.ir, made.feeds), ort(made.model, made.feeds))


@pytest.mark.parametrize(
    ("name", "place", "shape", "reason"),
    [
        ("QLinearMatMul", 4, None, "scale 'i4' is not constant"),
        ("QLinearAdd", 6, None, "parameter 'i6' is not constant"),
        ("QLinearGlobalAveragePool", 0, ["n", 3, "h", "w"], "it sums over"),
        ("QLinearGlobalAveragePool", 0, None, "shape of its input is unknown"),
    ],
)
def test_what_is_not_known_is_refused_with_a_reason(case, name, place, shape, reason):
    made = case(name, 1)
    value = made.model.graph.initializers.pop(f"i{place}", None)
    if value is not None:
        value.const_value = None
        made.model.graph.inputs.append(value)
    value = next(v for v in made.model.graph.inputs if v.name == f"i{place}")
    value.shape = None if shape is None else ir.Shape(shape)
    found = load(made.model)
    before = ir.to_onnx_text(found.ir)
    site = only(found.apply(LowerIntegerOperators()))
    assert site.outcome is SiteStatus.REFUSED
    assert reason in site.reason
    assert ir.to_onnx_text(found.ir) == before


NESTED = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1, "local": 1]>
    g (uint8[2, 3] a, bool c) => (int32[2, 2] y)
    <int8[3, 2] b = {1, -2, 3, -4, 5, -6}, uint8 z = {3}> {
        y = If (c) <
            then_branch = yes () => (int32[2, 2] u) { u = MatMulInteger (a, b, z) },
            else_branch = no () => (int32[2, 2] v) { v = local.product (a, b) }>
    }
    <domain: "local", opset_import: ["": 17]>
    product (p, q) => (r) {
        s = Cast <to = 3> (q)
        t = Constant <value = uint8 {7}> ()
        r = MatMulInteger (p, q, t)
    }"""


def test_subgraphs_are_lowered_and_functions_without_types_are_refused():
    found = load(ir.from_onnx_text(NESTED))
    a = np.array([[1, 2, 3], [250, 4, 0]], np.uint8)
    expected = [found.run({"a": a, "c": np.array(c)}, backend="numpy")["y"] for c in (True, False)]
    report = found.apply(LowerIntegerOperators())
    outcomes = {site.outcome for site in report}
    assert outcomes == {SiteStatus.CHANGED, SiteStatus.REFUSED}
    (refused,) = [site for site in report if site.outcome is SiteStatus.REFUSED]
    assert "the codes 'p' are of type unknown" in refused.reason
    for c, y in zip((True, False), expected, strict=True):
        again = found.run({"a": a, "c": np.array(c)}, backend="numpy")["y"]
        np.testing.assert_array_equal(again, y)


def test_a_dynamically_quantized_product_keeps_its_scale_at_run_time():
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (float[4, 3] x) => (float[4, 2] y)
        <int8[3, 2] w = {1, -128, 127, 5, 0, 77}, float s = {0.02}, uint8[4, 3] q, uint8 z> {
            q, d, z = DynamicQuantizeLinear (x)
            i = MatMulInteger (q, w, z)
            f = Cast <to = 1> (i)
            p = Mul (d, s)
            y = Mul (f, p)
        }"""
    model = ir.from_onnx_text(text)
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    expected = load(model.clone()).run({"x": x}, backend="numpy")["y"]
    found, report = lowered(model)
    assert only(report).outcome is SiteStatus.CHANGED
    assert "MatMulInteger" not in names(found)
    np.testing.assert_array_equal(found.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("name", "form", "opset"),
    [
        ("QLinearConv", "exact", 10),
        ("QLinearConv", "qdq", 13),
        ("QLinearMatMul", "exact", 10),
        ("QLinearAdd", "exact", 10),
        ("QLinearAdd", "qdq", 10),
        ("QLinearGlobalAveragePool", "exact", 13),
        ("QLinearGlobalAveragePool", "qdq", 10),
    ],
)
def test_the_opset_rises_as_far_as_the_form_needs(case, ort, tmp_path, name, form, opset):
    made = case(name, 0)
    made.model.graph.opset_imports[""] = 10
    made.model.ir_version = 5
    y = made.model.graph.outputs[0]
    y.metadata_props["origin"] = "here"
    model, report = lowered(made.model, form=form, exact=Exactness.NEAR)
    assert only(report).outcome is SiteStatus.CHANGED
    assert model.ir.opset_imports == {"": opset}
    assert report.notes == ([] if opset == 10 else [f"opset raised from 10 to {opset}"])
    (after,) = model.ir.graph.outputs
    assert (after.name, after.metadata_props["origin"]) == ("y", "here")
    assert (after.dtype, list(after.shape)) == (y.dtype, list(y.shape))
    model.save(tmp_path / "m.onnx")
    expected = ort(made.model, made.feeds)
    if form == "exact":
        np.testing.assert_array_equal(ort(model.ir, made.feeds), expected)
    again = load(tmp_path / "m.onnx").run(made.feeds, backend="ort")["y"]
    np.testing.assert_array_equal(again, ort(model.ir, made.feeds))


def test_initializers_that_can_be_fed_are_not_constant(case):
    made = case("QLinearMatMul", SEED_OF_COLUMNS)
    scale = made.model.graph.initializers["i4"]
    assert scale.const_value.size > 1
    made.model.graph.inputs.append(scale)
    found = load(made.model)
    (site,) = found.clone().apply(LowerIntegerOperators(), keep_inputs=True)
    assert "'i4' is not constant" in site.reason
    (site,) = found.apply(LowerIntegerOperators())
    assert site.outcome is SiteStatus.CHANGED


@pytest.mark.parametrize("form", list(SumForm))
def test_results_in_minifloats_are_refused(case, form):
    made = case("QLinearMatMul", 0)
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    value = made.model.graph.initializers["i7"]
    value.const_value = ir.tensor(zero, name="i7")
    value.dtype = made.model.graph.outputs[0].dtype = ir.DataType.FLOAT8E4M3FN
    site = only(lowered(made.model, form=form)[1])
    assert "of type FLOAT8E4M3FN, expected int8 or uint8" in site.reason


def test_rows_may_have_scales_of_their_own(node_case):
    random = np.random.default_rng(0)
    a = random.integers(0, 256, (3, 9)).astype(np.uint8)
    b = random.integers(-128, 128, (9, 4)).astype(np.int8)
    s_a, z_a = np.float32([0.1, 0.2, 0.3]), np.uint8([1, 2, 3])
    s_b, z_b = np.float32([0.1, 0.2, 0.3, 0.4]), np.int8([0, 1, 2, 3])
    s_y, z_y = np.float32([3, 7, 11]), np.uint8(100)
    arrays = [a, s_a, z_a, b, s_b, z_b, s_y, z_y]
    made = node_case("QLinearMatMul", arrays, (0,), (3, 4), "UINT8")
    acc = (a.astype(int) - z_a[:, None].astype(int)) @ (b.astype(int) - z_b.astype(int))
    m = s_a[:, None] * s_b / s_y[:, None]
    expected = np.clip(np.rint(acc.astype(np.float32) * m) + 100, 0, 255)
    model, _ = lowered(made.model)
    np.testing.assert_array_equal(model.run(made.feeds, backend="numpy")["y"], expected)
    np.testing.assert_array_equal(load(made.model).run(made.feeds, backend="numpy")["y"], expected)
    site = only(lowered(made.model, form="qdq", exact=Exactness.NEAR)[1])
    assert "the scale of the result differs by rows" in site.reason
    made = node_case("QLinearMatMul", [*arrays[:6], s_y[0], z_y], (0,), (3, 4), "UINT8")
    model, _ = lowered(made.model, form="qdq", exact=Exactness.NEAR)
    axes = [n.attributes["axis"].as_int() for n in model.ir.graph if n.op_type[0] == "D"]
    assert axes == [0, 1]
    found = model.run(made.feeds, backend="numpy")["y"].astype(int)
    m = s_a[:, None] * s_b / s_y[0]
    assert np.abs(found - np.clip(np.rint(acc * m) + 100, 0, 255)).max() <= 1


def test_attributes_of_the_caller_are_refused():
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1, "local": 1]>
        g (uint8[2, 3] a) => (uint8[2, 4] y) { y = local.product <turn = 1> (a) }
        <domain: "local", opset_import: ["": 17, "com.microsoft": 1]>
        product <turn> (p) => (r) {
            b = Constant <value = int8[4, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> ()
            s = Constant <value = float {0.5}> ()
            z = Constant <value = uint8 {3}> ()
            n = Constant <value = int8 {0}> ()
            r = com.microsoft.QGemm <transB: int = @turn> (p, s, z, b, s, n, , s, z)
        }"""
    site = only(load(ir.from_onnx_text(text)).apply(LowerIntegerOperators()))
    assert "an attribute is left to the caller of the function" in site.reason


def test_types_and_shapes_are_inferred_also_behind_lowered_operators() -> None:
    """Exporters leave them out: of codes quantized at run time, and after com.microsoft."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[2, 3, 4, 4] x) => (float[2, 3, 1, 1] y, int32[2, 3, 4, 5] t) <
            int8[4, 5] w = {1,-2,3,4,5,6,-7,8,9,10,11,12,13,-14,15,16,17,-18,19,20},
            float s = {0.05}, float u = {0.03}, uint8 z = {3}
        > {
            q, sq, zq = DynamicQuantizeLinear (x)
            t = MatMulInteger (q, w, zq)
            p = QuantizeLinear (x, s, z)
            a = com.microsoft.QLinearAdd (p, s, z, p, s, z, u, z)
            g = com.microsoft.QLinearGlobalAveragePool (a, u, z, s, z)
            y = DequantizeLinear (g, s, z)
        }"""
    )
    found, report = lowered(model)
    assert [site.outcome for site in report] == [SiteStatus.CHANGED] * 3
    assert {site.op for site in report} == {
        "MatMulInteger", "com.microsoft::QLinearAdd", "com.microsoft::QLinearGlobalAveragePool"
    }  # fmt: skip
    x = np.random.default_rng(0).normal(0, 3, (2, 3, 4, 4)).astype(np.float32)
    expected = load(model).run({"x": x}, backend="numpy")
    outputs = found.run({"x": x}, backend="numpy")
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value)


def test_operators_on_codes_without_a_standard_form_are_named() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
        g (uint8[4] x) => (uint8[1] y) <float s = {0.05}, uint8 z = {3}> {
            y = com.microsoft.QLinearReduceMean <axes = [0], keepdims = 1> (x, s, z, s, z)
        }"""
    )
    site = only(load(model).apply(LowerIntegerOperators()))
    assert site.outcome is SiteStatus.REFUSED
    assert "no form of QLinearReduceMean in standard operators" in site.reason


def test_a_bias_counts_for_the_type_of_the_sums_also_where_real_numbers_come_out() -> None:
    """float32 has no odd numbers above 2**24, so sums with a large bias need a wider type."""
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
        g (uint8[256, 1] a) => (float[256, 2] y) <int8[1, 2] b = {4, 4}, float s = {1},
            uint8 z = {0}, int8 n = {0}, int32[2] c = {1073741825, 1073741889}> {
            y = com.microsoft.QGemm (a, s, z, b, s, n, c)
        }"""
    )
    found, report = lowered(model)
    assert only(report).verdict.exactness is Exactness.BITS
    a = np.arange(256).astype(np.uint8)[:, None]
    exact = 4 * a.astype(np.int64) + np.array([1073741825, 1073741889])
    y = found.run({"a": a}, backend="numpy")["y"]
    np.testing.assert_array_equal(y, exact.astype(np.float32))

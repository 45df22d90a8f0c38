"""Operators on decoded codes in the forms of kernels; what runtimes compute stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.comparison.prove import prove
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.canonical_operators import CanonicalForm, CanonicalOperators

ANY = Exactness.DIFFERENT
F = np.float32
Q, DQ = "QuantizeLinear", "DequantizeLinear"


def graph(nodes: str, *, opset: int = 17, data: str = "2, 3, 4, 4") -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{data}] x) => (float[n, m] y)
        <float s = {{0.1}}, uint8 z = {{3}}, int8[3, 2] k = {{1, 2, -3, 4, 5, 127}}, int8 e = {{0}},
         float[1, 2] b = {{0.5, -2}}, int8[2] u = {{7, -9}}, int64[2] a = {{-1, -2}},
         int64[2] r = {{2, 3}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            w = DequantizeLinear (k, s, e)
            {nodes}
        }}"""


HEADS = "p = Reshape (v, h) t = Transpose <perm = [1, 0, 2]> (p)"


@pytest.mark.parametrize("factor", ["y = Div (t, s)", "y = Mul (s, t)", "y = Mul (t, j)"])
@pytest.mark.parametrize("product", ["v = MatMul (d, w)", "m = MatMul (d, w) v = Add (b, m)"])
def test_a_factor_goes_before_what_moves_data(check_pass, factor, product):
    text = graph(f"{product} {HEADS} {factor}", data="5, 3").replace("[n, m] y", "[k, n, m] y")
    text = text.replace("int64[2] r", "float[1] j = {0.1}, int64[3] h = {5, 2, 1}, int64[2] r")
    step = CanonicalOperators(forms=CanonicalForm.FACTORS)
    added = ["Add"] if "Add" in product else []
    ops = [Q, DQ, DQ, "MatMul", *added, factor[4:7], "Reshape", "Transpose"]
    check_pass(step, text, ops=ops, exactly=Exactness.BITS)


OTHER_FACTORS = {
    "one for each element": "v = MatMul (d, w) p = Reshape (v, h) y = Mul (p, b)",
    "a quotient": "v = MatMul (d, w) p = Reshape (v, h) y = Div (s, p)",
    "no layer before": "v = Sqrt (d) p = Reshape (v, h) y = Mul (p, s)",
    "another use": "v = MatMul (d, w) p = Reshape (v, h) o = Mul (p, s) y = Add (o, p)",
    "of data": "v = MatMul (d, w) p = Reshape (v, h) y = Mul (p, p)",
}


@pytest.mark.parametrize("name", OTHER_FACTORS)
def test_other_factors_stay(name):
    text = graph(OTHER_FACTORS[name], data="5, 3")
    model = load(ir.from_onnx_text(text.replace("int64[2] r", "int64[2] h = {-1, 1}, int64[2] r")))
    assert not model.apply(CanonicalOperators(forms=CanonicalForm.FACTORS)).modified


MEAN = "m = ReduceMean <axes = [2, 3], keepdims = 0> (d) y = MatMul (m, w)"
FORMS = {
    "gemm": (graph("m = MatMul (d, w) y = Add (b, m)", data="5, 3"), [Q, DQ, DQ, "Gemm"]),
    "gemm with codes as bias": (
        graph("c = DequantizeLinear (u, s, e) m = MatMul (d, w) y = Add (m, c)", data="5, 3"),
        [Q, DQ, DQ, DQ, "Gemm"],
    ),
    "mean": (graph(MEAN), [Q, DQ, DQ, "GlobalAveragePool", "Reshape", "MatMul"]),
    "mean of axes as an operand": (
        graph("i = ReduceMean (d, a) m = Reshape (i, r) y = MatMul (m, w)", opset=21),
        [Q, DQ, DQ, "GlobalAveragePool", "Reshape", "MatMul"],
    ),
    "window over all": (
        graph("p = AveragePool <kernel_shape = [4, 4]> (d) m = Reshape (p, r) y = MatMul (m, w)"),
        [Q, DQ, DQ, "GlobalAveragePool", "Reshape", "MatMul"],
    ),
    "flatten": (
        graph("p = GlobalAveragePool (d) t = Flatten (p) y = MatMul (t, w)"),
        [Q, DQ, DQ, "GlobalAveragePool", "Reshape", "MatMul"],
    ),
}


@pytest.mark.runtime
@pytest.mark.parametrize("name", FORMS)
def test_runtimes_compute_the_same(check_pass, name):
    runtime = pytest.importorskip("onnxruntime")
    text, ops = FORMS[name]
    model = load(ir.from_onnx_text(text))
    shape = tuple(model.inputs[0].shape)
    x = {"x": np.random.default_rng(0).normal(size=shape).astype(F) * 9}
    model, report = check_pass(CanonicalOperators(), text, ops=ops, exactly=ANY, inputs=x)
    assert report.count(SiteStatus.CHANGED) == 1
    results = []
    for each in (load(ir.from_onnx_text(text)), model):
        session = runtime.InferenceSession(
            each.to_proto().SerializeToString(), providers=["CPUExecutionProvider"]
        )
        results.append(session.run(["y"], x)[0])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-4)


def test_zero_points_are_written_where_runtimes_load_them(check_pass):
    text = graph("v = DequantizeLinear (k, s) y = MatMul (d, v)", data="5, 3").replace(
        "w = DequantizeLinear (k, s, e)", ""
    )
    step = CanonicalOperators(forms=CanonicalForm.POINTS)
    model, report = check_pass(step, text, exactly=Exactness.BITS)
    assert report.count(SiteStatus.CHANGED) == 1
    assert all(len(node.inputs) == 3 for node in model.nodes(Q, DQ))
    moved = text.replace("y = MatMul (d, v)", "t = Transpose (v) y = MatMul (t, v)")
    model = load(ir.from_onnx_text(moved.replace("17]", "21]").replace("5, 3", "3, 5")))
    assert not model.apply(step).modified


LISTED = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 3, 4, 4] x) => (float[N, 3, 3, 3] y) <float[1] s = {0.1}, uint8[1] z = {3}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        p = AveragePool <kernel_shape = [2, 2]> (d)
        r = QuantizeLinear (p, s, z)
        y = DequantizeLinear (r, s, z)
    }"""


@pytest.mark.runtime
def test_scales_beside_an_average_pool_become_scalars(check_pass):
    runtime = pytest.importorskip("onnxruntime")
    step = CanonicalOperators(forms=CanonicalForm.SCALARS)
    model, report = check_pass(step, LISTED, exactly=Exactness.BITS)
    assert report.count(SiteStatus.CHANGED) == 4
    before = load(ir.from_onnx_text(LISTED)).to_proto().SerializeToString()
    with pytest.raises(Exception, match="must be a scalar"):
        runtime.InferenceSession(before, providers=["CPUExecutionProvider"])
    after = model.to_proto().SerializeToString()
    runtime.InferenceSession(after, providers=["CPUExecutionProvider"])
    proof = prove(load(ir.from_onnx_text(LISTED)), model)
    assert proof.verdict is ProofVerdict.PROVED


def test_without_an_average_pool_scales_keep_their_shape():
    model = load(ir.from_onnx_text(LISTED.replace("AveragePool", "MaxPool")))
    assert not model.apply(CanonicalOperators(forms=CanonicalForm.SCALARS)).modified


@pytest.mark.runtime
@pytest.mark.parametrize("bias", ["b", "c"])
def test_factors_of_gemm_go_into_its_constants(check_pass, bias):
    runtime = pytest.importorskip("onnxruntime")
    text = graph(
        f"""c = DequantizeLinear (u, s)
            y = Gemm <alpha = 0.3, beta = 0.7> (d, w, {bias})""",
        data="5, 3",
    )
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(F) * 9
    model, _ = check_pass(CanonicalOperators(), text, exactly=ANY, inputs={"x": x})
    (gemm,) = model.nodes("Gemm")
    assert not gemm.attributes
    before = load(ir.from_onnx_text(text)).to_proto().SerializeToString()
    results = [
        runtime.InferenceSession(each, providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
        for each in (before, model.to_proto().SerializeToString())
    ]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


KEPT = (
    graph("y = Gemm <alpha = 1e-40> (d, w, b)", data="5, 3"),
    graph("c = Abs (b) y = Gemm <beta = 0.5> (d, w, c)", data="5, 3"),
    graph("y = Gemm <alpha = 0.5> (x, w)", data="5, 3"),
    graph("y = AveragePool <kernel_shape = [4, 4], pads = [1, 1, 1, 1]> (d)"),
    graph("y = AveragePool <kernel_shape = [2, 4]> (d)"),
    graph("m = MatMul (d, w) c = Abs (b) y = Add (c, m)", data="5, 3"),
    graph("m = MatMul (x, w) y = Add (m, b)", data="5, 3"),
    graph(MEAN.replace("[2, 3]", "[1, 2]").replace("MatMul (m, w)", "Neg (m)")),
    graph("m = Flatten <axis = 0> (d) y = Neg (m)"),
)


@pytest.mark.parametrize("text", KEPT)
def test_other_forms_stay(text):
    assert not load(ir.from_onnx_text(text)).apply(CanonicalOperators()).modified


def stem(*, channels: int = 3, zero: int = 0) -> str:
    weights = ", ".join(str(5 * n % 13 - 6) for n in range(4 * channels))
    return f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, {channels}, 5, 5] x) => (float[1, 2, n, m] y)
        <float s = {{0.1}}, uint8 z = {{3}}, int8[2, {channels}, 1, 2] k = {{{weights}}},
         float[2] r = {{0.5, 0.25}}, int8[2] e = {{0, {zero}}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            w = DequantizeLinear <axis = 0> (k, r, e)
            c = Conv <pads = [0, 1, 0, 0]> (d, w)
            p = QuantizeLinear (c, s, z)
            y = DequantizeLinear (p, s, z)
        }}"""


COLOURS = CanonicalOperators(forms=CanonicalForm.CHANNELS)


@pytest.mark.runtime
def test_colours_get_a_fourth_channel_of_zeros(check_pass):
    runtime = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).normal(size=(1, 3, 5, 5)).astype(F) * 9
    ops = [Q, "Pad", DQ, DQ, "Conv", Q, DQ]
    model, _ = check_pass(COLOURS, stem(), ops=ops, exactly=ANY, inputs={"x": x})
    before = load(ir.from_onnx_text(stem()))
    results = [
        runtime.InferenceSession(
            each.to_proto().SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(["y"], {"x": x})[0]
        for each in (before, model)
    ]
    np.testing.assert_array_equal(*results)
    regions = prove(before, model, within="1step").regions
    (bound,) = [region.bound for region in regions if region.bound]
    assert bound.ideal_shift < 1e-9 < bound.deviation_steps < 0.01
    (conv,) = model.nodes("Conv")
    codes = conv.inputs[1].producer().inputs[0]
    codes.const_value = ir.tensor(np.where(codes.const_value.numpy() == 0, 1, 0).astype(np.int8))
    changed = prove(before, model, within="9step")
    assert changed.verdict not in (ProofVerdict.PROVED, ProofVerdict.BOUNDED)


GROUPS = stem().replace("[1, 3, 5", "[1, 6, 5").replace("pads", "group = 2, pads")


ALONG = "float[3] r = {0.5, 0.25, 1}, int8[3] e = {0, 0, 0}"
BLOCKS = "float[2, 1, 1, 2] r = {0.5, 0.25, 1, 2}, int8[2, 1, 1, 2] e = {0, 0, 0, 0}"


@pytest.mark.parametrize(
    ("text", "axis", "scales"),
    [
        (stem(channels=4), "axis = 0", None),
        (stem(zero=1), "axis = 0", None),
        (GROUPS, "axis = 0", None),
        (stem(), "axis = 1", ALONG),
        (stem(), "axis = 1, block_size = 3", BLOCKS),
        (stem(), "axis = 0", "float[2] r = {0.5, inf}, int8[2] e = {0, 0}"),
        (stem(), "axis = 0", "float r = {inf}, int8 e = {0}"),
    ],
)
def test_other_channels_stay(text, axis, scales):
    text = text.replace("axis = 0", axis).replace('["": 17]', '["": 21]')
    if scales is not None:
        text = text.replace("float[2] r = {0.5, 0.25}, int8[2] e = {0, 0}", scales)
        assert scales in text
    assert not load(ir.from_onnx_text(text)).apply(COLOURS).modified

"""The scale of a quantizer goes into the weights before it; with powers of two nothing changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.fuse_output_scale import FuseOutputScale
from qgraph.transforms.simpler_ranges import SplitFakeQuantize
from qgraph.transforms.tune_ranges import TunedScales, TuneRanges

pytestmark = pytest.mark.sums

F = np.float32
IMPORTS = '"": 13, "org.openvinotoolkit": 1'
UNSIGNED = "float il = {0}, float ih = {15.9375}, float ol = {0}, float oh = {255}"
"""Scale 1/16."""
SIGNED = "float il = {-8}, float ih = {7.9375}, float ol = {-128}, float oh = {127}"
INEXACT = "float il = {0}, float ih = {12.75}, float ol = {0}, float oh = {255}"
"""Scale 0.05."""


def listed(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(size=shape).astype(F).ravel()
    return ", ".join(f"{value:.9g}" for value in values)


def graph(
    body: str,
    constants: str,
    ranges: str = UNSIGNED,
    data: str = "2, 3, 5, 5",
    *,
    step: float | None = 0.05,
) -> str:
    """A graph that computes codes from floats ``x``, or from codes with a step."""
    rank = 2 if "Flatten" in body else data.count(",") + 1
    result = ", ".join("NCHW"[:rank])
    outputs = f"float[{result}] y" + (f", float[{result}] z" if " z = " in body else "")
    decode = "" if step is None else "x = DequantizeLinear (i, step)"
    source = f"float[{data}] x" if step is None else f"int8[{data}] i"
    more = "" if step is None else f", float step = {{{step}}}"
    return f"""<ir_version: 8, opset_import: [{IMPORTS}]>
        g ({source}) => ({outputs}) <{constants}, {ranges}{more}> {{
            {decode}
            {body}
            [node] y = org.openvinotoolkit.FakeQuantize <levels = 256> (v, il, ih, ol, oh)
        }}"""


CONV = f"float[4, 3, 3, 3] w = {{{listed(4, 3, 3, 3)}}}, float[4] b = {{{listed(4, seed=1)}}}"
LINEAR = f"float[3, 4] w = {{{listed(3, 4)}}}, float[4] b = {{{listed(4, seed=1)}}}"
NORM = (
    "float[4] ga = {1, 2, -0.3, 0.7}, float[4] be = {0.1, 0, 3, -1}, "
    "float[4] mu = {0, 1, 0.5, -2}, float[4] va = {1, 4, 0.7, 2}"
)
COLUMNS = (
    "float[4] il = {0, 0, 0, 0}, float[4] ih = {15.9375, 31.875, 255, 3.984375}, "
    "float ol = {0}, float oh = {255}"
)


def single(report):
    (entry,) = report.sites
    return entry


def data_for(text: str, *, seed: int = 3) -> dict[str, np.ndarray]:
    model = load(ir.from_onnx_text(text))
    random = np.random.default_rng(seed)
    return {
        v.name: random.integers(-128, 128, list(v.shape)).astype(np.int8)
        if v.dtype is ir.DataType.INT8
        else random.normal(size=list(v.shape)).astype(F) * 3
        for v in model.inputs
    }


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize(
    ("body", "constants", "data", "ops"),
    [
        ("v = Conv (x, w, b)", CONV, "2, 3, 5, 5", ["Conv", "Round", "Clip"]),
        ("v = Conv (x, w)", CONV, "2, 3, 5, 5", ["Conv", "Round", "Clip"]),
        (
            "c = Conv (x, w, b)\n r = Relu (c)\n v = MaxPool <kernel_shape = [2, 2]> (r)",
            CONV,
            "2, 3, 5, 5",
            ["Conv", "Relu", "MaxPool", "Round", "Clip"],
        ),
        (
            "c = Conv (x, w, b)\n v = Clip (c, lo, hi)",
            f"{CONV}, float lo = {{0}}, float hi = {{6}}",
            "2, 3, 5, 5",
            ["Conv", "Clip", "Round", "Clip"],
        ),
        (
            "c = Conv (x, w)\n a = Add (c, k)\n v = LeakyRelu <alpha = 0.1> (a)",
            f"{CONV}, float[1, 4, 1, 1] k = {{1, -2, 3, 0.3}}",
            "2, 3, 5, 5",
            ["Conv", "Add", "LeakyRelu", "Round", "Clip"],
        ),
        (
            "c = Conv (x, w, b)\n n = BatchNormalization (c, ga, be, mu, va)\n v = Relu (n)",
            f"{CONV}, {NORM}",
            "2, 3, 5, 5",
            ["Conv", "BatchNormalization", "Relu", "Round", "Clip"],
        ),
        (
            "c = Conv (x, w, b)\n d = Conv (x, u)\n s = Sub (c, d)\n v = Relu (s)",
            f"{CONV}, float[4, 3, 3, 3] u = {{{listed(4, 3, 3, 3, seed=9)}}}",
            "2, 3, 5, 5",
            ["Conv", "Conv", "Sub", "Relu", "Round", "Clip"],
        ),
        (
            "c = Conv (x, w, b)\n m = Mul (k, c)\n v = Div (m, d)",
            f"{CONV}, float k = {{0.7}}, float d = {{0.9}}",
            "2, 3, 5, 5",
            ["Conv", "Mul", "Div", "Round", "Clip"],
        ),
        (
            "c = ConvTranspose <group = 1> (x, w, b)\n f = Flatten (c)\n v = Neg (f)",
            f"float[3, 4, 3, 3] w = {{{listed(3, 4, 3, 3)}}}, float[4] b = {{1, 2, 3, 4}}",
            "2, 3, 5, 5",
            ["ConvTranspose", "Flatten", "Neg", "Round", "Clip"],
        ),
        ("v = MatMul (x, w)", LINEAR, "7, 3", ["MatMul", "Round", "Clip"]),
        (
            "m = MatMul (x, w)\n v = Add (b, m)",
            LINEAR,
            "7, 3",
            ["MatMul", "Add", "Round", "Clip"],
        ),
        ("v = MatMul (w, x)", LINEAR, "4, 7", ["MatMul", "Round", "Clip"]),
        (
            "v = Gemm <alpha = 0.7, beta = 1.3> (x, w, b)",
            LINEAR,
            "7, 3",
            ["Gemm", "Round", "Clip"],
        ),
        (
            "t = Transpose <perm = [1, 0]> (w)\n g = Gemm <transB = 1> (x, t, b)\n v = Relu (g)",
            LINEAR,
            "7, 3",
            ["Gemm", "Relu", "Round", "Clip"],
        ),
    ],
)
def test_powers_of_two_change_nothing(check_pass, body, constants, data, ops):
    text = graph(body, constants, data=data)
    ops = ["DequantizeLinear", *ops]
    _, report = check_pass(FuseOutputScale(), text, ops=ops, inputs=data_for(text))
    entry = single(report)
    assert entry.verdict.exactness is Exactness.VALUES
    assert entry.figures["powers_of_two"] == "true"
    assert "powers of two commute" in entry.reason


def test_the_weights_are_multiplied_by_the_reciprocal_of_the_scale(check_pass):
    text = graph("[first] v = Conv (x, w, b)", CONV)
    model, _ = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    conv = model.ir.graph[1]
    assert (conv.name, conv.outputs[0].name) == ("first", "v")
    before = load(ir.from_onnx_text(text)).ir.graph.initializers
    for value, name in zip(conv.inputs[1:], ("w", "b"), strict=True):
        expected = before[name].const_value.numpy() * F(16)
        np.testing.assert_array_equal(model.constant(value), expected)
    assert {"w", "b", "il", "ih"}.isdisjoint(model.ir.graph.initializers)


def test_signed_codes_need_the_zero_point_only_for_exact_ties(check_pass):
    text = graph("v = Conv (x, w, b)", CONV, SIGNED)
    check_pass(
        FuseOutputScale(),
        text,
        ops=["DequantizeLinear", "Conv", "Add", "Round", "Clip", "Sub"],
        inputs=data_for(text),
    )
    step = FuseOutputScale(exact=Exactness.NEAR)
    ops = ["DequantizeLinear", "Conv", "Round", "Clip"]
    feeds = data_for(text)
    _, report = check_pass(step, text, ops=ops, exactly=Exactness.NEAR, inputs=feeds)
    # the count that is known for x / s against (x + 128 s) / (255 s) * 255
    assert single(report).figures["quantizer_differing_inputs"] == 831
    assert single(report).verdict.exactness is Exactness.NEAR


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    ("il", "ol", "exact", "ops"),
    [
        (-1, 0, Exactness.VALUES, ["Add", "Round", "Clip"]),
        (-1, 0, Exactness.NEAR, ["Round", "Clip", "Sub"]),
        (-1, -128, Exactness.VALUES, ["Add", "Round", "Clip", "Sub"]),
        (0, -128, Exactness.VALUES, ["Round", "Clip", "Sub"]),
    ],
)
def test_other_zero_points_are_added_and_subtracted(check_pass, il, ol, exact, ops):
    ranges = (
        f"float il = {{{il}}}, float ih = {{{il + 15.9375}}}, "
        f"float ol = {{{ol}}}, float oh = {{{ol + 255}}}"
    )
    text = graph("v = Conv (x, w, b)", CONV, ranges)
    step = FuseOutputScale(exact=exact)
    feeds = data_for(text)
    ops = ["DequantizeLinear", "Conv", *ops]
    model, _ = check_pass(step, text, ops=ops, exactly=exact, inputs=feeds)
    before = load(ir.from_onnx_text(text)).run(feeds, backend="numpy")["y"]
    np.testing.assert_array_equal(model.run(feeds, backend="numpy")["y"], before)


def test_other_scales_are_not_proved(check_pass):
    text = graph("c = Conv (x, w, b)\n v = Relu (c)", CONV, INEXACT)
    feeds = data_for(text)
    _, report = check_pass(FuseOutputScale(), text, inputs=feeds)
    entry = single(report)
    assert entry.outcome is SiteStatus.REFUSED
    assert "of the sums before it is not proved; expected values" in entry.reason
    assert entry.reason.endswith("; exact=near accepts that")
    step = FuseOutputScale(exact=Exactness.NEAR)
    ops = ["DequantizeLinear", "Conv", "Relu", "Round", "Clip"]
    model, report = check_pass(step, text, ops=ops, exactly=Exactness.DIFFERENT, inputs=feeds)
    entry = single(report)
    assert entry.verdict.exactness is None
    assert entry.figures["powers_of_two"] == "false"
    before = load(ir.from_onnx_text(text)).run(feeds, backend="numpy")["y"]
    after = model.run(feeds, backend="numpy")["y"]
    assert np.abs(before - after).max() <= 1
    assert (before != after).mean() < 0.01


def test_the_quantizer_alone_is_counted(check_pass):
    text = graph("c = Conv (x, w, b)\n v = Relu (c)", CONV, INEXACT)
    step = FuseOutputScale(exact=Exactness.NEAR)
    feeds = data_for(text)
    _, report = check_pass(step, text, exactly=Exactness.DIFFERENT, inputs=feeds)
    # around each tie, every float, by the formula of FakeQuantize and as a rounded multiple
    ties = (np.arange(255) + 0.5) * 0.05
    x = ties.astype(F).view(np.int32)[:, None] + np.arange(-40, 41, dtype=np.int32)
    x = x.view(F)
    codes = np.clip(np.rint(x / F(12.75) * F(255)), 0, 255)
    rounded = np.clip(np.rint(x * F(1 / (F(12.75).astype(float) / 255))), 0, 255)
    count = np.count_nonzero(codes != rounded)
    assert single(report).figures["quantizer_differing_inputs"] == count > 0


def test_scales_per_channel(check_pass):
    ranges = (
        "float[1, 4, 1, 1] il = {0, 0, 0, 0}, "
        "float[1, 4, 1, 1] ih = {15.9375, 31.875, 255, 3.984375}, float ol = {0}, float oh = {255}"
    )
    for body, constants in (
        ("v = Conv (x, w, b)", CONV),
        ("c = Conv (x, w, b)\n r = Relu (c)\n v = GlobalAveragePool (r)", CONV),
        ("c = Conv (x, w, b)\n v = Add (c, k)", f"{CONV}, float k = {{0.3}}"),
        (
            "v = ConvTranspose (x, w, b)",
            f"float[3, 4, 3, 3] w = {{{listed(3, 4, 3, 3)}}}, float[4] b = {{1, 2, 3, 4}}",
        ),
        (
            "v = BatchNormalization (x, ga, be, mu, va)",
            NORM,
        ),
    ):
        data = "2, 4, 5, 5" if "Batch" in body else "2, 3, 5, 5"
        text = graph(body, constants, ranges, data=data)
        _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
        assert single(report).outcome is SiteStatus.CHANGED


def test_scales_along_other_axes_are_left_alone(check_pass):
    pool = "m = Mul (x, k)\n v = MaxPool <kernel_shape = [2, 2]> (m)"
    for body, constants, data in (
        ("v = Conv (x, w, b)", CONV, "2, 3, 5, 6"),
        (pool, "float k = {2}", "2, 4, 5, 5"),
    ):
        text = graph(body, constants, COLUMNS, data=data)
        _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
        assert "do not lie along its channels" in single(report).reason


def test_a_weight_without_columns_has_one_scale(check_pass):
    text = graph("v = MatMul (x, w)", f"float[3] w = {{{listed(3)}}}", COLUMNS, data="4, 3")
    text = text.replace("float[N, C] y", "float[N] y")
    _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert "do not lie along its last axis" in single(report).reason


def test_scales_per_column(check_pass):
    ranges = COLUMNS
    for body in (
        "v = MatMul (x, w)",
        "v = Gemm (x, w, b)",
        "t = Transpose <perm = [1, 0]> (w)\n v = Gemm <transB = 1> (x, t, b)",
    ):
        text = graph(body, LINEAR, ranges, data="7, 3")
        _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
        assert single(report).outcome is SiteStatus.CHANGED


def test_quantized_weights_get_another_output_scale(check_pass):
    body = """q = org.openvinotoolkit.FakeQuantize <levels = 255> (w, wl, wh, wl, wh)
            v = Conv (x, q, b)"""
    constants = f"{CONV}, float wl = {{-1.27}}, float wh = {{1.27}}"
    text = graph(body, constants)
    ops = ["DequantizeLinear", "FakeQuantize", "Conv", "Round", "Clip"]
    model, _ = check_pass(FuseOutputScale(), text, ops=ops, inputs=data_for(text))
    weights = model.ir.graph[1]
    ends = [float(model.constant(value)) for value in weights.inputs[1:]]
    assert ends == [F(-1.27), F(1.27), F(-1.27) * 16, F(1.27) * 16]
    assert "w" in model.ir.graph.initializers


def test_quantized_weights_with_a_scale_for_each_channel(check_pass):
    body = """q = org.openvinotoolkit.FakeQuantize <levels = 255> (w, wl, wh, cl, ch)
            d = Mul (q, s)
            v = Conv (x, d, b)"""
    constants = (
        f"{CONV}, float wl = {{-1.27}}, float wh = {{1.27}}, float cl = {{-127}}, "
        "float ch = {127}, float[4, 1, 1, 1] s = {0.01, 0.02, 0.03, 0.04}"
    )
    ranges = COLUMNS.replace("float[4] i", "float[1, 4, 1, 1] i")
    text = graph(body, constants, ranges)
    model, _ = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    (product,) = model.nodes("Mul")
    scale = model.constant(product.inputs[1]).reshape(-1)
    np.testing.assert_array_equal(scale, F([0.01, 0.02, 0.03, 0.04]) * F([16, 8, 1, 64]))


def test_split_weights_too(check_pass):
    body = """q = org.openvinotoolkit.FakeQuantize <levels = 255> (w, wl, wh, cl, ch)
            d = Mul (q, s)
            v = Conv (x, d, b)"""
    constants = (
        f"{CONV}, float wl = {{-1.27}}, float wh = {{1.27}}, float cl = {{-127}}, "
        "float ch = {127}, float s = {0.01}"
    )
    text = graph(body, constants)
    ops = ["DequantizeLinear", "FakeQuantize", "Mul", "Conv", "Round", "Clip"]
    check_pass(FuseOutputScale(), text, ops=ops, inputs=data_for(text))


def test_stored_codes_get_another_scale(check_pass):
    codes = ", ".join(str(code) for code in np.random.default_rng(5).integers(-9, 9, 12))
    text = graph(
        "d = DequantizeLinear <axis = 1> (w, s)\n v = MatMul (x, d)",
        f"int8[3, 4] w = {{{codes}}}, float[4] s = {{0.5, 0.3, 1, 2}}",
        COLUMNS,
        data="7, 3",
    )
    ops = ["DequantizeLinear", "DequantizeLinear", "MatMul", "Round", "Clip"]
    model, _ = check_pass(FuseOutputScale(), text, ops=ops, inputs=data_for(text))
    scale = model.constant(model.ir.graph[1].inputs[1])
    np.testing.assert_array_equal(scale, F([8, F(0.3) * 8, 1, 128]))


def test_shared_weights_are_copied(check_pass):
    body = "v = MatMul (x, w)\n o = MatMul (x, w)\n p = Add (o, b)\n z = Mul (p, b)"
    text = graph(body, LINEAR, data="7, 3")
    model, _ = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert "w" in model.ir.graph.initializers


REFUSED = [
    ("v = Relu (x)", "b", "'x' is not computed by an operator"),
    ("m = MatMul (x, w)\n v = Sigmoid (m)", "w", "Sigmoid 'v' can neither absorb a scale"),
    ("m = MatMul (x, w)\n v = Relu (m)\n z = Neg (m)", "w", "'m', the output of MatMul"),
    ("m = MatMul (x, w)\n v = Add (m, b)\n z = Neg (v)", "w", "'v', the output of Add"),
    ("n = MatMul (x, w)\n m = Add (n, b)\n s = Sigmoid (m)\n v = Add (s, m)", "w", "Sigmoid"),
    ("t = Transpose <perm = [1, 0]> (x)\n v = MatMul (x, t)", "w", "input 1 of MatMul"),
    ("h = Add (x, c)\n v = Tanh (h)", "w", "Tanh"),
]


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(("body", "_name", "reason"), REFUSED)
def test_operators_that_let_no_scale_through(check_pass, body, _name, reason):
    text = graph(body, f"{LINEAR}, float c = {{1}}", data="7, 3", step=None)
    model, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert single(report).outcome is SiteStatus.REFUSED
    assert reason in single(report).reason
    assert [n.op_type for n in model.ir.graph] == [n.op_type for n in ir.from_onnx_text(text).graph]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ("float il = {0}, float ih = {1}, float ol = {0}, float oh = {1}", "split-fake-quantize"),
        ("float il = {-1}, float ih = {1}, float ol = {0}, float oh = {255}", "tune-ranges first"),
        ("float il = {1}, float ih = {-1}, float ol = {0}, float oh = {255}", "reversed"),
        ("float il = {1}, float ih = {1}, float ol = {0}, float oh = {255}", "a point"),
        (
            COLUMNS.replace("{0, 0, 0, 0}", "{0, -31.875, 0, 0}").replace("31.875, 255", "0, 255"),
            "several zero points, 0..255",
        ),
    ],
)
def test_ranges_that_are_no_codes(check_pass, ranges, reason):
    text = graph("v = MatMul (x, w)", LINEAR, ranges, data="7, 3")
    _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert single(report).outcome is SiteStatus.REFUSED
    assert reason in single(report).reason


def test_per_channel_scales_do_not_pass_what_moves_channels(check_pass):
    ranges = COLUMNS
    body = "m = MatMul (w, x)\n v = Transpose <perm = [1, 0]> (m)"
    text = graph(body, f"float[4, 3] w = {{{listed(4, 3)}}}", ranges, data="3, 7")
    _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert "moves channels" in single(report).reason


def test_quant_has_one_scale_for_input_and_output(check_pass):
    body = """q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (w, s, z, n)
            v = MatMul (x, q)"""
    constants = f"{LINEAR}, float s = {{0.1}}, float z = {{0}}, float n = {{8}}"
    text = graph(body, constants, data="7, 3")
    text = text.replace('toolkit": 1', 'toolkit": 1, "qonnx.custom_op.general": 1')
    _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert "run -p fold-weights" in report.sites[-1].reason


def test_constants_that_would_leave_float32_are_left_alone(check_pass):
    ranges = "float il = {0}, float ih = {8e-37}, float ol = {0}, float oh = {255}"
    text = graph("v = MatMul (x, w)", LINEAR, ranges, data="7, 3")
    _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert single(report).outcome is SiteStatus.REFUSED
    assert "range of float32" in single(report).reason


def test_functions_and_branches(check_pass):
    quantize = "org.openvinotoolkit.FakeQuantize <levels = 256>"
    text = f"""<ir_version: 8, opset_import: ["": 16, "org.openvinotoolkit": 1, "local": 1]>
        g (int8[7, 4] i) => (float[7, 4] y)
        <bool c = {{1}}, float step = {{0.05}}, float[4, 4] w = {{{listed(4, 4)}}},
         float zero = {{0}}, float high = {{15.9375}}, float top = {{255}}> {{
            x = DequantizeLinear (i, step)
            r = If (c) <
                then_branch = yes () => (float[7, 4] u) {{
                    m = MatMul (x, w)
                    u = {quantize} (m, zero, high, zero, top) }},
                else_branch = no () => (float[7, 4] v) {{ v = Neg (x) }}>
            y = local.layer (r)
        }}
        <domain: "local", opset_import: ["": 16, "org.openvinotoolkit": 1]>
        layer (i) => (o) {{
            k = Constant <value = float[4, 2] {{1, 2, 3, 4, -1, -2, -3, 4}}> ()
            zero = Constant <value = float {{0}}> ()
            high = Constant <value = float {{1020}}> ()
            top = Constant <value = float {{255}}> ()
            step = Constant <value = float {{0.05}}> ()
            codes = QuantizeLinear (i, step)
            d = DequantizeLinear (codes, step)
            m = MatMul (d, k)
            h = Relu (m)
            o = {quantize} (h, zero, high, zero, top)
        }}""".replace("(float[7, 4] y)", "(float[7, 2] y)")
    _, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert report.count(SiteStatus.CHANGED) == 2


def test_the_opset_is_raised_as_far_as_needed(check_pass):
    body = (
        "c = Conv (x, w, b)\n n = BatchNormalization (c, ga, be, mu, va)\n v = Clip <min = 0.0> (n)"
    )
    text = (
        graph(body, f"{CONV}, {NORM}")
        .replace('"": 13', '"": 10')
        .replace("version: 8", "version: 5")
    )
    model, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert single(report).outcome is SiteStatus.REFUSED
    assert "bounds as attributes" in single(report).reason
    text = text.replace("Clip <min = 0.0>", "Relu")
    model, report = check_pass(FuseOutputScale(), text, inputs=data_for(text))
    assert single(report).outcome is SiteStatus.CHANGED
    assert model.ir.opset_imports[""] == 11
    assert report.notes == ["opset raised from 10 to 11"]
    _, report = check_pass(FuseOutputScale(opset=10), text, inputs=data_for(text))
    assert "Round and Clip needs opset 11, above 10" in single(report).reason


@pytest.mark.runtime
def test_a_runtime_computes_the_codes(check_pass):
    pytest.importorskip("onnxruntime")
    random = np.random.default_rng(6)
    w, b = random.integers(-9, 9, (3, 4)), random.integers(-9, 9, 4)
    constants = (
        f"float[3, 4] w = {{{', '.join(map(str, w.ravel()))}}}, "
        f"float[4] b = {{{', '.join(map(str, b))}}}"
    )
    ranges = "float il = {0}, float ih = {510}, float ol = {0}, float oh = {255}"
    text = graph("g = Gemm (x, w, b)\n v = Relu (g)", constants, ranges, data="50, 3", step=1)
    x = random.integers(-90, 90, (50, 3))
    # the sums are whole, so that half of all codes are ties
    expected = np.clip(np.rint(np.maximum(x @ w + b, 0) / 2), 0, 255)
    feeds = {"i": x.astype(np.int8)}
    model, _ = check_pass(FuseOutputScale(), text, inputs=feeds)
    for backend in ("numpy", "ort"):
        np.testing.assert_array_equal(model.run(feeds, backend=backend)["y"], expected)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("name", "fused"),
    [("nncf_cnn_int8_sym", 6), ("nncf_cnn_w4a4", 6), ("nncf_mlp_int8_mixed", 1)],
)
def test_real_models_keep_every_output(models, name, fused):
    model = load(models / f"{name}.onnx")
    model.apply(TuneRanges(scale=TunedScales.POWER_OF_TWO, accept=1e6), SplitFakeQuantize())
    feeds = {model.inputs[0].name: np.load(models / f"{name}.npz")["x"]}
    expected = model.run(feeds, backend="numpy")
    report = model.apply(FuseOutputScale())
    assert report.count(SiteStatus.CHANGED) == fused
    assert report.exactness is Exactness.VALUES
    for key, found in model.run(feeds, backend="numpy").items():
        np.testing.assert_array_equal(found, expected[key])

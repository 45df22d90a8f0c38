"""BatchNormalization goes into weights and biases: codes stay, and values stay within roundings."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reporting.pages import page_of
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.fold_batch_norm import FoldBatchNorm
from qgraph.version import head

pytestmark = pytest.mark.sums

F = np.float32
MAKE_MOBILENET = Path(__file__).parents[1] / "benchmarks" / "make_mobilenet.py"
U = 2.0**-24
"""Half an ulp of 1 in float32."""
ANY = Exactness.DIFFERENT
IMPORTS = '"": 21, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1'

GAMMA, BETA = F([1.3, 0.2, -0.7, 2.5]), F([0.1, -3, 0, 0.7])
MEAN, VAR = F([0.3, -2, 0.01, 1]), F([1.7, 0.04, 9, 0.3])
NORM = ", ".join(
    f"float[4] {name} = {{{', '.join(f'{v:.9g}' for v in values)}}}"
    for name, values in (("ga", GAMMA), ("be", BETA), ("mu", MEAN), ("va", VAR))
)
FACTOR = GAMMA.astype(float) / np.sqrt(VAR.astype(float) + float(F(1e-5)))
OFFSET = BETA.astype(float) - MEAN.astype(float) * FACTOR


@dataclass(frozen=True)
class Layer:
    """An operator whose output has four channels on axis 1.

    Attributes:
        text: the operator on x, w, and b if it has a bias.
        data, weights: shapes of x and w.
        axis: of the weights, on which the output channels lie.
            result: dimensions of the output.
        bias: shape of b.
    """

    text: str
    data: tuple[int, ...]
    weights: tuple[int, ...]
    axis: int = 0
    result: str = "n, a, b, c"
    bias: tuple[int, ...] = ()


PADS = "pads = [1, 1, 1, 1]"
ROWS = "n, a"
LAYERS = {
    "conv": Layer(f"Conv <{PADS}> (x, w)", (2, 3, 5, 6), (4, 3, 3, 3)),
    "conv with bias": Layer("Conv (x, w, b)", (2, 3, 5, 6), (4, 3, 3, 3), bias=(4,)),
    "depthwise": Layer(f"Conv <group = 4, {PADS}> (x, w)", (2, 4, 5, 6), (4, 1, 3, 3)),
    "groups": Layer("Conv <group = 2> (x, w, b)", (2, 6, 5, 6), (4, 3, 2, 3), bias=(4,)),
    "conv 1d": Layer("Conv <dilations = [2]> (x, w)", (2, 3, 9), (4, 3, 2), result="n, a, b"),
    "transposed": Layer("ConvTranspose (x, w, b)", (2, 3, 4, 3), (3, 4, 2, 3), 1, bias=(4,)),
    "gemm": Layer("Gemm (x, w)", (5, 6), (6, 4), 1, result=ROWS),
    "gemm with factors": Layer(
        "Gemm <alpha = 0.5, beta = 3., transB = 1> (x, w, b)",
        (5, 6),
        (4, 6),
        result=ROWS,
        bias=(4,),
    ),
    "gemm with rows": Layer(
        "Gemm <transA = 1> (x, w, b)", (6, 5), (6, 4), 1, result=ROWS, bias=(5, 1)
    ),
    "matmul": Layer("MatMul (x, w)", (5, 6), (6, 4), 1, result=ROWS),
    "matmul of a left operand": Layer("MatMul (w, x)", (1, 6, 5), (4, 6), result="n, a, b"),
}
FORMS = ("float", "tensor", "axis", "zero point", "transposed", "cast", "quant", "fake")


def declared(kind: str, name: str, array: np.ndarray) -> str:
    """An initializer in ONNX text."""
    numbers = ", ".join(f"{v:.9g}" for v in array.ravel().tolist())
    return f"{kind}[{', '.join(map(str, array.shape))}] {name} = {{{numbers}}}"


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return np.reshape(values, [-1 if i == axis else 1 for i in range(rank)])


def bias_of(layer: Layer) -> np.ndarray:
    return (np.arange(np.prod(layer.bias)) * 0.37 - 0.8).astype(F).reshape(layer.bias)


def weights_of(form: str, layer: Layer) -> tuple[str, str, np.ndarray]:
    """Return initializers, nodes that compute w from them, and its values in real numbers."""
    random = np.random.default_rng(5)
    codes, rank = random.integers(-120, 120, layer.weights), len(layer.weights)
    step = float(F(0.013))
    stored = f"{declared('int8', 'k', codes)}, float s = {{0.013}}"
    reals = (codes * step + random.uniform(-0.006, 0.006, codes.shape)).astype(F)
    end = F(0.013 * 127)
    if form == "float":
        return declared("float", "w", reals), "", reals.astype(float)
    if form == "tensor":
        return stored, "[wdq] w = DequantizeLinear (k, s)", codes * step
    if form == "axis":
        scale = F([0.013, 0.7, 0.0021, 0.3])
        text = f"{declared('int8', 'k', codes)}, {declared('float', 's', scale)}"
        node = f"[wdq] w = DequantizeLinear <axis = {layer.axis - rank}> (k, s)"
        return text, node, codes * along(scale.astype(float), layer.axis, rank)
    if form == "zero point":
        text = (
            f"{declared('uint8', 'k', codes + 120)}, float[1] s = {{0.013}}, uint8[1] z = {{117}}"
        )
        return text, "[wdq] w = DequantizeLinear (k, s, z)", (codes + 3) * step
    if form == "transposed":
        order = list(range(rank))[::-1]
        text = f"{declared('int8', 'k', codes.transpose())}, float s = {{0.013}}"
        nodes = f"[wdq] v = DequantizeLinear (k, s)\n w = Transpose <perm = {order}> (v)"
        return text, nodes, codes * step
    if form == "cast":
        return stored, "v = Cast <to = 1> (k)\n w = Mul (v, s)", codes * step
    if form == "quant":
        text = f"{declared('float', 'r', reals)}, float s = {{0.013}}, float o = {{0}}, "
        node = "w = qonnx.custom_op.general.Quant <signed = 1> (r, s, o, n)"
        return text + "float n = {8}", node, codes * step
    text = f"{declared('float', 'r', reals)}, {declared('float', 'l', -end.reshape(1))}, "
    node = "w = org.openvinotoolkit.FakeQuantize <levels = 255> (r, l, h, l, h)"
    return text + declared("float", "h", end.reshape(1)), node, codes * (float(end) / 127)


def graph(layer: Layer, weights: str, nodes: str, tail: str, more: str = NORM) -> str:
    """A layer, and the nodes that compute y from its result c."""
    bias = declared("float", "b", bias_of(layer)) + ", " if layer.bias else ""
    data = ", ".join(map(str, layer.data))
    return f"""<ir_version: 10, opset_import: [{IMPORTS}]>
        g (float[{data}] x) => (float[{layer.result}] y) <{bias}{weights}, {more}> {{
            {nodes}
            [layer] c = {layer.text}
            {tail}
        }}"""


def in_real_numbers(layer: Layer, **operands: np.ndarray) -> np.ndarray:
    """Return the operator on some operands, in float64 by onnx's reference."""
    inputs = ", ".join(f"double[{', '.join(map(str, a.shape))}] {k}" for k, a in operands.items())
    dims = ", ".join(f"d{i}" for i in range(len(layer.result.split(","))))
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g ({inputs}) => (double[{dims}] y) {{ y = {layer.text} }}""")
    return ReferenceEvaluator(model).run(None, operands)[0]


def check_values(
    layer: Layer, text: str, after: Model, weights: np.ndarray, factor: object, offset: object
) -> None:
    """Check that both models compute factor * layer + offset, up to roundings in any order.

    A sum of n products differs by n * 2^-24 times the sum of their sizes at most. Twelve more such
    terms stand for the roundings of constants, decoded weights and a BatchNormalization.
    """
    x = (np.random.default_rng(7).normal(size=layer.data) * 9).astype(F)
    real = {"x": x.astype(float), "w": weights}
    real |= {"b": bias_of(layer).astype(float)} if layer.bias else {}
    ideal = in_real_numbers(layer, **real)
    size = in_real_numbers(layer, **{name: np.abs(array) for name, array in real.items()})
    f, o = (along(np.broadcast_to(v, 4), 1, ideal.ndim) for v in (factor, offset))
    bound = (weights.size + 12) * 2.0**-24 * (np.abs(f) * (size + 9) + 4 * np.abs(o))
    for model in (load(ir.from_onnx_text(text)), after):
        found = model.run({"x": x}, backend="numpy")["y"]
        assert (np.abs(found - (ideal * f + o)) <= bound).all()


def stored(model: Model, kind: ir.DataType) -> list[np.ndarray]:
    """Return all constants of a type."""
    values = model.ir.graph.initializers.values()
    return [v.const_value.numpy() for v in values if v.dtype is kind]


def single(report: Report) -> SiteReport:
    (entry,) = report.sites
    return entry


def constant(model: Model, node: str, index: int) -> np.ndarray:
    """Return a constant input of a node of the main graph."""
    (found,) = (each for each in model.nodes() if each.name == node)
    return model.constant(found.inputs[index])


NORMALIZED = "[bn] y = BatchNormalization (c, ga, be, mu, va)"


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_takes_a_normalization_in(check_pass, each, name):
    layer = LAYERS[name]

    def check(form: str) -> None:
        initializers, nodes, weights = weights_of(form, layer)
        text = graph(layer, initializers, nodes, NORMALIZED)
        model, report = check_pass(FoldBatchNorm(), text, exactly=ANY)
        check_values(layer, text, model, weights, FACTOR, OFFSET)
        assert (single(report).node, single(report).figures["into"]) == ("bn", "layer")
        kinds = [node.op_type for node in model.nodes()]
        assert "BatchNormalization" not in kinds
        assert kinds.count("Add") == (kinds[-2:] == ["MatMul", "Add"])
        before = load(ir.from_onnx_text(text))
        for kind in (ir.DataType.INT8, ir.DataType.UINT8):
            codes, unchanged = ([a for a in stored(m, kind) if a.size > 4] for m in (model, before))
            assert [a.tobytes() for a in codes] == [a.tobytes() for a in unchanged]

    each(FORMS, check)


def test_new_constants_are_rounded_once(check_pass):
    layer = LAYERS["conv with bias"]
    text = graph(layer, *weights_of("zero point", layer)[:2], NORMALIZED)
    model, report = check_pass(FoldBatchNorm(), text, ops=["DequantizeLinear", "Conv"], exactly=ANY)
    scale = constant(model, "wdq", 1)
    np.testing.assert_array_equal(scale, (float(F(0.013)) * FACTOR).astype(F))
    np.testing.assert_array_equal(constant(model, "wdq", 2), np.full(4, 117, np.uint8))
    bias = bias_of(layer).astype(float) * FACTOR + OFFSET
    np.testing.assert_array_equal(constant(model, "layer", 2), bias.astype(F))
    entry = single(report)
    assert (entry.to_json()["exactness"], entry.to_json()["method"]) == (None, "none")
    assert "qgraph prove --within" in entry.reason
    assert entry.figures["negative_factors"] == 1
    assert report.exactness is Exactness.DIFFERENT
    page = page_of(head("transform") | report.to_json())
    assert page.sentence == "1 site changed, 1 of them not compared; their remarks say why."


TAILS = {
    "p = Mul (f, c)\n y = Add (p, o)": (GAMMA, BETA),
    "p = Sub (c, o)\n y = Div (p, f)": (1 / GAMMA.astype(float), -BETA / GAMMA.astype(float)),
    "y = Sub (half, c)": (-1, 0.5),
    "p = Unsqueeze (ga, axes)\n i = Identity (c)\n y = Mul (i, p)": (GAMMA, 0),
    "p = Reshape (be, sizes)\n y = Add (p, c)": (1, BETA),
    "p = Constant <value_float = 0.3> ()\n q = Mul (c, p)\n y = Div (q, half)": (
        float(F(0.3)) / 0.5,
        0,
    ),
    """v = Add (va, e) d = Sqrt (v) f1 = Div (ga, d) u = Unsqueeze (f1, axes) p = Mul (c, u)
       o1 = Mul (mu, f1) o2 = Sub (be, o1) t = Unsqueeze (o2, axes) y = Add (p, t)""": (
        FACTOR,
        OFFSET,
    ),
    """p = BatchNormalization (c, ga, be, mu, va) q = Mul (p, f)
       y = BatchNormalization (q, ga, be, mu, va)""": (
        FACTOR * GAMMA * FACTOR,
        OFFSET * GAMMA * FACTOR + OFFSET,
    ),
}


@pytest.mark.parametrize("tail", TAILS)
def test_every_way_to_write_factors_and_offsets(check_pass, tail):
    layer = LAYERS["conv with bias"]
    more = f"{NORM}, {declared('float', 'f', GAMMA.reshape(4, 1, 1))}, float half = {{0.5}}, "
    more += f"{declared('float', 'o', BETA.reshape(1, 4, 1, 1))}, int64[2] axes = {{1, 2}}, "
    more += "int64[3] sizes = {-1, 1, 1}, float e = {0.00001}"
    initializers, nodes, weights = weights_of("axis", layer)
    text = graph(layer, initializers, nodes, tail, more)
    model, _ = check_pass(FoldBatchNorm(), text, exactly=ANY)
    assert {node.op_type for node in model.nodes()} == {"DequantizeLinear", "Conv"}
    factor, offset = (np.asarray(v, float) for v in TAILS[tail])
    # A few float32 roundings of the decomposed normalization are no part of the fold.
    check_values(layer, text, model, weights, factor, offset)


WITH_FACTOR = f"{NORM}, {declared('float', 'f', GAMMA.reshape(4, 1, 1))}"
LEFT_ALONE = {
    "is also used elsewhere": f"{NORMALIZED} z = Relu (c)",
    "'c', from which it is computed, is": f"{NORMALIZED} z = Identity (x)",
    "it follows Relu": "r = Relu (c)\n [bn] y = BatchNormalization (r, ga, be, mu, va)",
    "it follows DequantizeLinear": """q = QuantizeLinear (c, s0, u0)
        r = DequantizeLinear (q, s0, u0) [bn] y = BatchNormalization (r, ga, be, mu, va)""",
    "training mode": """[bn] y, rm, rv = BatchNormalization <training_mode = 1>
        (c, ga, be, mu, va)""",
    "computed at run time": "h = Relu (mean) [bn] y = BatchNormalization (c, ga, be, h, va)",
    "would be 0": "[bn] y = BatchNormalization (c, none, be, mu, va)",
    "would be inf": "[bn] y = BatchNormalization <epsilon = 0.> (c, ga, be, mu, none)",
    "would be 1.3e-40, no normal": """[bn] y = BatchNormalization <epsilon = 0.>
        (c, tiny, be, mu, one)""",
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_what_cannot_be_folded_is_listed_with_the_reason(check_pass, reason):
    more = f"{NORM}, float[4] none = {{0, 1, 1, 1}}, float s0 = {{0.1}}, uint8 u0 = {{7}}, "
    more += "float[4] tiny = {1, 1, 1, 1e-38}, float[4] one = {1, 1, 1, 1}"
    layer = LAYERS["conv"]
    text = graph(layer, *weights_of("tensor", layer)[:2], LEFT_ALONE[reason], more)
    text = text.replace("6] x)", "6] x, float[4] mean)")
    results = {"z = Relu": "z", "z = Identity": "c"}
    for shown, value in results.items():
        if shown in text:
            text = text.replace("b, c] y)", f"b, c] y, float[n, d, e, f] {value})")
    feeds = {"x": np.ones(layer.data, F), "mean": MEAN}
    _, report = check_pass(FoldBatchNorm(), text, inputs=feeds)
    entry = single(report)
    assert (entry.outcome, entry.node) == (SiteStatus.REFUSED, "bn")
    assert reason in entry.reason
    assert entry.reason_id in ("QG003", "QG012")


UNREADABLE_WEIGHTS = {
    "the scale of DequantizeLinear 'wdq' is computed at run time": (
        "int8[4, 3, 3, 3] k = {SAME}, float[1, 1] s = {0.1}",
        "a = ReduceMax <keepdims = 0> (x)\n [wdq] w = DequantizeLinear (k, a)",
    ),
    "and the scales of DequantizeLinear 'wdq' along axis 1": (
        "int8[4, 3, 3, 3] k = {SAME}, float[3] s = {0.1, 0.2, 0.3}",
        "[wdq] w = DequantizeLinear <axis = 1> (k, s)",
    ),
    "its weights come from Cast": ("int8[4, 3, 3, 3] k = {SAME}", "w = Cast <to = 1> (k)"),
}


@pytest.mark.parametrize("reason", UNREADABLE_WEIGHTS)
def test_weights_without_a_scale_for_the_factors_are_refused(reason):
    weights, nodes = UNREADABLE_WEIGHTS[reason]
    text = graph(LAYERS["conv"], weights.replace("SAME", ", ".join(["3"] * 108)), nodes, NORMALIZED)
    model = load(ir.from_onnx_text(text))
    entry = single(model.apply(FoldBatchNorm()))
    if "computed" in reason:  # the weights are data then
        reason = "before it has no constant weights"
    assert reason in entry.reason


def test_factors_of_blocks_go_along_the_other_axis(check_pass):
    codes = np.random.default_rng(1).integers(-8, 8, (6, 4))
    scale = np.random.default_rng(2).uniform(0.1, 1, (2, 4)).astype(F)
    weights = f"{declared('int8', 'k', codes)}, {declared('float', 's', scale)}"
    node = "[wdq] w = DequantizeLinear <axis = 0, block_size = 3> (k, s)"
    text = graph(LAYERS["matmul"], weights, node, NORMALIZED)
    model, _ = check_pass(FoldBatchNorm(), text, exactly=ANY)
    exact = codes * np.repeat(scale.astype(float), 3, axis=0)
    check_values(LAYERS["matmul"], text, model, exact, FACTOR, OFFSET)
    np.testing.assert_array_equal(constant(model, "wdq", 1), (scale * FACTOR).astype(F))


@pytest.mark.runtime
@pytest.mark.parametrize("spread", [False, True])
def test_groups_of_transposed_convolutions_share_axis_1(spread):
    """Two groups of two channels have the same two scales, so factors that differ do not fit."""
    codes = np.random.default_rng(1).integers(-99, 99, (6, 2, 3, 3))
    factor = F([2, 3, 5, 7]) if spread else F([2, 3, 2, 3])
    layer = Layer("ConvTranspose <group = 2> (x, w)", (1, 6, 4, 4), (6, 2, 3, 3))
    more = declared("float", "f", factor.reshape(4, 1, 1))
    weights = f"{declared('int8', 'k', codes)}, float s = {{0.1}}"
    text = graph(layer, weights, "[wdq] w = DequantizeLinear (k, s)", "y = Mul (c, f)", more)
    text = text.replace(IMPORTS, '"": 21')
    model = load(ir.from_onnx_text(text))
    report = model.apply(FoldBatchNorm())
    if spread:
        assert "vary along axis 0 and 1 of the weights" in single(report).reason
        return
    np.testing.assert_array_equal(constant(model, "wdq", 1), (float(F(0.1)) * F([2, 3])).astype(F))
    x = np.random.default_rng(7).normal(size=layer.data).astype(F)
    alone = Layer("ConvTranspose (x, w)", (1, 3, 4, 4), (3, 2, 3, 3))
    ideal, size = (
        np.concatenate(
            [
                in_real_numbers(alone, x=data[:, i : i + 3], w=array[i : i + 3]) * f
                for i, f in ((0, factor[:2].reshape(2, 1, 1)), (3, factor[2:].reshape(2, 1, 1)))
            ],
            axis=1,
        )
        for data, array in (
            (x.astype(float), codes * float(F(0.1))),
            (np.abs(x).astype(float), np.abs(codes) * 0.1),
        )
    )
    found = model.run({"x": x}, backend="ort")["y"]
    assert (np.abs(found - ideal) <= (27 + 4) * 2.0**-24 * size).all()


def test_shared_weights_are_copied(check_pass):
    layer = LAYERS["conv"]
    tail = f"{NORMALIZED.replace('y =', 'p =')} [other] d = Conv <{PADS}> (x, w) y = Sub (p, d)"
    text = graph(layer, *weights_of("tensor", layer)[:2], tail)
    model, _ = check_pass(FoldBatchNorm(), text, exactly=ANY)
    assert constant(model, "wdq", 1) == F(0.013)
    sources = [conv.inputs[1].producer() for conv in model.nodes("Conv")]
    assert sources[0] is not sources[1]
    assert sources[0].inputs[0] is sources[1].inputs[0]


def test_layers_that_share_weights_are_both_folded(check_pass):
    layer = LAYERS["conv"]
    tail = f"""{NORMALIZED.replace("y =", "p =")} [other] d = Conv <{PADS}> (x, w)
        [bn2] r = BatchNormalization (d, ga, ga, mu, va) y = Sub (p, r)"""
    text = graph(layer, *weights_of("tensor", layer)[:2], tail)
    model, report = check_pass(FoldBatchNorm(), text, exactly=ANY)
    assert report.count("changed") == 2
    decoders = list(model.nodes("DequantizeLinear"))
    assert len({node.name for node in decoders}) == 2
    assert decoders[0].inputs[0] is decoders[1].inputs[0]
    assert decoders[0].inputs[1] is decoders[1].inputs[1]


@pytest.mark.parametrize("is_inside", [True, False])
def test_layers_in_branches(is_inside):
    """A chain is folded where all of it lies in one graph."""
    layer = LAYERS["matmul"]
    initializers, node, weights = weights_of("axis", layer)
    norm = "{name} = BatchNormalization (c, ga, be, mu, va)"
    inner = norm.format(name="u") if is_inside else "u = Identity (c)"
    outer = "y = Identity (r)" if is_inside else "y = BatchNormalization (r, ga, be, mu, va)"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[5, 6] x, bool on) => (float[5, 4] y) <{initializers}, {NORM}> {{
            r = If (on) <
                then_branch = yes () => (float[5, 4] u) {{
                    {node}
                    [layer] c = MatMul (x, w)
                    {inner} }},
                else_branch = no () => (float[5, 4] v) {{ v = Expand (one, sizes) }}>
            {outer}
        }}"""
    text = text.replace(NORM, NORM + ", float one = {1}, int64[2] sizes = {5, 4}")
    model = load(ir.from_onnx_text(text))
    before = model.clone()
    report = model.apply(FoldBatchNorm())
    assert report.count("changed") == is_inside
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(F)
    found = [m.run({"x": x, "on": np.array(True)}, backend="numpy")["y"] for m in (before, model)]
    ideal = x.astype(float) @ weights * FACTOR + OFFSET
    bound = 20 * 2.0**-24 * (np.abs(x.astype(float)) @ np.abs(weights) + 9) * np.abs(FACTOR) + 1e-5
    assert all((np.abs(each - ideal) <= bound).all() for each in found)


@pytest.mark.parametrize("code", [-127, -128])
def test_codes_are_negated_where_scales_must_be_positive(check_pass, code):
    layer = LAYERS["conv"]
    initializers, node, _ = weights_of("tensor", layer)
    codes = load(ir.from_onnx_text(graph(layer, initializers, node, "y = Relu (c)"))).ir.graph
    codes = codes.initializers["k"].const_value.numpy().copy()
    codes[2, 1, 0, 2] = code
    text = graph(layer, f"{declared('int8', 'k', codes)}, float s = {{0.013}}", node, NORMALIZED)
    model, report = check_pass(FoldBatchNorm(negative="codes"), text, exactly=ANY)
    if code == -128:
        assert "channel 2 is negative, and code -128" in single(report).reason
        assert "would become 128, which is no int8" in single(report).reason
        return
    check_values(layer, text, model, codes * float(F(0.013)), FACTOR, OFFSET)
    signs = np.sign(FACTOR).reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(constant(model, "wdq", 0), (codes * signs).astype(np.int8))
    assert (constant(model, "wdq", 1) > 0).all()


def test_unsigned_codes_are_negated_about_their_zero_point(check_pass):
    layer = LAYERS["gemm"]
    initializers, node, weights = weights_of("zero point", layer)
    text = graph(layer, initializers.replace("117", "120"), node, NORMALIZED)
    model, _ = check_pass(FoldBatchNorm(negative="codes"), text, exactly=ANY)
    check_values(layer, text, model, weights - 3 * float(F(0.013)), FACTOR, OFFSET)
    assert (constant(model, "wdq", 1) > 0).all()


IN_FRONT = {
    "depthwise": ("Conv <group = 4> (p, w)", True),
    "depthwise, padded": (f"Conv <group = 4, {PADS}> (p, w)", False),
    "dense": ("Conv (p, w)", False),
}


@pytest.mark.parametrize("name", IN_FRONT)
def test_a_normalization_in_front_goes_into_depthwise_weights_without_padding(check_pass, name):
    operator, folds = IN_FRONT[name]
    shape = (4, 4, 3, 3) if name == "dense" else (4, 1, 3, 3)
    codes = np.random.default_rng(1).integers(-99, 99, shape)
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 4, 5, 6] c) => (float[2, 4, a, b] y)
        <{NORM}, {declared("int8", "k", codes)}, float s = {{0.01}}> {{
            [bn] p = BatchNormalization (c, ga, be, mu, va)
            w = DequantizeLinear (k, s)
            y = {operator}
        }}"""
    model, report = check_pass(FoldBatchNorm(), text, exactly=ANY)
    assert (single(report).outcome is SiteStatus.CHANGED) == folds
    if not folds:
        reason = "at its borders" if "padded" in name else "vary over channels that Conv"
        assert reason in single(report).reason
        return
    x = (np.random.default_rng(7).normal(size=(2, 4, 5, 6)) * 9).astype(F)
    f, o = (v.reshape(4, 1, 1) for v in (FACTOR, OFFSET))
    windows = np.lib.stride_tricks.sliding_window_view(x * f + o, (3, 3), axis=(2, 3))
    weights = codes[:, 0] * float(F(0.01))
    ideal = np.einsum("nchwij,cij->nchw", windows, weights)
    size = np.einsum(
        "nchwij,cij->nchw", np.abs(windows) + 2 * np.abs(o)[..., None, None], abs(weights)
    )
    found = model.run({"c": x}, backend="numpy")["y"]
    assert (np.abs(found - ideal) <= 25 * 2.0**-24 * size).all()


@pytest.mark.parametrize(("before", "folds"), [("DequantizeLinear", True), ("Relu", False)])
def test_one_factor_between_a_quantizer_and_its_user_goes_into_the_weights(
    check_pass, before, folds
):
    """Such a factor behind another operator may be part of a pattern, such as Gelu."""
    first = "r = DequantizeLinear (q, s)" if folds else "i = Cast <to = 1> (q)\n r = Relu (i)"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[5, 6] x) => (float[5, 4] y)
        <int8[6, 4] k = {{{", ".join(["3", "-7"] * 12)}}}, float s = {{0.01}}, float t = {{0.5}}> {{
            q = QuantizeLinear (x, s)
            {first}
            m = Mul (r, t)
            [wdq] w = DequantizeLinear (k, s)
            y = MatMul (m, w)
        }}"""
    model, report = check_pass(FoldBatchNorm(), text, exactly=ANY)
    assert report.count("changed") == folds
    if folds:
        assert constant(model, "wdq", 1) == F(0.01) / 2


def test_a_quantizer_keeps_its_own_operators(check_pass):
    """The Div belongs to a quantizer in plain operators, and the Mul before it to nothing."""
    layer = LAYERS["conv"]
    more = f"{declared('float', 'f', GAMMA.reshape(4, 1, 1))}, float t = {{0.1}}, float one = {{1}}"
    tail = "d = Div (c, t) r = Round (d) l = Clip (r, low, high) y = Mul (l, t)"
    initializers, nodes, _ = weights_of("tensor", layer)
    more += ", float low = {-8}, float high = {7}"
    _, report = check_pass(FoldBatchNorm(), graph(layer, initializers, nodes, tail, more))
    assert report.sites == []
    tail = "m = Mul (c, f) q = QuantizeLinear (m, t) y = DequantizeLinear (q, t)"
    _, report = check_pass(
        FoldBatchNorm(), graph(layer, initializers, nodes, tail, more), exactly=ANY
    )
    assert single(report).figures["folded"] == report.sites[0].node


def test_scales_for_each_channel_raise_the_opset(check_pass):
    layer = LAYERS["conv"]
    text = graph(layer, *weights_of("tensor", layer)[:2], NORMALIZED)
    text = text.replace(IMPORTS, '"": 11').replace("ir_version: 10", "ir_version: 6")
    model, report = check_pass(FoldBatchNorm(), text, exactly=ANY)
    assert model.ir.opset_imports[""] == 13
    assert report.notes == ["opset raised from 11 to 13"]
    _, report = check_pass(FoldBatchNorm(opset=12), text)
    assert single(report).reason_id == "QG002"


@pytest.mark.parametrize(
    ("version", "attributes", "outputs", "reason"),
    [
        (9, "", "y, m1, v1, m2, v2", "training mode"),
        (8, "spatial = 0", "y", "spatial is 0"),
        (7, "spatial = 1", "y", None),
        (14, "training_mode = 0", "y", None),
        (15, "", "y", None),
    ],
)
def test_versions_of_batch_normalization(version, attributes, outputs, reason):
    layer = LAYERS["conv"]
    form = f"[bn] {outputs} = BatchNormalization <{attributes}> (c, ga, be, mu, va)"
    text = graph(layer, *weights_of("float", layer)[:2], form.replace("<>", ""))
    text = text.replace(IMPORTS, f'"": {version}').replace("ir_version: 10", "ir_version: 4")
    entry = single(load(ir.from_onnx_text(text)).apply(FoldBatchNorm()))
    assert (entry.outcome is SiteStatus.CHANGED) == (reason is None)
    assert reason is None or reason in entry.reason


def test_names_choose_the_layers(check_pass):
    layer = LAYERS["conv"]
    text = graph(layer, *weights_of("tensor", layer)[:2], NORMALIZED)
    _, report = check_pass(FoldBatchNorm(nodes="other*"), text)
    assert "is left out by nodes" in single(report).reason


def kernels(path: Path, folder: Path) -> Counter[str]:
    """Return the operators that ONNX Runtime executes for a model, with their numbers."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["conv", "conv with bias", "depthwise", "groups"])
def test_onnx_runtime_computes_folded_layers_on_codes(tmp_path, name):
    layer = LAYERS[name]
    initializers, nodes, _ = weights_of("tensor", layer)
    tail = """[bn] e = BatchNormalization (d, ga, be, mu, va) r = Relu (e)
        q = QuantizeLinear (r, t, u) y = DequantizeLinear (q, t, u)"""
    more = f"{NORM}, float t = {{0.3}}, uint8 u = {{0}}"
    text = graph(layer, initializers, nodes, tail, more).replace(" c = ", " d = ")
    read = "a = QuantizeLinear (x, t, u)\n b8 = DequantizeLinear (a, t, u)\n [layer]"
    text = text.replace("[layer]", read).replace("(x, w", "(b8, w").replace(IMPORTS, '"": 21')
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    model = load(ir.from_onnx_text(text))
    model.save(before)
    assert single(model.apply(FoldBatchNorm())).outcome is SiteStatus.CHANGED
    model.save(after)
    assert [kernels(path, tmp_path)["QLinearConv"] for path in (before, after)] == [0, 1]


@pytest.mark.slow
@pytest.mark.runtime
def test_mobilenet_runs_on_codes(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("make_mobilenet", MAKE_MOBILENET)
    maker = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_mobilenet", maker)
    spec.loader.exec_module(maker)
    model = load(maker.make_mobilenet(0.125, bits=8))
    model.apply(ConvertDialect(to="qdq"))
    model.save(tmp_path / "before.onnx")
    report = model.apply(FoldBatchNorm())
    assert (report.count("changed"), report.count("refused")) == (27, 0)
    model.save(tmp_path / "after.onnx")
    found = [kernels(tmp_path / f"{name}.onnx", tmp_path) for name in ("before", "after")]
    assert [each["QLinearConv"] for each in found] == [0, 27]
    assert found[1]["Conv"] == 0


NORMS = {
    "TFC_1W2A": 4,  # the last one is a Sub, Div, Mul and Add
    "brev_cnn_asym8": 4,
    "brev_cnn_fp8e4m3": 4,
    "brev_cnn_w4a4": 4,
    "brev_cnn_w4a4_dynamo": 4,
    "brev_cnn_w4a4_qcdq": 4,
    "brev_cnn_w4a4_trunc": 4,
    "brev_mlp_fp4": 2,
    "brev_mlp_w1a2_bipolar": 2,
    "brevmx_mlp_mxfp4w": 2,
    "kwsmlp_w3a3": 3,
    "nncf_cnn_int8_sym": 3,
    "nncf_cnn_w4a4": 3,
    "nncf_mlp_int8_mixed": 0,
    "nncfonnx_cnn_qdq_sym": 0,
    "qkeras_jettagging": 0,
}
"""Real models, and the normalizations in each, which all follow quantized weights."""


@pytest.mark.cases(fast=4, slow=10)
@pytest.mark.parametrize("name", NORMS)
def test_real_models_keep_their_labels(real_models, name):
    model = load(real_models[name])
    before = model.clone()
    report = model.apply(FoldBatchNorm())
    assert (report.count("changed"), report.count("refused")) == (NORMS[name], 0)
    assert not list(model.nodes("BatchNormalization"))
    data = real_models[name].with_suffix(".npz")
    if not data.exists():
        return
    feeds = {model.inputs[0].name: np.load(data)["x"][:100]}
    scores = [next(iter(m.run(feeds, backend="numpy").values())) for m in (before, model)]
    labels = [array.reshape(100, -1).argmax(axis=1) for array in scores]
    assert (labels[0] == labels[1]).all()


def test_counts_of_weights_are_those_of_the_pass_that_stored_them():
    """A later pass replaces the nodes on which the counts depend."""
    layer = LAYERS["conv"]
    text, node, _ = weights_of("quant", layer)
    model = load(ir.from_onnx_text(graph(layer, text, node, NORMALIZED)))
    report = model.apply(ConvertDialect(to="qdq"), FoldBatchNorm())
    counts = next(each.size_summary.to_json() for each in report.sites if each.size_summary)
    assert counts["elements"] == np.prod(layer.weights)
    assert counts["unchanged"] == counts["elements"]

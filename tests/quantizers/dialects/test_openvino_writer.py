"""The writer of FakeQuantize: what each quantizer becomes, that it is equal, and that it runs."""

from __future__ import annotations

import io

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.model import Model, load
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.dialects.openvino import REMOVED
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect
from tests.conftest import openvino_core

QONNX = "qonnx.custom_op.general"
MODES = ["ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN"]


def quant(
    scale: str = " s = {0.1}",
    zero_point: str = " z = {0}",
    bits: int = 8,
    *,
    signed: int = 1,
    narrow: int = 0,
    mode: str = "ROUND",
    data: str = "1, 3, N",
) -> str:
    """A graph with one Quant on its input."""
    return f"""
        <ir_version: 8, opset_import: ["": 13, "{QONNX}": 1]>
        g (float[{data}] x) => (float[{data}] y)
        <float{scale}, float{zero_point}, float b = {{{bits}}}> {{
            y = {QONNX}.Quant
                <signed = {signed}, narrow = {narrow}, rounding_mode = "{mode}"> (x, s, z, b)
        }}"""


def pair(kind: str, scale: float, zero_point: int) -> str:
    return f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[1, 3, N] x) => (float[1, 3, N] y)
        <float s = {{{scale}}}, {kind} z = {{{zero_point}}}> {{
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }}"""


def one_node(name: str, constants: str, operands: str, attributes: str = "") -> str:
    return f"""
        <ir_version: 8, opset_import: ["": 13, "{QONNX}": 2]>
        g (float[1, 3, N] x) => (float[1, 3, N] y) <{constants}> {{
            y = {QONNX}.{name} {attributes} (x, {operands})
        }}"""


TRUNC = "float s = {0.1}, float z = {0}, float i = {10}, float t = {6.4}, float o = {4}"
SCALES = np.float64([0.1, 0.25, 3e-5, 0.5, 1, 6.4])
PER_CHANNEL = "[1, 3, 1] s = {0.1, 0.25, 3e-5}"


def points(scales: np.ndarray = SCALES) -> np.ndarray:
    halves = np.concatenate([np.arange(-262, 262) / 2, np.arange(-32775, -32760) / 2])
    return halves[:, None] * scales


@pytest.mark.cases(fast=5, slow=14)
@pytest.mark.parametrize(
    ("text", "ops"),
    [
        (quant(" s = {0.25}", signed=0), ["FakeQuantize"]),
        (quant(signed=0), ["Div", "FakeQuantize", "Mul"]),
        (quant(signed=0, narrow=1, bits=4), ["Div", "Round", "FakeQuantize", "Mul"]),
        (quant(), ["Div", "Round", "FakeQuantize", "Mul"]),
        (quant(narrow=1), ["Div", "Round", "FakeQuantize", "Mul"]),
        (quant(bits=2), ["Div", "Round", "FakeQuantize", "Mul"]),
        (quant(PER_CHANNEL), ["Div", "Round", "FakeQuantize", "Mul"]),
        (quant(zero_point=" z = {3}", signed=0), ["Div", "Add", "FakeQuantize", "Sub", "Mul"]),
        (
            quant(PER_CHANNEL, "[1, 3, 1] z = {0, 1.5, 9}"),
            ["Div", "Add", "Round", "FakeQuantize", "Sub", "Mul"],
        ),
        (quant(signed=0, bits=1), None),
        (quant(signed=1, bits=1), ["Div", "Sign", "FakeQuantize", "Mul"]),
        (quant(signed=1, bits=1, zero_point=" z = {0.5}"), None),
        (quant(bits=16), None),
        (quant(bits=16, signed=0), None),
        (quant(bits=17), None),
        (quant(" s = {-0.1}", bits=5), None),
        (quant(" s = {1e-42}", bits=5), None),
        *((quant(mode=mode, bits=5), None) for mode in MODES),
        *((quant(mode=mode, bits=5, zero_point=" z = {1.5}"), None) for mode in MODES),
        (pair("int8", 0.1, 0), ["Div", "Round", "FakeQuantize", "Mul"]),
        (pair("uint8", 0.1, 128), ["Div", "Round", "FakeQuantize", "Mul"]),
        (pair("uint8", 0.1, 0), ["Div", "FakeQuantize", "Mul"]),
        (pair("uint16", 0.001, 32768), None),
        (one_node("BipolarQuant", "float s = {0.3}", "s"), ["Sign", "FakeQuantize"]),
        (
            one_node("BipolarQuant", "float[1, 3, 1] s = {0.3, -2, 1e-3}", "s"),
            ["Sign", "FakeQuantize"],
        ),
        *(
            (
                one_node("Trunc", TRUNC, "s, z, i, t, o", f'<rounding_mode = "{mode}">'),
                None,
            )
            for mode in MODES
        ),
    ],
)
def test_quantizers(check_writer, near, text, ops):
    model, _ = check_writer(text, "openvino", near(points(), 3), ops=ops)
    (node,) = (node for node in model.ir.graph if node.op_type == "FakeQuantize")
    assert node.attributes["levels"].as_int() != REMOVED


def test_scales_that_may_enlarge_the_data_are_multiplied():
    """BipolarQuant broadcasts both ways, and FakeQuantize refuses ranges that enlarge its data."""
    model = load(
        ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["": 13, "{QONNX}": 2]>
        g (float[N, 3] x) => (float[M, 3] y) <float[2, 1] s = {{0.5, 2}}> {{
            y = {QONNX}.BipolarQuant (x, s)
        }}""")
    )
    model.apply(ConvertDialect(to="openvino"))
    assert [node.op_type for node in model.ir.graph] == ["Sign", "FakeQuantize", "Mul"]
    y = model.run({"x": np.asarray([[1, -1, 0]], np.float32)}, backend="numpy")["y"]
    np.testing.assert_array_equal(y, [[0.5, -0.5, 0.5], [2, -2, 2]])


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("signed", [0, 1])
def test_the_levels_are_the_codes(bits, signed):
    model = load(ir.from_onnx_text(quant(bits=bits, signed=signed)))
    model.apply(ConvertDialect(to="openvino"))
    (node,) = (node for node in model.ir.graph if node.op_type == "FakeQuantize")
    low, high = (value.const_value.numpy().item() for value in node.inputs[1:3])
    assert node.attributes["levels"].as_int() == 2**bits
    assert (low, high) == (-(2 ** (bits - 1)) * signed, 2 ** (bits - signed) - 1)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (
            one_node(
                "FloatQuant",
                "float s = {1}, float e = {4}, float m = {3}, float b = {7}, float h = {448}",
                "s, e, m, b, h",
            ),
            "evenly spaced",
        ),
        (
            one_node(
                "Trunc",
                "float s = {0.1}, float z = {0}, float i = {10}, float o = {4}",
                "s, z, i, o",
                '<rounding_mode = "FLOOR">',
            ),
            "does not clamp",
        ),
        (quant(bits=25), "more codes"),
    ],
)
def test_what_fake_quantize_cannot_say_is_refused(text, word):
    model = load(ir.from_onnx_text(text))
    (entry,) = model.apply(ConvertDialect(to="openvino"))
    assert entry.outcome is SiteStatus.REFUSED
    assert word in entry.reason
    assert "--to qonnx" in entry.reason


def test_ranges_never_enlarge_the_data():
    text = quant("[3, 1] s = {0.25, 0.5, 1}", data="4", signed=0).replace(
        "=> (float[4] y)", "=> (float[3, 4] y)"
    )
    model = load(ir.from_onnx_text(text))
    x = np.float32([0.3, 1, -2, 900])
    expected = model.run({"x": x}, backend="numpy")["y"]
    (entry,) = model.apply(ConvertDialect(to="openvino"))
    assert entry.outcome is SiteStatus.CHANGED
    (node,) = (node for node in model.ir.graph if node.op_type == "FakeQuantize")
    assert all(value.const_value.size == 1 for value in node.inputs[1:])
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


def test_blocks_are_an_axis_of_their_own(check_writer):
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        g (float[2, 8] x) => (float[2, 8] y)
        <float[2, 2] s = {0.1, 0.2, 0.3, 0.4}, uint4[2, 2] z = {0, 0, 0, 0}> {
            q = QuantizeLinear <axis = 1, block_size = 4> (x, s, z)
            y = DequantizeLinear <axis = 1, block_size = 4> (q, s, z)
        }"""
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    check_writer(text, "openvino", x, ops=["Reshape", "Div", "FakeQuantize", "Mul", "Reshape"])


def weights(values: np.ndarray, node: str) -> str:
    numbers = ", ".join(repr(float(v)) for v in values)
    return f"""
        <ir_version: 8, opset_import: ["": 13, "{QONNX}": 2]>
        g () => (float[{values.size}] y)
        <float[{values.size}] w = {{{numbers}}}, float s = {{0.37}}, float z = {{0}},
         float b = {{4}}, float e = {{2}}, float m = {{1}}, float c = {{1}}, float h = {{6}},
         float e3 = {{4}}, float m3 = {{3}}, float c3 = {{7}}, float h3 = {{448}}> {{
            y = {QONNX}.{node}
        }}"""


SAMPLE = np.random.default_rng(3).normal(size=40).astype(np.float32) * 2


@pytest.mark.parametrize(
    "node",
    [
        "Quant <signed = 1> (w, s, z, b)",
        'Quant <signed = 0, rounding_mode = "CEIL"> (w, s, z, b)',
        "BipolarQuant (w, s)",
        "FloatQuant (w, s, e, m, c, h)",
    ],
)
def test_constants_keep_their_values(check_writer, node):
    _, entry = check_writer(weights(SAMPLE, node), "openvino")
    assert "FakeQuantize" in entry.spelling


def test_constants_of_a_wide_minifloat_are_refused():
    text = weights(np.float32([448, 2**-9, -300]), "FloatQuant (w, z1, e3, m3, c3, h3)")
    text = text.replace("float z = {0}", "float z = {0}, float z1 = {1}")
    (entry,) = load(ir.from_onnx_text(text)).apply(ConvertDialect(to="openvino"))
    assert entry.outcome is SiteStatus.REFUSED
    assert f"{REMOVED} levels" in entry.reason


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_random_quantizers(check_writer, near, count):
    random = np.random.default_rng(11)
    for _ in range(count):
        bits = int(random.choice([1, 2, 3, 4, 5, 8, 9, 12, 16]))
        signed = int(random.integers(2))
        channels = 3 if random.random() < 0.5 else 1
        dims = "[1, 3, 1]" if channels == 3 else ""
        scale = np.float32(random.uniform(1e-3, 2, channels))
        if random.random() < 0.3:
            scale = np.exp2(random.integers(-9, 3, channels)).astype(np.float32)
        zero = np.float32(random.choice([0, 0, 1, 7, 2.5, -3], channels))
        mode = str(random.choice(MODES)) if random.random() < 0.4 else "ROUND"
        text = quant(
            f"{dims} s = {{{', '.join(repr(float(s)) for s in scale)}}}",
            f"{dims} z = {{{', '.join(repr(float(z)) for z in zero)}}}",
            bits,
            signed=signed,
            narrow=int(random.integers(2)),
            mode=mode,
        )
        ends = [-(2.0 ** (bits - 1)), 0, 2.0 ** (bits - 1), 2.0**bits]
        codes = np.concatenate([np.arange(-80, 80) / 2, *(e + np.arange(-9, 9) / 2 for e in ends)])
        steps = np.concatenate([codes - z for z in zero])
        check_writer(text, "openvino", near(steps[:, None] * scale.astype(np.float64), 3))


@pytest.mark.cases(fast=5, slow=9)
def test_real_models_become_fake_quantize(real_models, model_name):
    """Every quantizer is written, but minifloats on data, and those whose grid is too fine."""
    model = load(real_models[model_name])
    report = model.apply(ConvertDialect(to="openvino"))
    refused = [entry for entry in report if entry.outcome is SiteStatus.REFUSED]
    assert all(entry.op.endswith("FloatQuant") for entry in refused), refused
    assert len(refused) == {"brev_cnn_fp8e4m3": 7, "brev_mlp_fp4": 3}.get(model_name, 0)


def compiled(model: Model):
    """The model in OpenVINO, as written: no transformations for low precision."""
    core = openvino_core()
    loaded = core.read_model(io.BytesIO(ir.to_proto(model.ir).SerializeToString()))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": "NO"}
    return core.compile_model(loaded, "CPU", settings)


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize(
    "text",
    [
        quant(" s = {0.25}"),
        quant(" s = {0.25}", signed=0),
        quant(" s = {0.25}", " z = {3}", bits=4),
        quant(" s = {0.25}", " z = {2.5}", signed=0, mode="CEIL"),
        quant("[1, 3, 1] s = {0.25, 2, 0.125}", mode="FLOOR", bits=4),
        quant(" s = {0.0078125}", bits=16),
        pair("uint8", 0.25, 131),
        pair("uint16", 0.25, 0),
        one_node("BipolarQuant", "float s = {0.25}", "s"),
        one_node("Trunc", TRUNC.replace("0.1", "0.25").replace("6.4", "16"), "s, z, i, t, o"),
    ],
)
def test_openvino_computes_the_same(near, text):
    """With a power of two as scale its arithmetic is exact, so the values are the same."""
    model = load(ir.from_onnx_text(text))
    x = near(points(np.float64([0.25, 0.0078125, 2])), 3)
    x = x[:, :, np.isfinite(x[0, 0]) & (np.abs(x[0, 0]) > 1e-30)]
    expected = model.run({"x": x}, backend="numpy")["y"]
    model.apply(ConvertDialect(to="openvino"))
    np.testing.assert_array_equal(compiled(model)([x])["y"], expected)


@pytest.mark.slow
def test_openvino_loads_a_convolution_of_signs():
    """It makes binary convolutions of two levels, and ends with a segmentation fault."""
    text = f"""
        <ir_version: 8, opset_import: ["": 13, "{QONNX}": 1]>
        g (float[1, 2, 3, 3] x) => (float[1, 1, 3, 3] y)
        <float s = {{0.5}}, float[1, 2, 1, 1] w = {{3, -4}}> {{
            a = {QONNX}.BipolarQuant (x, s)
            b = {QONNX}.BipolarQuant (w, s)
            y = Conv (a, b)
        }}"""
    model = load(ir.from_onnx_text(text))
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 3)).astype(np.float32)
    expected = model.run({"x": x}, backend="numpy")["y"]
    model.apply(ConvertDialect(to="openvino"))
    np.testing.assert_array_equal(compiled(model)([x])["y"], expected)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("name", ["brev_cnn_w4a4", "nncfonnx_cnn_qdq_sym", "brev_mlp_w1a2_bipolar"])
def test_openvino_runs_real_models(real_models, name):
    """Its arithmetic is not that of the definitions, so that some values are a step apart."""
    model = load(real_models[name])
    (given,) = model.inputs
    sizes = [size if isinstance(size, int) else 8 for size in given.shape]
    x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    model.apply(ConvertDialect(to="openvino"))
    (expected,) = model.run({given.name: x}, backend="numpy").values()
    found = compiled(model)([x])[0]
    assert np.abs(found - expected).mean() < 0.1 * np.abs(expected).mean()


def test_both_domains_are_read():
    for domain in ("org.openvinotoolkit", ""):
        x = ir.val("x", dtype=ir.DataType.FLOAT, shape=[4])
        ends = [
            ir.val(name, const_value=ir.tensor(np.float32(v), name=name))
            for name, v in (("a", 0), ("b", 3))
        ]
        operands = [x, *ends, *ends]
        node = ir.node("FakeQuantize", operands, {"levels": 4}, domain=domain)
        graph = ir.Graph(
            [x], node.outputs, nodes=[node], initializers=ends, opset_imports={"": 13}, name="g"
        )
        (found,) = sites(ir.Model(graph, ir_version=8))
        assert isinstance(found, Site)
        assert found.dialect == "openvino"
    assert "openvino" in DIALECTS.names()

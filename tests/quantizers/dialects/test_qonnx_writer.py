"""The writer of QONNX: what each quantizer of the other dialects becomes, and that it is equal."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.edit import Editor
from qgraph.model import load
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

FQ = "org.openvinotoolkit.FakeQuantize"


def pair(
    kind: str,
    scale: str,
    zero_point: str,
    *,
    attributes: str = "",
    clip: tuple[int, int] | None = None,
    opset: int = 21,
    data: str = "1, 3, N",
) -> str:
    """A graph with QuantizeLinear, perhaps Clip, and DequantizeLinear on its input."""
    bounds = "" if clip is None else f", {kind} lo = {{{clip[0]}}}, {kind} hi = {{{clip[1]}}}"
    limited = "" if clip is None else "c = Clip (q, lo, hi)"
    codes = "q" if clip is None else "c"
    options = f"<{attributes}>" if attributes else ""
    return f"""
        <ir_version: 10, opset_import: ["": {opset}]>
        g (float[{data}] x) => (float[{data}] y)
        <float{scale}, {kind}{zero_point}{bounds}> {{
            q = QuantizeLinear {options} (x, s, z)
            {limited}
            y = DequantizeLinear {options} ({codes}, s, z)
        }}"""


def fake_quantize(
    low: str, high: str, levels: int, out: tuple[str, str] | None = None, data: str = "1, 3, N"
) -> str:
    """A graph with one FakeQuantize on its input; ends as in "[1, 3, 1] a = {0, 1, 2}"."""
    below, above = out or (low.replace(" a ", " c "), high.replace(" b ", " d "))
    return f"""
        <ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[{data}] x) => (float[{data}] y)
        <float{low}, float{high}, float{below}, float{above}> {{
            y = {FQ} <levels = {levels}> (x, a, b, c, d)
        }}"""


PER_CHANNEL = "[3] s = {0.1, 0.25, 3e-5}"


@pytest.mark.cases(fast=10)
@pytest.mark.parametrize(
    ("text", "ops"),
    [
        (pair("int8", " s = {0.1}", " z = {0}"), ["Quant"]),
        (pair("uint8", " s = {0.1}", " z = {0}"), ["Quant"]),
        (pair("int8", " s = {0.1}", " z = {0}", clip=(-8, 7)), ["Quant"]),
        (pair("int8", " s = {0.1}", " z = {0}", clip=(-127, 127)), ["Quant"]),
        (pair("uint8", " s = {0.1}", " z = {0}", clip=(0, 254)), ["Quant"]),
        (pair("int8", " s = {0.1}", " z = {0}", clip=(-5, 9)), ["Clip", "Quant"]),
        (pair("uint8", " s = {0.1}", " z = {3}", clip=(2, 9)), ["Clip", "Quant"]),
        (pair("uint8", " s = {0.1}", " z = {128}"), ["Quant"]),
        (pair("uint8", " s = {0.1}", " z = {127}"), ["Clip", "Quant"]),
        (pair("int8", " s = {0.1}", " z = {5}"), ["Clip", "Quant"]),
        (pair("int16", " s = {0.001}", " z = {0}"), ["Quant"]),
        (pair("uint16", " s = {0.001}", " z = {32768}"), ["Quant"]),
        (pair("uint16", " s = {0.001}", " z = {7}"), ["Clip", "Quant"]),
        (pair("int8", PER_CHANNEL, "[3] z = {0, 0, 0}", attributes="axis = 1"), ["Quant"]),
        (
            pair("uint8", PER_CHANNEL, "[3] z = {0, 9, 128}", attributes="axis = 1"),
            ["Max", "Min", "Quant"],
        ),
        (pair("int4", " s = {0.5}", " z = {0}"), ["Quant"]),
        (pair("uint4", " s = {0.5}", " z = {7}"), ["Clip", "Quant"]),
        (pair("int8", " s = {1e-42}", " z = {0}"), ["Quant"]),
        (pair("int8", " s = {-0.1}", " z = {5}"), ["Clip", "Quant"]),
    ],
)
def test_pairs(check_writer, near, text, ops):
    scales = np.float64([0.1, 0.25, 3e-5, 0.001, 0.5, 1e-42])
    steps = np.concatenate([np.arange(-262, 262) / 2, np.arange(-32775, -32760) / 2 * 2])
    _, entry = check_writer(text, "qonnx", near(steps[:, None] * scales, 3), ops=ops)
    assert entry.spelling == "+".join(ops)


@pytest.mark.cases(fast=1, slow=6)
@pytest.mark.parametrize(
    ("text", "ops"),
    [
        (fake_quantize(" a = {0}", " b = {255}", 256), ["Quant"]),
        (fake_quantize(" a = {0}", " b = {2.55}", 256), None),
        (fake_quantize(" a = {0}", " b = {6}", 15), None),
        (fake_quantize(" a = {-1}", " b = {0.9921875}", 256), None),
        (fake_quantize(" a = {-12.7}", " b = {12.7}", 255), None),
        (fake_quantize(" a = {-0.73}", " b = {1.21}", 256), None),
        (fake_quantize(" a = {-0.73}", " b = {1.21}", 15, (" c = {0}", " d = {255}")), None),
        (fake_quantize(" a = {3}", " b = {-2}", 16), None),
        (fake_quantize(" a = {0.5}", " b = {0.5}", 16, (" c = {-1}", " d = {1}")), None),
        (fake_quantize(" a = {0}", " b = {3}", 65536), None),
        (
            fake_quantize(
                "[1, 3, 1] a = {-1, 0, 2}",
                "[1, 3, 1] b = {1, 0, -2}",
                16,
                (" c = {-3}", " d = {5}"),
            ),
            None,
        ),
    ],
)
def test_fake_quantize_keeps_every_bit(check_writer, near, text, ops):
    points = np.arange(-260, 260) / 2
    scales = np.float64([1, 0.01, 6 / 14, 2**-7, 0.1, 1.94 / 255, 1.94 / 14, 1 / 3, 3 / 65535])
    x = near(points[:, None] * scales, 3)
    _, entry = check_writer(text, "qonnx", x, ops=ops, exactly=Exactness.VALUES)
    assert "Quant" in entry.spelling.split("+")


@pytest.mark.parametrize(
    ("kind", "widths"),
    [
        ("float8e4m3fn", (4, 3, 7, 448)),
        ("float8e4m3fnuz", (4, 3, 8, 240)),
        ("float8e5m2", (5, 2, 15, 57344)),
        ("float8e5m2fnuz", (5, 2, 16, 57344)),
    ],
)
def test_minifloats(check_writer, near, kind, widths):
    text = pair(kind, "[3] s = {1, 0.37, 3e-5}", "[3] z = {0, 0, 0}", attributes="axis = 1")
    exponents = np.exp2(np.arange(-20.0, 17.0))
    grid = np.unique(np.outer(exponents, 1 + np.arange(16) / 16))
    x = near(np.concatenate([grid, -grid])[:, None] * np.float64([1, 0.37, 3e-5]), 3)
    x[~np.isfinite(x)] = 1
    model, _ = check_writer(text, "qonnx", x, ops=["FloatQuant"])
    (node,) = model.ir.graph
    assert tuple(value.const_value.numpy().item() for value in node.inputs[2:]) == widths


def test_blocks_are_an_axis_of_their_own(check_writer):
    scales = ", ".join(str(0.1 * i) for i in range(1, 13))
    text = pair(
        "int4",
        f"[4, 3] s = {{{scales}}}",
        f"[4, 3] z = {{{', '.join(['0'] * 12)}}}",
        attributes="axis = 1, block_size = 4",
        data="4, 12",
    )
    x = np.random.default_rng(0).normal(size=(4, 12)).astype(np.float32) * 4
    model, _ = check_writer(text, "qonnx", x, ops=["Reshape", "Quant", "Reshape"])
    quant = model.ir.graph[1]
    assert quant.inputs[1].const_value.shape == (4, 3, 1)


def test_a_ragged_last_block_repeats_the_scale(check_writer):
    text = pair(
        "int8",
        "[2, 3] s = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}",
        "[2, 3] z = {0, 0, 0, 0, 0, 0}",
        attributes="axis = 1, block_size = 4",
        data="2, 11",
    )
    x = np.random.default_rng(0).normal(size=(2, 11)).astype(np.float32) * 40
    model, _ = check_writer(text, "qonnx", x, ops=["Quant"])
    assert model.ir.graph[0].inputs[1].const_value.shape == (2, 11)


def constant_model(kind: ir.DataType, codes: np.ndarray, scale: np.ndarray, **attributes: int):
    """A graph with one DequantizeLinear on stored codes."""
    stored = ir.val("w", const_value=ir.Tensor(codes, dtype=kind, name="w"))
    factor = ir.val("s", const_value=ir.tensor(np.asarray(scale, np.float32), name="s"))
    node = ir.node("DequantizeLinear", [stored, factor], attributes)
    y = node.outputs[0]
    y.name, y.type, y.shape = "y", ir.TensorType(ir.DataType.FLOAT), ir.Shape(codes.shape)
    graph = ir.Graph(
        [], [y], nodes=[node], initializers=[stored, factor], opset_imports={"": 21}, name="g"
    )
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("codes", "ops"),
    [
        (np.array([-3000, 0, 70000, -(2**23)], np.int32), ["Quant"]),
        (np.array([2**31 - 1, -(2**31), 2**30 + 1, 12345], np.int32), None),
        (np.array([-128, 127, 3, 0], np.int8), ["Quant"]),
    ],
)
def test_stored_codes_become_values(check_writer, codes, ops):
    kind = ir.DataType.from_numpy(codes.dtype)
    check_writer(constant_model(kind, codes, 0.0123), "qonnx", ops=ops)


def test_stored_blocks_are_held_as_blocks(check_writer):
    codes = np.random.default_rng(0).integers(-8, 8, (4, 32)).astype(np.int8)
    scale = np.random.default_rng(1).uniform(0.1, 1, (4, 2)).astype(np.float32)
    model = constant_model(ir.DataType.INT8, codes, scale, axis=1, block_size=16)
    result, _ = check_writer(model, "qonnx", ops=["Quant", "Reshape"])
    quant = result.ir.graph[0]
    assert [value.const_value.shape for value in quant.inputs[:2]] == [(4, 2, 16), (4, 2, 1)]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_random_pairs(check_writer, near, count):
    random = np.random.default_rng(7)
    for _ in range(count):
        kind = str(random.choice(["int8", "uint8", "int16", "uint16", "int4", "uint4"]))
        bits = int(kind.lstrip("uint"))
        lowest = 0 if kind[0] == "u" else -(1 << (bits - 1))
        channels = 3 if random.random() < 0.5 else 1
        scale = np.float32(random.uniform(1e-3, 2, channels))
        if random.random() < 0.3:
            scale = np.exp2(random.integers(-9, 3, channels)).astype(np.float32)
        zeros = random.integers(lowest, lowest + (1 << bits), channels)
        zeros = zeros if random.random() < 0.7 else zeros * 0
        dims = "[3]" if channels == 3 else ""
        numbers = ", ".join(repr(float(s)) for s in scale)
        clip = None
        if bits == 8 and random.random() < 0.5:
            clip = tuple(sorted(random.choice(np.arange(lowest, lowest + 256), 2, replace=False)))
        text = pair(
            kind,
            f"{dims} s = {{{numbers}}}",
            f"{dims} z = {{{', '.join(map(str, zeros))}}}",
            attributes="axis = 1" if channels == 3 else "",
            clip=clip,
        )
        ends = np.array([lowest, lowest + (1 << bits)])
        codes = np.concatenate(
            [np.arange(-300, 300) / 2, *(end + np.arange(-9, 9) / 2 for end in ends)]
        )
        steps = np.concatenate([codes, *(codes - zero for zero in zeros)])
        check_writer(text, "qonnx", near(steps[:, None] * scale.astype(np.float64), 3))


TRUNC = "qonnx.custom_op.general.Trunc"
FIRST = "x, s, z, i, b"
SECOND = "x, s, z, i, o, b"


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("mode", ["ROUND", "FLOOR", "CEIL", "UP", "DOWN"])
@pytest.mark.parametrize("inputs", [FIRST, SECOND])
@pytest.mark.parametrize("zero_point", [0, 3])
def test_trunc_in_both_versions(mode, inputs, zero_point):
    text = f"""
        <ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 2]>
        g (float[4] x) => (float[4] y)
        <float s = {{0.1}}, float z = {{{zero_point}}}, float i = {{8}}, float o = {{1.6}},
         float b = {{4}}> {{ y = {TRUNC} <rounding_mode = "{mode}", signed = 1> ({inputs}) }}"""
    model = ir.from_onnx_text(text)
    (site,) = sites(model)
    drafts = list(DIALECTS.find("qonnx").spellings(site, Editor(model)))
    assert drafts[0].spelling == "Trunc"
    assert len(drafts[0].nodes[0].inputs) == len(inputs.split(","))
    assert len(drafts) == (1 if inputs == FIRST else 2)
    for draft in drafts:
        verdict = Comparer(model).compare(site, draft)
        assert verdict.reaches(Exactness.VALUES), (draft.spelling, verdict)


@pytest.mark.cases(fast=5, slow=9)
def test_real_models_become_qonnx(real_models, model_name):
    """Every quantizer is written, and the network computes the same."""
    model = load(real_models[model_name])
    report = model.apply(ConvertDialect(to="qonnx"))
    refused = [entry for entry in report if entry.outcome is SiteStatus.REFUSED]
    assert not refused
    domains = {node.domain for node in model.nodes()}
    assert "org.openvinotoolkit" not in domains
    assert not any(node.op_type == "QuantizeLinear" for node in model.nodes())


def test_a_range_from_zero_has_a_zero_point_without_sign():
    """-0 would be another constant than the +0 that a model has already."""
    model = load(ir.from_onnx_text(fake_quantize(" a = {0}", " b = {4.7141414}", 4)))
    model.apply(ConvertDialect(to="qonnx"))
    (quant,) = model.nodes("Quant")
    zero_point = quant.inputs[2].const_value.numpy()
    assert zero_point == 0
    assert not np.signbit(zero_point).any()

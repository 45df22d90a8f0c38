"""Converting between dialects: what is written, and how equal it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.exactness import Exactness
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect


def quant(
    scale: float = 0.1,
    zero_point: float = 0,
    bits: int = 8,
    *,
    signed: int = 1,
    narrow: int = 0,
    mode: str = "ROUND",
) -> str:
    """A graph with one Quant on its input."""
    return f"""
        <ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
        g (float[1, 4, 500] x) => (float[1, 4, 500] y)
        <float s = {{{scale}}}, float z = {{{zero_point}}}, float b = {{{bits}}}> {{
            y = qonnx.custom_op.general.Quant
                <signed = {signed}, narrow = {narrow}, rounding_mode = "{mode}"> (x, s, z, b)
        }}"""


def fake_quantize(
    low: float, high: float, levels: int, out: tuple[float, float] | None = None
) -> str:
    """A graph with one FakeQuantize on its input."""
    below, above = out or (low, high)
    return f"""
        <ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
        g (float[2000] x) => (float[2000] y)
        <float a = {{{low}}}, float b = {{{high}}}, float c = {{{below}}}, float d = {{{above}}}> {{
            y = org.openvinotoolkit.FakeQuantize <levels = {levels}> (x, a, b, c, d)
        }}"""


def site(report):
    (entry,) = report.sites
    return entry


@pytest.mark.cases(fast=7, slow=16)
@pytest.mark.parametrize(
    ("text", "ops"),
    [
        (quant(), ["QuantizeLinear", "DequantizeLinear"]),
        (quant(signed=0), ["QuantizeLinear", "DequantizeLinear"]),
        (quant(narrow=1), ["QuantizeLinear", "Clip", "DequantizeLinear"]),
        (quant(signed=0, narrow=1), ["QuantizeLinear", "Clip", "DequantizeLinear"]),
        (quant(bits=4), ["QuantizeLinear", "Clip", "DequantizeLinear"]),
        (quant(bits=3, signed=0), ["QuantizeLinear", "Clip", "DequantizeLinear"]),
        (quant(bits=12), ["Clip", "QuantizeLinear", "DequantizeLinear"]),
        (quant(bits=16), ["QuantizeLinear", "DequantizeLinear"]),
        (quant(zero_point=3), ["Div", "Add", "QuantizeLinear", "DequantizeLinear"]),
        (quant(zero_point=127, signed=0), ["Div", "Add", "QuantizeLinear", "DequantizeLinear"]),
        (
            quant(zero_point=0.3, bits=4),
            ["Div", "Add", "Clip", "QuantizeLinear", "DequantizeLinear", "Sub", "Mul"],
        ),
        (quant(mode="FLOOR"), ["Div", "Floor", "QuantizeLinear", "DequantizeLinear"]),
        (quant(mode="ceil"), ["Div", "Ceil", "QuantizeLinear", "DequantizeLinear"]),
        (quant(bits=24), None),
        (quant(bits=1), None),
        (quant(mode="HALF_UP"), None),
        (quant(mode="DOWN", zero_point=5, signed=0), None),
        (fake_quantize(0, 255, 256), None),
        (fake_quantize(0, 2.55, 256), None),
        (fake_quantize(0, 6, 256), None),
        (fake_quantize(-1, 0.9921875, 256), None),
        (fake_quantize(-12.7, 12.7, 255), None),
        (fake_quantize(-0.73, 1.21, 256), None),
        (fake_quantize(-0.73, 1.21, 15, (0, 255)), None),
        (fake_quantize(3, -2, 16), None),
        (fake_quantize(0.5, 0.5, 16), None),
    ],
)
def test_to_qdq_is_exact(check_pass, text, ops):
    _, report = check_pass(ConvertDialect(to="qdq"), text, ops=ops)
    assert site(report).outcome is SiteStatus.CHANGED


@pytest.mark.parametrize(
    "text",
    [
        quant(mode=mode, zero_point=1.5)
        for mode in ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
    ]
    + [fake_quantize(-0.73, 1.21, 256), fake_quantize(3, -2, 16)],
)
def test_to_plain_operators_is_exact_to_the_bit(check_pass, text):
    _, report = check_pass(
        ConvertDialect(to="onnx", exact=Exactness.BITS), text, exactly=Exactness.BITS
    )
    assert site(report).outcome is SiteStatus.CHANGED


def test_the_number_of_inputs_that_move_is_counted(check_pass):
    # 263 and 912: section 10.2 of the semantics, the latter confirmed on all 2**32 inputs
    for text, count in (
        (quant(zero_point=1, signed=0), 263),
        (quant(zero_point=128, signed=0), 912),
    ):
        _, report = check_pass(
            ConvertDialect(to="qdq", exact=Exactness.NEAR),
            text,
            ops=["QuantizeLinear", "DequantizeLinear"],
            exactly=Exactness.NEAR,
        )
        entry = site(report)
        assert entry.verdict.differing_inputs == count
        assert entry.verdict.witness.reference != entry.verdict.witness.candidate


def test_ranges_that_differ_give_a_pair_with_two_zero_points(check_pass):
    model, _ = check_pass(
        ConvertDialect(to="qdq", exact=Exactness.NEAR),
        fake_quantize(-1, 0.9921875, 256, (0, 255)),
        ops=["QuantizeLinear", "DequantizeLinear"],
        exactly=Exactness.NEAR,
    )
    quantize, dequantize = model.ir.graph
    assert quantize.inputs[2].const_value.numpy() == 128
    assert len(dequantize.inputs) == 2


def test_the_import_of_a_domain_goes_with_its_last_node(check_pass):
    model, _ = check_pass(ConvertDialect(to="qdq"), quant())
    assert model.ir.opset_imports == {"": 13}


def test_scales_that_are_codes_themselves_are_read():
    """Codes 1 and -0.5 times scales 2 and 4, which are codes 4 and 8 of scale 0.5."""
    proto = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["": 23]>
    net (float[N,2] x) => (float[N,2] y) <float h = {0.5}> {
        s = DequantizeLinear (c, h)
        v = DequantizeLinear <axis = 1, block_size = 2> (w, s)
        y = MatMul (x, v)
    }""")
    kinds = onnx.TensorProto
    proto.graph.initializer.extend(
        [
            onnx.helper.make_tensor("c", kinds.FLOAT8E4M3FN, [2, 1], [4.0, 8.0]),
            onnx.helper.make_tensor("w", kinds.FLOAT4E2M1, [2, 2], [1.0, 1.0, -0.5, 1.0]),
        ]
    )
    x = {"x": np.float32([[1, 0], [0, 1]])}
    for dialect in ("qdq", "qonnx", "openvino", "onnx"):
        model = qgraph.load(proto)
        report = qgraph.convert(model, to=dialect)
        refused = [site.reason for site in report if site.outcome == "refused"]
        assert all("--to qonnx has an equal form" in reason for reason in refused), dialect
        assert model.run(x, backend="numpy")["y"].tolist() == [[2, 2], [-2, 4]]

"""What holds for every dialect: it reads back what it wrote, and leaves alone what is not its."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.model import load
from qgraph.quantizers.dialects.dialect import DIALECTS, Refusal, Site
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

HEADER = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1,
             "org.openvinotoolkit": 1]>
    g (float[2, 4, 3, 3] x) => (float[2, 4, 3, 3] y)"""

PER_TENSOR = f"""{HEADER} <float s = {{0.25}}, float z = {{0}}, float b = {{4}}> {{
    y = qonnx.custom_op.general.Quant <signed = 1, narrow = 1> (x, s, z, b) }}"""

PER_CHANNEL = f"""{HEADER}
    <float[1, 4, 1, 1] s = {{0.25, 0.3, 0.01, 2}}, float z = {{0}}, float b = {{8}}> {{
    y = qonnx.custom_op.general.Quant <signed = 0> (x, s, z, b) }}"""

RANGED = f"""{HEADER} <float low = {{0}}, float high = {{255}}> {{
    y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high) }}"""

BIPOLAR = f"""{HEADER} <float s = {{0.5}}> {{ y = qonnx.custom_op.general.BipolarQuant (x, s) }}"""

FLOATING = f"""{HEADER} <float s = {{0.5}}, float e = {{4}}, float m = {{3}}, float c = {{7}},
    float h = {{448}}> {{
    y = qonnx.custom_op.general.FloatQuant <has_nan = 1> (x, s, e, m, c, h) }}"""


def only_site(model: ir.Model) -> Site:
    (found,) = sites(model)
    assert isinstance(found, Site), found
    return found


def same(a: object, b: object) -> bool:
    """Equal parameters, however broadcast."""
    if type(a) is not type(b):
        return False
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            if not np.array_equal(*np.broadcast_arrays(left, right)):
                return False
        elif field.name not in ("recipe", "format") and left != right:
            return False
    return True


@pytest.mark.parametrize(
    ("text", "to"),
    [
        (PER_TENSOR, "qdq"),
        (PER_TENSOR, "onnx"),
        (PER_CHANNEL, "qdq"),
        (PER_CHANNEL, "onnx"),
        (FLOATING, "qdq"),
    ],
)
def test_what_is_written_is_read_back_with_the_same_parameters(text, to):
    model = load(ir.from_onnx_text(text))
    before = only_site(model.ir).quantizer
    report = model.apply(ConvertDialect(to=to))
    assert report.count(SiteStatus.CHANGED) == 1, report
    after = only_site(model.ir)
    assert after.dialect == to
    assert same(before, after.quantizer)


@pytest.mark.cases(fast=8)
@pytest.mark.parametrize("text", [PER_TENSOR, PER_CHANNEL, RANGED, BIPOLAR, FLOATING])
@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino", "onnx"])
def test_there_and_back_computes_the_same_values(text, to):
    model = load(ir.from_onnx_text(text))
    home = only_site(model.ir).dialect
    x = np.float32(np.random.default_rng(1).normal(size=(2, 4, 3, 3)) * 3)
    expected = model.run({"x": x}, backend="numpy")["y"]
    model.apply(ConvertDialect(to=to), ConvertDialect(to=home))
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.parametrize("name", DIALECTS.names())
def test_converting_to_the_dialect_itself_changes_nothing(name):
    text = {"openvino": RANGED, "qonnx": PER_TENSOR}.get(name, PER_TENSOR)
    model = load(ir.from_onnx_text(text))
    model.apply(ConvertDialect(to=name))
    before = ir.to_onnx_text(model.ir)
    report = model.apply(ConvertDialect(to=name))
    assert report.count(SiteStatus.CHANGED) == 0
    assert ir.to_onnx_text(model.ir) == before


@pytest.mark.parametrize("entry", list(DIALECTS), ids=lambda entry: entry.name)
def test_a_dialect_reads_none_of_the_others_operators(entry):
    for other in DIALECTS:
        if other.name != entry.name:
            assert not entry.roots & other.roots


@pytest.mark.parametrize("entry", list(DIALECTS), ids=lambda entry: entry.name)
def test_a_dialect_is_documented(entry):
    assert entry.__doc__
    assert entry.reason(only_site(ir.from_onnx_text(PER_TENSOR)))


def test_ordinary_float_arithmetic_is_not_taken_for_a_quantizer():
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (float[4] x) => (float[4] y) <float a = {2}, float b = {3}> {
            t = Div (x, a) r = Round (t) y = Mul (r, b) }"""
    assert list(sites(ir.from_onnx_text(text))) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = qonnx.custom_op.general.Quant <signed = 1> (x, w, z, b)", "not a constant"),
        ('y = qonnx.custom_op.general.Quant <rounding_mode = "SIDEWAYS"> (x, s, z, b)', "SIDEWAYS"),
        ("y = org.openvinotoolkit.FakeQuantize (x, s, z, s, z)", "levels"),
        (
            "q = QuantizeLinear (x, s) y = Cast <to = 1> (q)",
            "not to a DequantizeLinear",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(body, reason):
    text = f"""<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1,
            "org.openvinotoolkit": 1]>
        g (float[4] x, float w) => (float[4] y)
        <float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{ {body} }}"""
    found = [entry for entry in sites(ir.from_onnx_text(text)) if isinstance(entry, Refusal)]
    assert len(found) == 1
    assert reason in found[0].reason

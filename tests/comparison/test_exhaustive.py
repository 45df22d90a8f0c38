"""Data of 16 bits: every value is tried."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Editor
from qgraph.model import Model, load
from qgraph.numerics.values import is_nan
from qgraph.proof.functions.enumeration import enumerate_values
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

KINDS = [ir.DataType.FLOAT16, ir.DataType.BFLOAT16]


def in_type(model: ir.Model, kind: ir.DataType) -> ir.Model:
    """Cast a model in float32, since the text parser has no constants of 16 bits."""
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        if value.dtype is ir.DataType.FLOAT:
            value.type = ir.TensorType(kind)
            if value.const_value is not None:
                array = value.const_value.numpy().astype(kind.numpy())
                value.const_value = ir.Tensor(array, name=value.name)
    return model


def half_model(body: str, kind: ir.DataType, shape: str = "[2, 3, 8]") -> Model:
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 22,
            "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1]>
        g (float{shape} x) => (float{shape} y)
        <float s = {{0.1}}, float[3, 1] t = {{0.25, 0.3, 2}}, float zero = {{0}}, float z = {{3}},
         float b = {{8}}, int8 i = {{0}}, float l = {{-1}}, float h = {{1}}> {{ {body} }}""")
    return load(in_type(model, kind))


def all_values(model: Model, kind: ir.DataType) -> np.ndarray:
    x = np.arange(1 << 16, dtype=np.uint16).view(kind.numpy())
    model.ir.graph.inputs[0].shape = ir.Shape([1 << 16, 3, 1])
    return np.ascontiguousarray(np.broadcast_to(x[:, None, None], (1 << 16, 3, 1)))


@pytest.mark.cases(fast=6)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("body", "to"),
    [
        ("y = qonnx.custom_op.general.Quant (x, s, zero, b)", "qdq"),
        ("y = qonnx.custom_op.general.Quant (x, t, zero, b)", "qdq"),
        ("y = qonnx.custom_op.general.Quant (x, s, z, b)", "onnx"),
        ('y = qonnx.custom_op.general.Quant <rounding_mode = "FLOOR"> (x, s, z, b)', "qdq"),
        ("y = qonnx.custom_op.general.BipolarQuant (x, t)", "qdq"),
        ("q = QuantizeLinear (x, s, i) y = DequantizeLinear (q, s, i)", "onnx"),
        ("q = QuantizeLinear (x, s, i) y = DequantizeLinear (q, s, i)", "qonnx"),
        ("y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, l, h, l, h)", "onnx"),
    ],
)
def test_what_is_claimed_holds_for_all_values(body, to, kind):
    model = half_model(body, kind)
    original = model.clone()
    (entry,) = model.apply(ConvertDialect(to=to, opset=22))
    assert entry.outcome is SiteStatus.CHANGED, entry
    assert entry.verdict.method is Method.EXHAUSTIVE
    assert entry.verdict.exactness >= Exactness.VALUES
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
    with np.errstate(all="ignore"):
        expected, found = (
            side.run({"x": all_values(side, kind)}, backend="numpy")["y"].astype(np.float32)
            for side in (original, model)
        )
    numbers = ~np.isnan(all_values(model, kind).astype(np.float32))
    np.testing.assert_array_equal(found[numbers], expected[numbers])


def pair(model: Model, scale: float, zero_point: int) -> Verdict:
    """Compare the only site of a model with a plain pair."""
    (site,) = sites(model.ir)
    assert isinstance(site, Site)
    draft = Editor(model.ir).draft(site)
    operands = [draft.constant(np.float32(scale)), draft.constant(np.int8(zero_point))]
    codes = draft.node("QuantizeLinear", [draft.x, *operands])
    draft.giving(draft.node("DequantizeLinear", [codes, *operands]))
    return Comparer(model.ir).compare(site, draft)


def test_differences_are_counted():
    model = half_model("y = qonnx.custom_op.general.Quant (x, s, z, b)", ir.DataType.FLOAT16)
    verdict = pair(model, 0.1, 3)
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x, s, z = x[~np.isnan(x)], np.float16(0.1), np.float16(3)
    with np.errstate(all="ignore"):
        offset_first = (np.rint(np.clip(x / s + z, -128, 127)) - z) * s
        round_first = (np.clip(np.rint(x / s), -131, 124) + z - z) * s
    assert verdict.method is Method.EXHAUSTIVE
    assert verdict.differing_inputs == np.count_nonzero(offset_first != round_first) > 0
    assert verdict.witness.reference != verdict.witness.candidate
    assert verdict.exactness < Exactness.VALUES


def test_it_is_undecided_where_no_axis_is_left_for_all_inputs():
    model = half_model(
        "y = qonnx.custom_op.general.Quant (x, t, zero, b)", ir.DataType.FLOAT16, "[3, 1]"
    )
    model.ir.graph.initializers["t"].const_value = ir.Tensor(np.ones(3, np.float16), name="t")
    model.ir.graph.initializers["t"].shape = ir.Shape([3])
    model.ir.graph.inputs[0].shape = ir.Shape([3])
    (entry,) = model.apply(ConvertDialect(to="qdq"))
    assert entry.outcome is SiteStatus.REFUSED
    assert "along every axis" in entry.reason


def test_bfloat16_rounds_since_opset_22_only():
    model = half_model("y = qonnx.custom_op.general.Quant (x, s, z, b)", ir.DataType.BFLOAT16)
    model.ir.opset_imports[""] = 21
    (entry,) = model.apply(ConvertDialect(to="onnx"))
    assert entry.outcome is SiteStatus.REFUSED
    assert "22" in entry.reason


def test_nan_that_becomes_a_number_is_no_equality_in_bits():
    kind = ir.DataType.FLOAT16
    runs = [lambda x: x, lambda x: np.where(is_nan(x), x.dtype.type(1), x)]
    kept, replaced = (enumerate_values(kind, [runs[0], run], [1], 0).verdict for run in runs)
    assert (kept.exactness, kept.nan_differs) == (Exactness.BITS, False)
    assert (replaced.exactness, replaced.nan_differs) == (Exactness.VALUES, True)
    assert replaced.differing_inputs == replaced.zero_sign_inputs == 0

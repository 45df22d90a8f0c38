"""Verdicts on drafts: proved, counted or undecided, never wrong."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Editor
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites

QUANT = """<ir_version: 8, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    g ({data} x) => (float[4] y)
    <{weight} float s = {{{scale}}}, float z = {{{zero_point}}}, float b = {{{bits}}}> {{
        y = qonnx.custom_op.general.Quant <signed = {signed}> ({x}, s, z, b)
    }}"""


def site_of(scale=0.1, zero_point=0, bits=8, signed=1, data="float[4]", weight="", x="x"):
    text = QUANT.format(
        scale=scale, zero_point=zero_point, bits=bits, signed=signed, data=data, weight=weight, x=x
    )
    model = ir.from_onnx_text(text)
    (site,) = sites(model)
    assert isinstance(site, Site)
    return model, site


def pair(model: ir.Model, site: Site, scale: float, zero_point: int, dtype=np.int8) -> Draft:
    draft = Editor(model).draft(site)
    operands = [draft.constant(np.float32(scale)), draft.constant(dtype(zero_point))]
    codes = draft.node("QuantizeLinear", [draft.x, *operands])
    return draft.giving(draft.node("DequantizeLinear", [codes, *operands]))


def test_an_undecided_verdict_reaches_no_level():
    assert Verdict(Exactness.VALUES).reaches(Exactness.CODES)
    assert not Verdict(Exactness.VALUES).reaches(Exactness.BITS)
    assert not Verdict(None).reaches(Exactness.DIFFERENT)


def test_the_plain_pair_is_equal_but_for_nan_and_the_sign_of_zero():
    model, site = site_of()
    verdict = Comparer(model).compare(site, pair(model, site, 0.1, 0))
    assert (verdict.exactness, verdict.method) == (Exactness.VALUES, Method.INTERVALS)
    assert verdict.differing_inputs == 0
    # counted by running all 2**32 inputs
    assert verdict.zero_sign_inputs == 1_028_443_341
    assert "NaN" in verdict.reason


def test_a_zero_point_moves_exactly_so_many_inputs():
    model, site = site_of(scale=0.25, zero_point=127, signed=0)
    verdict = Comparer(model).compare(site, pair(model, site, 0.25, 127, np.uint8))
    # 1150: confirmed on all 2**32 inputs
    assert (verdict.exactness, verdict.differing_inputs) == (Exactness.NEAR, 1150)
    x, y0, y1 = (np.float32(v) for v in vars(verdict.witness).values())
    s, z = np.float32(0.25), np.float32(127)
    assert (np.rint(np.clip(x / s + z, 0, 255)) - z) * s == y0
    assert (np.clip(np.rint(x / s) + z, 0, 255) - z) * s == y1
    assert y0 != y1


@pytest.mark.parametrize("scale", [np.nextafter(np.float32(0.1), np.float32(1)), 0.2])
def test_another_scale_is_found(scale):
    model, site = site_of()
    verdict = Comparer(model).compare(site, pair(model, site, scale, 0))
    assert verdict.differing_inputs > 0
    assert verdict.exactness < Exactness.VALUES


def test_a_constant_is_compared_element_by_element():
    weight = "float[4] w = {0.1, 0.2, -0.3, 0.44},"
    model, site = site_of(weight=weight, x="w")
    comparer = Comparer(model)
    assert comparer.compare(site, pair(model, site, 0.1, 0)).method is Method.CONSTANT
    assert comparer.compare(site, pair(model, site, 0.1, 0)).exactness >= Exactness.VALUES
    wrong = comparer.compare(site, pair(model, site, 0.2, 0))
    # 0.1 and -0.3 are no multiples of 0.2
    assert wrong.exactness is Exactness.DIFFERENT
    assert wrong.differing_inputs == 2
    assert wrong.witness.input == np.float32(0.1)


def test_types_of_64_bits_are_not_claimed():
    model, site = site_of(data="double[4]")
    verdict = Comparer(model).compare(site, pair(model, site, 0.1, 0))
    assert verdict.exactness is None
    assert "DOUBLE" in verdict.reason


def test_data_of_unknown_type_is_float32_only_where_nothing_else_occurs():
    model, site = site_of()
    site.x.type = None
    assert Comparer(model).compare(site, pair(model, site, 0.1, 0)).exactness is Exactness.VALUES
    half = ir.Value(name="h", const_value=ir.tensor(np.float16([1]), name="h"))
    half.type, half.shape = ir.TensorType(ir.DataType.FLOAT16), ir.Shape([1])
    model.graph.register_initializer(half)
    assert Comparer(model).compare(site, pair(model, site, 0.1, 0)).exactness is None


def test_an_operator_without_definition_is_undecided():
    model, site = site_of()
    draft = Editor(model).draft(site)
    draft.giving(draft.node("Exp", [draft.x]))
    verdict = Comparer(model).compare(site, draft)
    assert verdict.exactness is None
    assert "Exp" in verdict.reason

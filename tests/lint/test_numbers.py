"""Numbers that rules compare, where they come from formulas, on both sides of the limit."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.lint.engine import LintReport, lint


def layer(rule: str, *, zero: int = 0, bias_scale: str = "0.25", size: int = 2) -> LintReport:
    """Return what a rule finds in a product of codes and weights 127, with a bias of codes."""
    return lint(
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,{size}] x) => (float[1,1] y)
        <float s = {{0.5}}, int8 z = {{{zero}}}, int8[{size},1] w = {{{", ".join(["127"] * size)}}},
         int8 o = {{0}}, int32[1] c = {{3}}, float t = {{{bias_scale}}}, int32 n = {{0}}> {{
            a = DequantizeLinear (x, s, z)
            v = DequantizeLinear (w, s, o)
            b = DequantizeLinear (c, t, n)
            y = Gemm (a, v, b)
        }}"""),
        select=rule,
    )


@pytest.mark.parametrize(("zero", "extent"), [(0, 128), (100, 228), (-100, 227)])
def test_the_largest_sum_is_that_of_the_code_farthest_from_the_zero_point(zero, extent):
    (finding,) = layer("QG124", zero=zero, size=1200)
    assert finding.figures["largest_sum"] == 1200 * 127 * extent + 3


@pytest.mark.parametrize("ulps", [0, 1, 2, 5])
def test_a_bias_scale_may_be_off_by_one_ulp(ulps):
    scale = np.float32(0.25)
    for _ in range(ulps):
        scale = np.nextafter(scale, np.float32(1))
    found = layer("QG112", bias_scale=f"{float(scale)!r}")
    assert [finding.figures["ulps"] for finding in found] == ([ulps] if ulps > 1 else [])


@pytest.mark.parametrize(
    ("zero", "is_outside"), [(-129, True), (-128, False), (127, False), (128, True)]
)
def test_a_range_on_either_side_of_zero_does_not_hold_it(zero, is_outside):
    quant = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21,
        "qonnx.custom_op.general": 2]> net (float[2] x) => (float[2] y)
        <float s = {{0.1}}, float z = {{{zero}}}, float b = {{8}}> {{
            y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
        }}""")
    found = [finding.figures for finding in lint(quant, select="QG106")]
    assert bool(found) == is_outside
    for figures in found:
        ends = (-128 - zero) * 0.1, (127 - zero) * 0.1
        assert (figures["low"], figures["high"]) == pytest.approx(ends, abs=1e-4)

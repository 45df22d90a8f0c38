"""Stored codes with parameters of blocks, which are repeated only where somebody asks for them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph import load
from qgraph.numerics import blocks
from qgraph.quantizers.dialects import qdq
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.sites import sites
from qgraph.transforms import parse_spec

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (float[N,3] x) => (float[N,2] y)
    <int8[3,2] w = {1, -2, 3, 4, -5, 6}, float[2,2] s = {0.5, 1, 2, 4},
     int8[2,2] z = {ZERO}> {
        [weight] d = DequantizeLinear <axis = 0, block_size = 2> (w, s, z)
        y = MatMul (x, d)
    }"""


@pytest.fixture(autouse=True)
def every_weight_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdq, "_FEW", 0)


def model(zero: str = "7, 7, 7, 7") -> ir.Model:
    return ir.from_onnx_text(TEXT.replace("ZERO", zero))


@pytest.mark.parametrize(
    ("zero", "expected"),
    [("7, 7, 7, 7", [[7, 7]] * 3), ("0, 1, 2, 3", [[0, 1], [0, 1], [2, 3]])],
)
def test_parameters_are_repeated_along_the_blocks(zero, expected):
    (site,) = sites(model(zero))
    assert isinstance(site, Site)
    assert site.quantizer.scale.tolist() == [[0.5, 1], [0.5, 1], [2, 4]]
    assert site.quantizer.zero_point.tolist() == expected


@pytest.mark.parametrize("spec", ["convert{to=qdq}", "fold-weights"])
def test_what_is_kept_repeats_nothing(spec, monkeypatch):
    align = blocks.align

    def as_stored(*given, expands):
        assert not expands
        return align(*given, expands=expands)

    monkeypatch.setattr(blocks, "align", as_stored)
    report = load(model()).apply(parse_spec(spec))
    assert [(each.node, str(each.outcome)) for each in report.sites] == [("weight", "kept")]


def test_scales_of_another_shape_are_refused_when_the_model_is_read():
    wrong = model()
    wrong.graph.initializers["s"].const_value = ir.tensor([[0.5, 1.0]], name="s")
    (refused,) = sites(wrong)
    assert isinstance(refused, Refusal)
    assert "blocks of 2 along axis 0" in refused.reason or "zero point" in refused.reason

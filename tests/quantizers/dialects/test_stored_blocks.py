"""Stored codes with parameters of blocks, which are repeated only where somebody asks for them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import load
from qgraph.inventory.description import descriptions
from qgraph.inventory.info import quantizer_info
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


@pytest.mark.cases(fast=8)
@pytest.mark.parametrize("seed", range(24))
def test_a_description_does_not_depend_on_whether_parameters_are_repeated(seed, monkeypatch):
    random = np.random.default_rng(seed)
    shape, axis = tuple(int(n) for n in random.integers(1, 9, 3)), int(random.integers(3))
    size = int(random.integers(1, shape[axis] + 2))
    counts = [-(-n // size) if i == axis else n for i, n in enumerate(shape)]
    scale = random.choice(np.float32([0.5, 0.25, 3]), counts)
    points = random.integers(-3, 4, counts).astype(np.int8) * (seed % 2)
    if seed % 3 == 0:
        scale, points = scale[:1, :1, :1] + 0 * scale, points[..., :1] + 0 * points
    codes = random.integers(-1, 2 + seed, shape).astype(np.int8)
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        net (float x) => (float y) <int8[1] w = {{0}}, float[1] s = {{0}}, int8[1] z = {{0}}> {{
            d = DequantizeLinear <axis = {axis}, block_size = {size}> (w, s, z)
            y = Mul (x, d)
        }}"""
    model = ir.from_onnx_text(text)
    for name, array in (("w", codes), ("s", scale), ("z", points)):
        value = model.graph.initializers[name]
        value.const_value, value.shape = ir.tensor(array, name=name), ir.Shape(array.shape)
    found = []
    for few in (0, 1 << 30):
        monkeypatch.setattr(qdq, "_FEW", few)
        (described,) = descriptions(model)
        (site,) = sites(model)
        found.append((described.description, quantizer_info(site, 21)))
        assert described.description.reason is None
    assert found[0] == found[1]

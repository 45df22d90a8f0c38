"""A Resize may keep the size of an axis and move its elements: floor(i / 1.2) is 0, 0, 1, 2."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph

RESIZE = (
    'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",'
    ' nearest_mode = "floor"{}> ({{}}, , {})'
)


def model(order: str, scales: str, attributes: str = "") -> ir.Model:
    """Return numbers that are resized before, or behind, a factor for each column."""
    resize = RESIZE.format(attributes, "s").format
    nodes = {
        "first": f"v = {resize('a')} r = Mul (v, k)",
        "behind": f"v = Mul (a, k) r = {resize('v')}",
    }[order]
    count = scales.count(",") + 1
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,1,4,4] x) => (int8[1,1,4,4] y)
        <float[{count}] s = {{{scales}}}, float[4] k = {{0.05, 0.2, 0.4, 0.8}}, float u = {{0.3}},
         int8 z = {{3}}> {{
            a = DequantizeLinear (x, u, z) {nodes} y = QuantizeLinear (r, u, z)
        }}""")


def farthest(models: list[ir.Model]) -> int:
    codes = np.random.default_rng(0).integers(-128, 128, (1, 1, 4, 4)).astype(np.int8)
    ours, theirs = (qgraph.load(m).run({"x": codes}, backend="numpy")["y"] for m in models)
    return int(np.abs(ours.astype(int) - theirs).max())


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("scales", "attributes"), [("1, 1, 1, 1.2", ""), ("1.2", ", axes = [3]")])
def test_elements_move_along_an_axis_that_keeps_its_size(scales, attributes):
    pair = [model(order, scales, attributes) for order in ("first", "behind")]
    assert farthest(pair) > 1
    assert qgraph.prove(*pair, within="1step").verdict != "bounded"


@pytest.mark.parametrize(("scales", "attributes"), [("1, 1, 1.2, 1", ""), ("1.2", ", axes = [2]")])
def test_elements_stay_along_an_axis_that_is_not_scaled(scales, attributes):
    pair = [model(order, scales, attributes) for order in ("first", "behind")]
    proved = qgraph.prove(*pair, within="1step")
    assert proved.verdict in ("proved", "bounded")
    assert not proved.beyond
    assert farthest(pair) == 0

"""Quantizers that cannot be spelled with the operators around them are spelled without these."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import parts, sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'
CASES = {
    "a rounding": f"r = Round (x) y = {QUANT} (r, one, one, b)",
    "a grid": f"d = Div (x, t) r = Round (d) y = {QUANT} (r, one, one, b)",
}
"""What belongs to the quantizer that follows, whose zero point then tells which ties are even."""
CONSTANTS = "float t = {0.3}, float one = {1}, float b = {4}"


def model_of(body: str) -> Model:
    text = f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[N] x) => (float[N] y) <{CONSTANTS}> {{ {body} }}"""
    return load(ir.from_onnx_text(text))


def inputs() -> np.ndarray:
    """Around every multiple of an eighth and of 0.15, and far away."""
    near = np.concatenate([np.arange(-40, 40) * np.float32(step) for step in (0.125, 0.15)])
    near = near.astype(np.float32)
    beside = [np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf)]
    far = np.array([0, -0.0, 1e-40, 3e38, -3e38, np.inf, -np.inf], np.float32)
    return np.concatenate([near, *beside, far])


@pytest.mark.parametrize("case", CASES)
def test_it_is_spelled_without_them(case):
    model = model_of(CASES[case])
    x = inputs()
    expected = model.run({"x": x}, backend="numpy")["y"]
    report = model.apply(ConvertDialect(to="openvino"))
    assert [entry.outcome for entry in report] == [SiteStatus.CHANGED], report
    assert report.exactness >= Exactness.VALUES
    names = [node.op_type for node in model.ir.graph]
    assert names[: names.index("Round") + 1] == ["Div", "Round"][-names.index("Round") - 1 :]
    assert "Quant" not in names
    assert names.count("FakeQuantize") == 1
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.parametrize("case", CASES)
def test_parts_are_smaller_than_what_they_are_part_of(case):
    (site,) = sites(model_of(CASES[case]).ir)
    assert isinstance(site, Site)
    (part,) = parts(site)
    assert part.dialect == site.dialect == "qonnx"
    assert set(part.nodes) < set(site.nodes)
    assert part.y is site.y
    assert parts(part) == ()

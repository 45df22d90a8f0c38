"""Gemm becomes MatMul and Add, with the same sums."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.plain_forms import SplitGemm

QONNX = "qonnx.custom_op.general"


def graph(nodes: str, *, shape: str = "2, 3") -> str:
    return f"""<ir_version: 8, opset_import: ["": 17, "{QONNX}": 1]>
        g (float[4, 3] x) => (float[4, 2] y)
        <float[{shape}] w = {{1, 2, 3, 4, 5, 6}}, float[2] b = {{0.5, -1}}, float z = {{0}},
         float[2, 1] s = {{1, 0.5}}, float n = {{4}}> {{ {nodes} }}"""


CASES = {
    "plain": ("y = Gemm (x, w, b)", "3, 2", ["MatMul", "Add"]),
    "transposed, without bias": ("y = Gemm <transB = 1> (x, w)", "2, 3", ["Transpose", "MatMul"]),
    "Quant": (
        f"q = {QONNX}.Quant (w, s, z, n) y = Gemm <transB = 1> (x, q, b)",
        "2, 3",
        ["Quant", "MatMul", "Add"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_stay(name):
    nodes, shape, ops = CASES[name]
    model = load(ir.from_onnx_text(graph(nodes, shape=shape)))
    x = np.random.default_rng(0).integers(-9, 9, (4, 3)).astype(np.float32)
    before = model.run({"x": x}, backend="numpy")["y"]
    assert model.apply(SplitGemm()).count(SiteStatus.CHANGED) == 1
    assert [node.op_type for node in model.nodes()] == ops
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], before)
    assert model.apply(SplitGemm()).count(SiteStatus.CHANGED) == 0


@pytest.mark.parametrize("attribute", ["alpha = 2.0", "beta = 0.5"])
def test_factors_are_refused(attribute):
    model = load(ir.from_onnx_text(graph(f"y = Gemm <{attribute}> (x, w, b)", shape="3, 2")))
    (site,) = model.apply(SplitGemm()).sites
    assert (site.outcome, site.reason_id) == (SiteStatus.REFUSED, "QG006")

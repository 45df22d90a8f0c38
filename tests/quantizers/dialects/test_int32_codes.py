"""Codes of 32 bits with a zero point: their difference is one of integers, rounded once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

CODES = np.array([[2**30 + 1, -(2**30) - 3, 16_777_217], [5, -16_777_219, 2**30 - 77]], np.int64)


@pytest.mark.parametrize("to", ["onnx", "qonnx", "openvino"])
@pytest.mark.parametrize("zero_points", [[16_777_217], [1_000_003, -3, 12_345_677]])
def test_every_value_is_kept(to, zero_points):
    zeros = np.array(zero_points, np.int64)
    scales = np.float32([0.1, 0.3, 0.7])[: len(zeros)]
    listed = [", ".join(map(str, np.ravel(values).tolist())) for values in (CODES, scales, zeros)]
    count = f"[{len(zeros)}]" if len(zeros) > 1 else ""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[2, 3] x) => (float[2, 3] y)
        <int32[2, 3] w = {{{listed[0]}}}, float{count} s = {{{listed[1]}}},
         int32{count} z = {{{listed[2]}}}> {{
            v = DequantizeLinear <axis = 1> (w, s, z) y = Mul (x, v) }}"""
    model = load(ir.from_onnx_text(text))
    report = model.apply(ConvertDialect(to=to))
    assert [entry.outcome for entry in report] == [SiteStatus.CHANGED], report
    assert report.exactness is Exactness.BITS
    assert "DequantizeLinear" not in {node.op_type for node in model.nodes()}
    found = model.run({"x": np.ones((2, 3), np.float32)}, backend="numpy")["y"]
    expected = (CODES - zeros).astype(np.float32) * scales
    np.testing.assert_array_equal(found, expected)

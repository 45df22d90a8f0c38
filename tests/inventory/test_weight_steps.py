"""Weights that are described piece by piece, against the codes of each element by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.inventory import weight_steps
from qgraph.inventory.description import descriptions
from qgraph.model import load

QUANT = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
net (float[N,6] x) => (float[N,8] y)
<float[6,8] w = {0}, float[6,1] s = {0.5, 1, 2, 4, 0.25, 0.125}, float z = {0}, float b = {BITS}> {
    q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (w, s, z, b)
    y = MatMul (x, q)
}"""
PAIR = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,6] x) => (float[N,8] y)
<int8[6,8] w = {0}, float[2,8] s = {1, 2, 1, 2, 1, 2, 1, 2, 4, 4, 4, 4, 4, 4, 4, 4}> {
    q = DequantizeLinear <axis = 0, block_size = 3> (w, s)
    y = MatMul (x, q)
}"""


def stored(path: Path, text: str, weight: np.ndarray) -> Path:
    model = ir.from_onnx_text(text)
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    ir.save(model, path, external_data="data", size_threshold_bytes=0)
    return path


@pytest.mark.parametrize(
    ("text", "low", "high", "expected"),
    [
        (QUANT.replace("BITS", "8"), -3, 5, "int4"),
        (QUANT.replace("BITS", "8"), -3, 3, "int3"),
        (QUANT.replace("BITS", "3"), -300, 300, "int3"),
        (PAIR, 0, 127, "uint7"),
        (PAIR, -9, 5, "int5"),
    ],
)
def test_the_narrowest_format_of_pieces(
    text: str,
    low: int,
    high: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_steps, "_PIECE", 5)
    codes = np.random.default_rng(high).integers(low, high, (6, 8), endpoint=True)
    codes[3, 4], codes[5, 7] = low, high
    weight = codes.astype(np.int8)
    if text is not PAIR:
        weight = codes * np.float32([0.5, 1, 2, 4, 0.25, 0.125])[:, None]
    path = stored(tmp_path / "a.onnx", text, weight)
    found = [each.description for each in descriptions(load(path).ir)]
    assert [str(each.format) for each in found] == [expected]


@pytest.mark.parametrize(("zero", "expected"), [(False, "bipolar"), (True, "int2")])
def test_signs_are_told_from_three_values(
    zero: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_steps, "_PIECE", 5)
    codes = np.where(np.random.default_rng(0).random((6, 8)) < 0.5, -1, 1).astype(np.int8)
    codes[4, 4] *= not zero
    (found,) = descriptions(load(stored(tmp_path / "a.onnx", PAIR, codes)).ir)
    assert found.description.format == expected


def test_a_weight_that_is_not_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_steps, "_PIECE", 5)
    weight = np.ones((6, 8), np.float32)
    weight[2, 2] = np.nan
    path = stored(tmp_path / "a.onnx", QUANT.replace("BITS", "8"), weight)
    (found,) = descriptions(load(path).ir)
    assert found.description.format == "not finite"

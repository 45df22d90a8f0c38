"""Stored codes that become values while a model is saved give the model that others give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import Stream
from qgraph.model import Model, load
from qgraph.quantizers.dialects import qdq
from qgraph.quantizers.sites import sites
from qgraph.quantizers.weights import codes_job, job
from qgraph.quantizers.weights.decoded import DecodedCodes
from qgraph.transforms.convert import ConvertDialect

ROWS, COLUMNS = 24, 64
RANDOM = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def pieces_of_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdq, "_FEW", 0)
    monkeypatch.setattr(job, "PIECE", 100)


def steps(*shape: int) -> np.ndarray:
    return RANDOM.choice(np.float32([0.5, 0.3, 0.0117, 1e-40]), shape)


CASES = {
    "tensor": ("INT8", "axis = 1", steps(), None),
    "columns": ("INT4", "axis = 1", steps(COLUMNS), None),
    "blocks of rows": ("INT4", "axis = 0, block_size = 8", steps(3, COLUMNS), None),
    "blocks of columns": ("INT4", "axis = 1, block_size = 32", steps(ROWS, 2), None),
    "zero points": ("UINT4", "axis = 1, block_size = 32", steps(ROWS, 2), 9),
    "codes of a byte": ("UINT8", "axis = 1, block_size = 32", steps(ROWS, 2), 200),
    "equal neighbours": ("INT4", "axis = 0, block_size = 4", steps(3, COLUMNS).repeat(2, 0), None),
    "equal rows": ("INT4", "axis = 0, block_size = 8", np.tile(steps(3, 1), COLUMNS), None),
    "a smaller last block": ("INT4", "axis = 0, block_size = 7", steps(4, COLUMNS), None),
    "minifloats": ("FLOAT4E2M1", "axis = 1, block_size = 32", steps(ROWS, 2), None),
}


def stored(path: Path, kind: str, attributes: str, scale: np.ndarray, zero: int | None) -> Path:
    names = "w, s" if zero is None else "w, s, z"
    model = ir.from_onnx_text(
        f"""<ir_version: 11, opset_import: ["": 23]>
        g (float[N, {ROWS}] x) => (float[N, {COLUMNS}] y)
        <float[1] w = {{0}}, float[1] s = {{0}}, float[1] z = {{0}}> {{
            q = DequantizeLinear <{attributes}> ({names})  y = MatMul (x, q)
        }}"""
    )
    dtype = ir.DataType[kind].numpy()
    codes = RANDOM.integers(0, 256 if "8" in kind else 16, (ROWS, COLUMNS), np.uint8)
    codes = (codes - 8).astype(np.int8) if kind.startswith("INT") else codes
    codes = codes.view(dtype) if kind.startswith("FLOAT") else codes.astype(dtype)
    points = RANDOM.integers(0, zero or 1, scale.shape).astype(dtype)
    for name, array in (("w", codes), ("s", scale), ("z", points)):
        value = model.graph.initializers[name]
        value.const_value, value.shape = ir.tensor(array, name=name), ir.Shape(array.shape)
        value.dtype = value.const_value.dtype
    if zero is None:
        model.graph.initializers.pop("z")
    Model(model).save(path, external_data=True, size_threshold=64)
    return path


def converted(
    path: Path, to: str = "qonnx", *, late: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[ir.Model, bool]:
    """Return the model as saved, and whether values were computed while it was saved."""
    monkeypatch.setattr(codes_job, "LEAST_BYTES", 1 if late else 1 << 40)
    model = load(path)
    report = model.apply(ConvertDialect(to=to))
    assert [str(entry.outcome) for entry in report.sites] == ["changed"]
    tensors = [value.const_value for value in model.ir.graph.initializers.values()]
    out = path.with_name(f"{late}.onnx")
    model.save(out)
    return ir.load(out), any(isinstance(tensor, DeferredTensor) for tensor in tensors)


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("to", ["qonnx", "openvino"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, to: str
) -> None:
    if to == "openvino" and name == "minifloats":
        pytest.skip("FakeQuantize has evenly spaced levels")
    path = stored(tmp_path / "in.onnx", *CASES[name])
    whole, _ = converted(path, to, late=False, monkeypatch=monkeypatch)
    late, is_late = converted(path, to, late=True, monkeypatch=monkeypatch)
    assert is_late == (name not in ("a smaller last block", "equal rows"))
    assert [node.op_type for node in late.graph] == [node.op_type for node in whole.graph]
    assert late.graph.initializers.keys() == whole.graph.initializers.keys()
    for key, value in whole.graph.initializers.items():
        expected, found = value.const_value, late.graph.initializers[key].const_value
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("name", CASES)
def test_float_operators_on_codes_have_a_parameter_for_each_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, attributes, scale, zero = CASES[name]
    path = stored(tmp_path / "in.onnx", kind, attributes, scale, zero)
    late, _ = converted(path, "onnx", late=True, monkeypatch=monkeypatch)
    data = {"x": np.eye(ROWS, dtype=np.float32)}
    expected = load(path).run(data, backend="numpy")["y"]
    assert load(late).run(data, backend="numpy")["y"].tobytes() == expected.tobytes()
    parameters = [
        value.const_value.size
        for value in late.graph.initializers.values()
        if value.dtype is ir.DataType.FLOAT and value.const_value is not None
    ]
    if name not in ("a smaller last block", "equal rows", "minifloats"):
        assert max(parameters) <= scale.size


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_large_codes_are_not_read_before_the_model_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr(codes_job, "LEAST_BYTES", 1)
    path = stored(tmp_path / "in.onnx", *CASES["zero points"])
    model, read = load(path), Stream.array

    def array(stream: Stream) -> Any:
        assert stream.size < ROWS * COLUMNS, "the codes are read"
        return read(stream)

    monkeypatch.setattr(Stream, "array", array)
    report = model.apply(ConvertDialect(to=to))
    assert [str(entry.outcome) for entry in report.sites] == ["changed"]


@pytest.mark.parametrize("nudged", [None, 0, COLUMNS - 1])
def test_one_scale_that_differs_is_found_without_reading_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nudged: int | None
) -> None:
    monkeypatch.setattr(codes_job, "LEAST_BYTES", 1)
    scale = steps(COLUMNS)
    path = stored(tmp_path / "in.onnx", "INT4", "axis = 1", scale, None)
    (site,) = sites(load(path).ir)
    other = scale.copy()
    if nudged is not None:
        other[nudged] = np.nextafter(other[nudged], np.float32(9))
    quant = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[{ROWS},{COLUMNS}] x) => (float[{ROWS},{COLUMNS}] y)
        <float[1] s = {{0}}, float z = {{0}}, float b = {{4}}> {{
            y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
        }}"""
    ).graph
    quant.initializers["s"].const_value = ir.tensor(other)
    decoded = DecodedCodes.of(site, site.weight)
    assert decoded is not None
    path.with_name("in.onnx.data").unlink()
    found = decoded.exactness(list(quant), quant.inputs[0], quant.outputs[0], decoded.decode)
    assert found == (Exactness.BITS if nudged is None else None)

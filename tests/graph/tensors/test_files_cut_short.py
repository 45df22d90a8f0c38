"""Weights and inputs in files that are cut short while they are used: a message, never a signal."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import ModelError
from qgraph.execution.prepare import Batches
from qgraph.graph.constants import constant
from qgraph.graph.tensors import FileRows, FileTensor, read_rows
from qgraph.model import load
from qgraph.storage import files as storage

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {0}> { y = MatMul (x, w) }"""
LARGE = np.arange(1 << 20, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = ir.from_onnx_text(TEXT.replace("float[4,4]", "float[4,262144]"))
    model.graph.initializers["w"].const_value = ir.tensor(LARGE.reshape(4, -1), name="w")
    storage.save(model, tmp_path / "m.onnx", external_data=True)
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("size", [0, 1, 4096, LARGE.nbytes - 1])
def test_a_weight_whose_file_is_cut_short_is_an_error(path: Path, size: int) -> None:
    model = load(path)
    value = model.ir.graph.initializers["w"]
    tensor = value.const_value
    assert isinstance(tensor, FileTensor)
    os.truncate(path.with_name("m.onnx.data"), size)
    with (path.parent / "copy").open("wb") as copy:
        for use in (
            tensor.numpy,
            tensor.tobytes,
            lambda: np.asarray(tensor),
            lambda: tensor.tofile(copy),
            lambda: constant(value),
            lambda: model.run({"x": np.ones((1, 4), np.float32)}, backend="numpy"),
            lambda: model.run({"x": np.ones((1, 4), np.float32)}, backend="auto"),
            lambda: model.save(path.with_name("o.onnx")),
            lambda: model.save(path.with_name("o.onnx"), external_data=False),
        ):
            with pytest.raises(ModelError, match=r"has become shorter|but the file has"):
                use()
    assert not path.with_name("o.onnx").exists()


def test_a_weight_that_somebody_holds_is_not_touched_by_a_cut(path: Path) -> None:
    tensor = load(path).ir.graph.initializers["w"].const_value
    assert tensor is not None
    held = tensor.numpy()
    os.truncate(path.with_name("m.onnx.data"), 0)
    np.testing.assert_array_equal(held.ravel(), LARGE)
    assert tensor.numpy().base is held.base, "it is read once as long as somebody has it"
    assert not held.flags.writeable


@pytest.mark.parametrize(
    "kind", ["float32", "float16", "bfloat16", "int4", "uint2", "float4_e2m1fn", "bool", "int64"]
)
def test_elements_are_those_that_onnx_ir_maps(tmp_path: Path, kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    array = (np.arange(35) % 2).astype(dtype).reshape(5, 7)
    (tmp_path / "data").write_bytes(b"12345678" + ir.tensor(array).tobytes())
    shape, kinds = ir.Shape(array.shape), ir.DataType.from_numpy(dtype)
    mapped = ir.ExternalTensor("data", 8, None, kinds, shape=shape, name="w", base_dir=tmp_path)
    tensor = FileTensor.of(mapped)
    np.testing.assert_array_equal(tensor.numpy(), mapped.numpy())
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.numpy().dtype == mapped.numpy().dtype
    assert tensor.tobytes() == mapped.tobytes()
    assert np.asarray(tensor, np.float64).tolist() == array.astype(np.float64).tolist()
    with (tmp_path / "copy").open("wb") as file:
        tensor.tofile(file)
    assert (tmp_path / "copy").read_bytes() == mapped.tobytes()


def test_rows_of_a_file_are_those_of_the_array(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int32).reshape(10, 2, 3)
    np.save(tmp_path / "a.npy", array)
    rows = read_rows(tmp_path / "a.npy")
    assert isinstance(rows, FileRows)
    assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (array.shape, array.dtype, 3, 10)
    np.testing.assert_array_equal(np.asarray(rows), array)
    for first, last in ((0, 3), (9, 12), (4, 4), (10, 12)):
        np.testing.assert_array_equal(rows.rows(first, last), array[first:last])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows)).rows(1, 2), array[1:2])


@pytest.mark.parametrize(
    "array", [np.asfortranarray(np.eye(3)), np.zeros((0, 3)), np.float32(2), np.array(["a", "b"])]
)
def test_other_arrays_of_files_come_as_they_are(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(np.asarray(read_rows(tmp_path / "a.npy")), array)


def test_a_dataset_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((9, 4), np.float32))
    graph = ir.from_onnx_text(TEXT).graph
    batches = Batches(graph, {"x": read_rows(tmp_path / "x.npy")}, 2)
    assert [len(batch["x"]) for batch in batches] == [2, 2, 2, 2, 1]
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(ModelError, match=r"x\.npy: has 200 bytes"):
        list(batches)
    with pytest.raises(ValueError, match="mmap"):
        read_rows(tmp_path / "x.npy")

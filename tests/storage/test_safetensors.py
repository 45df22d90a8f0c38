"""Data files that begin as safetensors has it, read here by hand from its description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph.errors import OptionError
from qgraph.transforms import ConvertDialect, Writing, rewrite


def model_of(**tensors: ir.TensorProtocol) -> ir.Model:
    values = [
        ir.Value(name=name, type=ir.TensorType(t.dtype), shape=t.shape, const_value=t)
        for name, t in tensors.items()
    ]
    nodes = [ir.node("Identity", [value]) for value in values]
    for number, node in enumerate(nodes):
        node.outputs[0].name = f"y{number}"
        node.outputs[0].type = values[number].type
        node.outputs[0].shape = values[number].shape
    graph = ir.Graph(
        [],
        [node.outputs[0] for node in nodes],
        nodes=nodes,
        initializers=values,
        name="g",
        opset_imports={"": 21},
    )
    return ir.Model(graph, ir_version=10)


def entries(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the head of a safetensors file, and the data behind it."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.fixture
def tensors() -> dict[str, ir.TensorProtocol]:
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (7, 301)).astype(ir.DataType.INT4.numpy())
    return {
        "floats": ir.tensor(rng.normal(size=(30, 40)).astype(np.float32), name="floats"),
        "codes": ir.tensor(codes, name="codes"),
        "numbers": ir.tensor(rng.integers(0, 9, 700), name="numbers"),
    }


def test_a_file_holds_what_the_format_says(
    tmp_path: Path, tensors: dict[str, ir.TensorProtocol]
) -> None:
    model = qgraph.load(model_of(**tensors))
    model.save(tmp_path / "m.onnx", safetensors=True)
    head, data = entries(tmp_path / "m.onnx.safetensors")
    remarks = head.pop("__metadata__")
    assert remarks == {"format": "onnx", "codes": "INT4[7,301]"}
    assert head["floats"]["dtype"] == "F32"
    assert head["numbers"]["dtype"] == "I64"
    assert (head["codes"]["dtype"], head["codes"]["shape"]) == ("U8", [(7 * 301 + 1) // 2])
    ends = sorted(tuple(entry["data_offsets"]) for entry in head.values())
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == len(data)
    start, end = head["floats"]["data_offsets"]
    floats = np.frombuffer(data[start:end], np.float32).reshape(head["floats"]["shape"])
    np.testing.assert_array_equal(floats, tensors["floats"].numpy())
    # first element in the low nibble
    start, _ = head["codes"]["data_offsets"]
    first = int(tensors["codes"].numpy()[0, 0].astype(np.int8))
    assert data[start] & 15 == first % 16


def test_onnx_reads_the_model_as_it_was(
    tmp_path: Path, tensors: dict[str, ir.TensorProtocol]
) -> None:
    model = qgraph.load(model_of(**tensors))
    model.save(tmp_path / "m.onnx", safetensors=True, shard_bytes=5000)
    assert len(list(tmp_path.glob("m.onnx-*-of-*.safetensors"))) == 3
    onnx.checker.check_model(tmp_path / "m.onnx")
    for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer:
        expected = tensors[tensor.name].numpy()
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), expected)
    again = qgraph.load(tmp_path / "m.onnx").run({}, backend="numpy")
    np.testing.assert_array_equal(again["y1"], tensors["codes"].numpy())


def test_old_files_go_when_new_ones_are_there(
    tmp_path: Path, tensors: dict[str, ir.TensorProtocol]
) -> None:
    path = tmp_path / "m.onnx"
    qgraph.load(model_of(**tensors)).save(path, safetensors=True)
    qgraph.load(path).save(path)
    assert {file.name for file in tmp_path.iterdir()} == {"m.onnx", "m.onnx-1.data"} or {
        file.name for file in tmp_path.iterdir()
    } == {"m.onnx", "m.onnx.data"}
    qgraph.load(path).save(path, safetensors=True)
    (data,) = tmp_path.glob("*.safetensors")
    assert {file.name for file in tmp_path.iterdir()} == {"m.onnx", data.name}


def test_packed_weights_go_there_too(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "examples" / "digits_brevitas.onnx"
    out = tmp_path / "out.onnx"
    rewrite(source, out, ConvertDialect(to="qdq"), writing=Writing(safetensors=True))
    head, _ = entries(tmp_path / "out.onnx.safetensors")
    assert any(remark.startswith("INT4[") for remark in head["__metadata__"].values())
    assert qgraph.check(source, out, backend="numpy").verdict == "equal"


def test_it_is_external_data(tmp_path: Path, tensors: dict[str, ir.TensorProtocol]) -> None:
    model = qgraph.load(model_of(**tensors))
    with pytest.raises(OptionError, match="leave external_data out"):
        model.save(tmp_path / "m.onnx", safetensors=True, external_data=False)
    assert list(tmp_path.iterdir()) == []

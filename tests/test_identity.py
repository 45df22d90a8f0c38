"""Certificates and reports name what was compared: an unchanged file, or a model in memory."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Model, transforms
from qgraph.certificate import Identity
from qgraph.cli.main import main
from qgraph.comparison.replay import read
from qgraph.errors import EquivalenceError
from qgraph.reporting.pages import page_of

TEXT = """
<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
net (float[1,4] x) => (float[1,2] y)
<float[4,2] w = {0.5, -1, 1.5, 2, 0, 1, 2.5, -2}, float s = {0.5}, float z = {0}, float b = {4}> {
    q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (w, s, z, b)
    [product] y = MatMul (x, q)
}"""


def hash_of(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def hash_of_proto(model: Model) -> str:
    return hashlib.sha256(model.to_proto().SerializeToString()).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "net.onnx"
    qgraph.load(ir.from_onnx_text(TEXT)).save(file)
    return file


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weight lies in a data file."""
    file = tmp_path / "big.onnx"
    weights = np.arange(1024, dtype=np.float32).reshape(4, 256)
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[1,4] x) => (float[1,256] y) { y = MatMul (x, w) }"""
    graph = onnx.parser.parse_model(text)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    qgraph.load(graph).save(file, external_data=True)
    assert (tmp_path / "big.onnx.data").is_file()
    return file


def data_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.data")


def rename_operator(model: Model) -> None:
    next(node for node in model.ir.graph if node.op_type == "MatMul").op_type = "Gemm"


def edit_weight(model: Model) -> None:
    model.ir.graph.initializers["w"].const_value = ir.tensor(np.ones((4, 2), np.float32), name="w")


def write_into_weight(model: Model) -> None:
    value = model.ir.graph.initializers["w"]
    value.const_value = ir.tensor(value.const_value.numpy().copy(), name="w")
    value.const_value.numpy()[0, 0] = 7


def edit_attribute(model: Model) -> None:
    node = next(node for node in model.ir.graph if node.op_type == "Quant")
    node.attributes["narrow"] = ir.AttrInt64("narrow", 1)


def edit_metadata(model: Model) -> None:
    model.ir.metadata_props["author"] = "somebody"


CHANGES: dict[str, Callable[[Model], object]] = {
    "pass": lambda model: model.apply(transforms.ConvertDialect(to="qdq")),
    "operator": rename_operator,
    "weight": edit_weight,
    "weight in place": write_into_weight,
    "attribute": edit_attribute,
    "metadata": edit_metadata,
    "opset": lambda model: model.ir.opset_imports.update({"my": 1}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_model_has_the_hash_of_what_is_in_memory(
    path: Path, change: Callable[[Model], object]
) -> None:
    model = qgraph.load(path)
    change(model)
    identity = model.identity()
    assert identity == Identity(None, hash_of_proto(model))
    assert identity.sha256 != hash_of(path)
    assert model.clone().identity() == identity


def test_certificate_names_what_was_proved(path: Path, tmp_path: Path) -> None:
    model = qgraph.load(path)
    unchanged = qgraph.prove(path, model).to_json()
    assert unchanged["reference"] == unchanged["candidate"]
    assert unchanged["candidate"] == {"path": str(path), "sha256": hash_of(path)}
    model.apply(transforms.ConvertDialect(to="qdq"))
    changed = qgraph.prove(path, model).to_json()
    assert changed["reference"] == {"path": str(path), "sha256": hash_of(path)}
    assert changed["candidate"] == {"path": None, "sha256": hash_of_proto(model)}
    out = tmp_path / "out.onnx"
    model.save(out)
    saved = qgraph.prove(path, model).to_json()["candidate"]
    assert saved == {"path": str(out), "sha256": hash_of(out)}
    assert saved["sha256"] == changed["candidate"]["sha256"]
    edit_metadata(model)
    assert qgraph.prove(path, model).to_json()["candidate"]["path"] is None


def test_reading_a_model_does_not_change_it(path: Path) -> None:
    model = qgraph.load(path)
    expected = Identity(str(path), hash_of(path))
    assert model.ir.graph.num_nodes() == 2
    qgraph.check(path, model)
    qgraph.prove(path, model)
    model.run({"x": np.ones((1, 4), np.float32)}, backend="numpy")
    model.apply()
    model.freeze_inputs()
    assert model.identity() == model.clone().identity() == expected
    edit = edit_attribute
    edit(model)
    model.ir.graph[0].attributes["narrow"] = ir.AttrInt64("narrow", 0)
    assert model.identity() == expected


def test_relative_path_is_that_of_the_time_of_loading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    model = qgraph.load("net.onnx")
    assert model.ir is not None
    monkeypatch.chdir("/")
    assert model.identity() == Identity("net.onnx", hash_of(path))


def test_file_that_changed_since_is_not_named_by_its_new_hash(path: Path) -> None:
    untouched, lent = qgraph.load(path), qgraph.load(path)
    assert lent.ir is not None
    before = hash_of(path)
    other = qgraph.load(path)
    rename_operator(other)
    other.save(path)
    assert untouched.identity() == Identity(str(path), before)
    assert lent.identity() == Identity(None, hash_of_proto(lent))
    path.unlink()
    assert untouched.identity() == Identity(str(path), before)
    assert lent.identity().path is None


def test_models_from_elsewhere_have_no_path(path: Path) -> None:
    proto = onnx.load(path)
    for source in (proto, ir.from_proto(proto)):
        certificate = qgraph.prove(path, source).to_json()
        assert certificate["candidate"]["path"] is None
        assert certificate["candidate"]["sha256"] == hash_of_proto(qgraph.load(source))
        report = qgraph.check(path, source).to_json()
        assert report["candidate"] == certificate["candidate"]
        assert report["reference"] == {"path": str(path), "sha256": hash_of(path)}


def test_external_data_are_part_of_the_hash(external: Path) -> None:
    expected = Identity(str(external), hash_of(external, data_of(external)))
    untouched, lent = qgraph.load(external), qgraph.load(external)
    assert lent.ir is not None
    assert untouched.identity() == lent.identity() == expected
    lent.ir.graph.doc_string = "changed"
    changed = lent.identity()
    assert changed.path is None
    assert changed.sha256 not in (expected.sha256, hash_of(external))


def test_external_data_that_changed_since_are_not_named(external: Path) -> None:
    untouched, lent = qgraph.load(external), qgraph.load(external)
    assert lent.ir is not None
    data = data_of(external)
    status = data.stat()
    data.write_bytes(bytes(status.st_size))
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    now = hash_of(external, data)
    for model in (untouched, lent):
        assert model.identity().path is None
        assert model.identity().sha256 != now
    assert qgraph.load(external).identity() == Identity(str(external), now)


def test_message_holds_external_weights_itself(external: Path, monkeypatch: Any) -> None:
    model = qgraph.load(external)
    monkeypatch.chdir("/")
    proto = model.to_proto()
    assert isinstance(proto, onnx.ModelProto)
    (weights,) = proto.graph.initializer
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(weights), np.arange(1024, dtype=np.float32).reshape(4, 256)
    )
    proto.graph.node[0].op_type = "Gemm"
    assert [node.op_type for node in model.ir.graph] == ["MatMul"]


def test_saved_model_with_external_data_is_named(external: Path, tmp_path: Path) -> None:
    model = qgraph.load(external)
    model.ir.graph.doc_string = "changed"
    out = tmp_path / "out.onnx"
    model.save(out)
    assert model.path == out
    assert model.identity() == Identity(str(out), hash_of(out, data_of(out)))
    model.save(out)  # in place
    (data,) = tmp_path.glob("out.onnx*.data")
    assert model.identity() == Identity(str(out), hash_of(out, data))


def test_pages_name_models_in_memory(path: Path) -> None:
    model = qgraph.load(path)
    model.apply(transforms.ConvertDialect(to="qdq"))
    for report in (qgraph.check(path, model), qgraph.prove(path, model)):
        names = [file.name for file in page_of(report.to_json()).files]
        assert names == [str(path), "a model in memory"]


def test_verification_says_that_the_model_was_in_memory(path: Path, tmp_path: Path) -> None:
    model = qgraph.load(path)
    model.apply(transforms.ConvertDialect(to="qdq"))
    certificate = tmp_path / "c.json"
    document = qgraph.prove(path, model, evidence=True).to_json()
    certificate.write_text(json.dumps(document))
    with pytest.raises(EquivalenceError, match=r"save a model in memory before"):
        read(certificate, path, path)
    out = tmp_path / "out.onnx"
    model.save(out)  # all weights in the file: it has the hash of the model in memory
    assert main(["prove", "--verify", str(certificate), str(path), str(out)]) == 0


def test_report_of_a_rewrite_names_the_file_that_was_read(path: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    transforms.rewrite(path, out, transforms.FoldWeights(), report=report)
    document = json.loads(report.read_text())
    assert document["input"] == {"path": str(path), "sha256": hash_of(path)}
    assert document["output"]["sha256"] == hash_of(out)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_models_of_the_same_file(
    external: Path, copied: Callable[[Model], Model]
) -> None:
    model = qgraph.load(external)
    inputs = {"x": np.ones((1, 4), np.float32)}
    before = model.identity()
    held = model.ir.graph.initializers["w"].const_value
    assert held is not None
    array = held.numpy()
    (expected,) = model.run(inputs, backend="numpy").values()
    copy_of_it = copied(model)
    (y,) = copy_of_it.run(inputs, backend="numpy").values()
    np.testing.assert_array_equal(y, expected)
    assert copy_of_it.identity() == before
    copy_of_it.ir.graph.name = "another"
    assert copy_of_it.identity().path is None
    assert model.identity() == before
    assert held.numpy().base is array.base or held.numpy() is array

"""Model files: any bytes may come in, and only whole files go out."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf.message import EncodeError

from qgraph.errors import ModelError, OptionError
from qgraph.graph.tensors import slots
from qgraph.storage import datafiles, files as storage
from qgraph.storage.reading import external_fault, has_only_texts

TEXT = """
<ir_version: 10, opset_import: ["": 21], producer_name: "maker", metadata_props: ["k": "v"]>
g (float[2] x) => (float[2] y) <float[2] w = {1, -2}> {
    c = Constant <value = float[2] {3, 4}> ()
    t = Mul (x, w)
    y = Add (t, c)
}"""


def model_of(*weights: np.ndarray) -> ir.Model:
    """A model that adds up its weights, which are initializers w0, w1, ..."""
    values = [
        ir.Value(name=f"w{i}", const_value=ir.tensor(array), shape=ir.Shape(array.shape))
        for i, array in enumerate(weights)
    ]
    node = ir.node("Sum", values)
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    node.outputs[0].shape = ir.Shape([None])
    graph = ir.Graph(
        [], node.outputs, nodes=[node], initializers=values, opset_imports={"": 21}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def weights_in(source: Path | ir.Model) -> dict[str, list[float]]:
    model = storage.load(source) if isinstance(source, Path) else source
    values = model.graph.initializers.values()
    return {v.name or "": v.const_value.numpy().ravel().tolist() for v in values if v.const_value}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


SMALL = np.arange(4, dtype=np.float32)
LARGE = np.arange(600, dtype=np.float32)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A model file with its weights in a data file."""
    path = tmp_path / "in.onnx"
    storage.save(model_of(LARGE, SMALL, -LARGE), path, external_data=True)
    return path


def relocate(path: Path, **entries: str | int) -> None:
    """Change what the first tensor of a file says about its external data."""
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = str(entries.get(entry.key, entry.value))
    path.write_bytes(proto.SerializeToString())


class TestLoad:
    def test_external_data_stay_on_disk(self, stored: Path) -> None:
        tensor = storage.load(stored).graph.initializers["w0"].const_value
        assert isinstance(tensor, ir.ExternalTensor)
        np.testing.assert_array_equal(tensor.numpy(), LARGE)
        assert tensor.tobytes() == LARGE.tobytes()
        assert tensor.raw is None, "a mapped file that is cut short would end the process"

    def test_the_current_folder_may_change_afterwards(
        self, stored: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(stored.parent)
        model = storage.load(stored.name)
        monkeypatch.chdir("/")
        assert weights_in(model)["w0"] == LARGE.tolist()

    def test_external_data_in_a_function_are_found(self, tmp_path: Path) -> None:
        text = """<ir_version: 10, opset_import: ["": 21, "f": 1]>
            g (float[600] x) => (float[600] y) { y = f.f (x) }
            <domain: "f", opset_import: ["": 21]> f (a) => (b) { b = Identity (a) }"""
        model = ir.from_onnx_text(text)
        (function,) = model.functions.values()
        (function[0]).attributes["kept"] = ir.AttrTensor("kept", ir.tensor(LARGE))
        storage.save(model, tmp_path / "m.onnx")
        proto = onnx.load(tmp_path / "m.onnx")
        onnx.external_data_helper.convert_model_to_external_data(
            proto, location="m.data", convert_attribute=True
        )
        kept = proto.functions[0].node[0].attribute[0].t
        onnx.external_data_helper.set_external_data(kept, "m.data", 0, LARGE.nbytes)
        (tmp_path / "m.data").write_bytes(LARGE.tobytes())
        kept.ClearField("raw_data")
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        (function,) = storage.load(tmp_path / "m.onnx").functions.values()
        np.testing.assert_array_equal(function[0].attributes["kept"].as_tensor().numpy(), LARGE)

    def test_nodes_out_of_order_are_sorted(self, tmp_path: Path) -> None:
        proto = ir.to_proto(ir.from_onnx_text(TEXT))
        nodes = list(proto.graph.node)
        del proto.graph.node[:]
        proto.graph.node.extend(reversed(nodes))
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        assert [n.op_type for n in storage.load(tmp_path / "m.onnx").graph][-1] == "Add"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
            (b"PK\x03\x04 not a model at all", "are not an ONNX model"),
            (b"\x08\x0a", "there is no graph"),
            (onnx.ModelProto(graph=onnx.GraphProto(name="g")), "imports no operator set"),
        ],
    )
    def test_what_is_no_model_is_said_so(
        self, tmp_path: Path, content: bytes | onnx.ModelProto, message: str
    ) -> None:
        path = tmp_path / "m.onnx"
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        with pytest.raises(ModelError, match=rf"m\.onnx: .*{message}"):
            storage.load(path)

    def test_missing_files_and_folders_are_said_so(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"none\.onnx: there is no such file"):
            storage.load(tmp_path / "none.onnx")
        with pytest.raises(ModelError, match="is a folder"):
            storage.load(tmp_path)
        with pytest.raises(ModelError, match="cannot be read"):
            storage.load("a\0b")

    def test_a_cycle_is_refused(self, tmp_path: Path) -> None:
        text = '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) {'
        proto = onnx.parser.parse_model(text + " a = Add (x, y) y = Neg (a) }")
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match="cycle"):
            storage.load(tmp_path / "m.onnx")

    def test_an_undefined_input_is_named(self, tmp_path: Path) -> None:
        text = '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) {'
        proto = onnx.parser.parse_model(text + " [mine] y = Add (x, lost) }")
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match=r"Add 'mine'.*'lost' is not defined"):
            storage.load(tmp_path / "m.onnx")

    @pytest.mark.parametrize(
        ("name", "place"),
        [
            (b"ggg", "name of a GraphProto"),
            (b"nnn", "name of a NodeProto"),
            (b"xxx", "input of a NodeProto"),
            (b"Relu", "op_type of a NodeProto"),
            (b"www", "name of a TensorProto"),
            (b"vvv", "value of a StringStringEntryProto"),
        ],
    )
    def test_text_that_is_not_utf8_is_shown(self, tmp_path: Path, name: bytes, place: str) -> None:
        text = """<ir_version: 10, opset_import: ["": 21], metadata_props: ["k": "vvv"]>
        ggg (float[2] xxx) => (float[2] y) <float[1] www = {1}> { [nnn] y = Relu (xxx) }"""
        whole = onnx.parser.parse_model(text).SerializeToString()
        other = b"\xff" * len(name)
        assert has_only_texts(whole)
        assert not has_only_texts(whole.replace(name, other))
        (tmp_path / "model.onnx").write_bytes(whole.replace(name, other))
        with pytest.raises(ModelError, match="expected UTF-8") as caught:
            storage.load(tmp_path / "model.onnx")
        assert f"model.onnx: {place} is {other!r}, expected" in str(caught.value)

    def test_bytes_of_data_are_no_texts(self) -> None:
        proto = ir.to_proto(model_of(SMALL))
        proto.graph.initializer[0].raw_data = b"\xff" * 4
        proto.graph.node[0].attribute.add(name="any", type=onnx.AttributeProto.STRING, s=b"\xff")
        assert has_only_texts(proto.SerializeToString())

    def test_sparse_initializers_are_refused_rather_than_dropped(self, tmp_path: Path) -> None:
        proto = ir.to_proto(ir.from_onnx_text(TEXT))
        proto.graph.sparse_initializer.add().values.name = "thin"
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match="'thin' is sparse"):
            storage.load(tmp_path / "m.onnx")

    def test_too_little_inline_data_is_named(self, tmp_path: Path) -> None:
        proto = ir.to_proto(model_of(SMALL))
        proto.graph.initializer[0].raw_data = bytes(4)
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match=r"initializer 'w0': 4 bytes are there"):
            storage.load(tmp_path / "m.onnx")

    def test_a_file_cut_anywhere_is_refused_or_whole(self, tmp_path: Path) -> None:
        whole = ir.to_proto(ir.from_onnx_text(TEXT)).SerializeToString()
        path = tmp_path / "m.onnx"
        refused = 0
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            try:
                storage.load(path)
            except ModelError:
                refused += 1
        # The last fields, opset imports and metadata, may go without harm to the graph.
        assert refused > 0.8 * len(whole)

    def test_any_bytes_are_refused_or_a_model(self, tmp_path: Path) -> None:
        whole = ir.to_proto(ir.from_onnx_text(TEXT)).SerializeToString()
        path, source = tmp_path / "m.onnx", random.Random(0)
        for _ in range(500):
            damaged = bytearray(whole)
            for _ in range(source.randint(1, 4)):
                damaged[source.randrange(len(damaged))] = source.randrange(256)
            path.write_bytes(damaged)
            with_error_of_ours_at_most(path)
        for _ in range(300):
            path.write_bytes(source.randbytes(source.randint(1, 200)))
            with_error_of_ours_at_most(path)


def with_error_of_ours_at_most(path: Path) -> None:
    try:
        model = storage.load(path)
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017 - most of these files are refused, not all
        return
    storage.weight_bytes(model)


class TestExternalData:
    """What may be wrong with the files that a model points to."""

    def refused(self, path: Path, message: str) -> None:
        with pytest.raises(ModelError, match=rf"in\.onnx: initializer 'w0': .*{message}"):
            storage.load(path)

    def test_missing(self, stored: Path) -> None:
        (stored.parent / "in.onnx.data").unlink()
        self.refused(stored, r"'in\.onnx\.data', but there is no such file")

    def test_too_short(self, stored: Path) -> None:
        os.truncate(stored.parent / "in.onnx.data", 1000)
        self.refused(stored, "bytes 0 to 2400, but the file has 1000")

    @pytest.mark.parametrize("offset", [4800, 1 << 62])
    def test_outside_the_file(self, stored: Path, offset: int) -> None:
        relocate(stored, offset=offset)
        self.refused(stored, f"bytes {offset} to ")

    @pytest.mark.parametrize("length", [0, 16, 4800])
    def test_length_that_is_not_that_of_the_shape(self, stored: Path, length: int) -> None:
        relocate(stored, length=length)
        self.refused(stored, f"take {length} bytes, but FLOAT.600. takes 2400")

    @pytest.mark.parametrize("entry", ["offset", "length"])
    @pytest.mark.parametrize("number", ["many", "-8"])
    def test_numbers_that_are_none(self, stored: Path, entry: str, number: str) -> None:
        relocate(stored, **{entry: number})
        with pytest.raises(ModelError, match=rf"graph cannot be read .*{number}"):
            storage.load(stored)

    @pytest.mark.parametrize(
        ("location", "message"),
        [
            ("/etc/passwd", "relative to the model's folder"),
            ("", "relative to the model's folder"),
            ("../in.onnx.data", "outside the model's folder"),
            ("a/../../in.onnx.data", "outside the model's folder"),
            (".", "not a regular file"),
            ("a\0b", "cannot be read"),
            ("x" * 300, "cannot be read"),
        ],
    )
    def test_bad_locations(self, stored: Path, location: str, message: str) -> None:
        relocate(stored, location=location)
        self.refused(stored, message)

    def test_a_tensor_made_by_hand_may_begin_before_the_file(self, stored: Path) -> None:
        shape, kind = ir.Shape([2]), ir.DataType.FLOAT
        tensor = ir.ExternalTensor("in.onnx.data", -8, 8, kind, shape=shape, name="w")
        tensor.base_dir = stored.parent
        assert "bytes -8 to 0" in (external_fault(tensor) or "")

    @pytest.mark.parametrize(
        ("kind", "size", "fault"), [("STRING", 2, "strings"), ("FLOAT", -2, "negative size")]
    )
    def test_tensors_that_cannot_be_external(self, kind: str, size: int, fault: str) -> None:
        shape, dtype = ir.Shape([size]), ir.DataType[kind]
        tensor = ir.ExternalTensor("any", 0, 8, dtype, shape=shape, name="w")
        assert fault in (external_fault(tensor) or "")

    def test_a_pipe_is_not_waited_for(self, stored: Path) -> None:
        os.mkfifo(stored.parent / "pipe")
        relocate(stored, location="pipe")
        self.refused(stored, "not a regular file")

    def test_symbolic_link_out_of_the_folder(self, stored: Path, tmp_path: Path) -> None:
        folder = tmp_path / "snapshot"
        folder.mkdir()
        shutil.copy(stored, folder / "in.onnx")
        (folder / "in.onnx.data").symlink_to(stored.parent / "in.onnx.data")
        self.refused(folder / "in.onnx", "leaves the model's folder.*by a copy")

    def test_symbolic_link_within_the_folder_is_fine(self, stored: Path) -> None:
        (stored.parent / "in.onnx.data").rename(stored.parent / "blob")
        (stored.parent / "in.onnx.data").symlink_to("blob")
        assert weights_in(stored)["w0"] == LARGE.tolist()

    def test_link_to_itself(self, stored: Path) -> None:
        (stored.parent / "in.onnx.data").unlink()
        (stored.parent / "in.onnx.data").symlink_to("in.onnx.data")
        self.refused(stored, "cannot be read|no such file")

    def test_hard_link(self, stored: Path) -> None:
        os.link(stored.parent / "in.onnx.data", stored.parent / "other")
        self.refused(stored, "2 hard links.*by a copy")

    def test_data_that_vanish_after_loading_make_an_error_of_ours(self, stored: Path) -> None:
        model = storage.load(stored)
        (stored.parent / "in.onnx.data").unlink()
        with pytest.raises(ModelError, match="no such file"):
            storage.save(model, stored.parent / "out.onnx")


class TestSave:
    def test_everything_is_kept(self, tmp_path: Path) -> None:
        model = ir.from_onnx_text(TEXT)
        model.graph[1].doc_string = "why"
        model.graph[1].metadata_props["layer"] = "first"
        model.graph.initializers["w"].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "x"}
        before = ir.to_proto(model).SerializeToString(deterministic=True)
        storage.save(model, tmp_path / "m.onnx")
        after = onnx.load(tmp_path / "m.onnx")
        assert after.SerializeToString(deterministic=True) == before
        again = storage.load(tmp_path / "m.onnx")
        assert ir.to_proto(again).SerializeToString(deterministic=True) == before

    def test_external_data_hold_the_large_tensors_and_other_tools_read_them(
        self, stored: Path
    ) -> None:
        proto = onnx.load(stored, load_external_data=False)
        places = [t.data_location for t in proto.graph.initializer]
        assert places == [onnx.TensorProto.EXTERNAL, onnx.TensorProto.DEFAULT, places[0]]
        assert (stored.parent / "in.onnx.data").stat().st_size == 2 * LARGE.nbytes
        onnx.checker.check_model(stored)
        full = onnx.load(stored)
        arrays = [onnx.numpy_helper.to_array(t) for t in full.graph.initializer]
        for array, expected in zip(arrays, [LARGE, SMALL, -LARGE], strict=True):
            np.testing.assert_array_equal(array, expected)

    def test_what_came_from_data_files_goes_to_data_files(self, stored: Path) -> None:
        storage.save(storage.load(stored), stored.parent / "out.onnx")
        assert (stored.parent / "out.onnx.data").is_file()

    def test_external_data_can_be_taken_in(self, stored: Path) -> None:
        storage.save(storage.load(stored), stored.parent / "out.onnx", external_data=False)
        assert not (stored.parent / "out.onnx.data").exists()
        assert weights_in(stored.parent / "out.onnx") == weights_in(stored)

    def test_a_small_model_has_one_file(self, tmp_path: Path) -> None:
        storage.save(model_of(LARGE), tmp_path / "m.onnx")
        assert names_in(tmp_path) == ["m.onnx"]

    @pytest.mark.parametrize(("limit", "files"), [(2400, 3), (4800, 2), (1, 3), (10**6, 1)])
    def test_shards(self, tmp_path: Path, limit: int, files: int) -> None:
        model = model_of(LARGE, -LARGE, 2 * LARGE)
        storage.save(model, tmp_path / "m.onnx", shard_bytes=limit)
        data = [name for name in names_in(tmp_path) if name.endswith(".data")]
        assert len(data) == files
        if files == 3:
            assert data[0] == "m.onnx-00001-of-00003.data"
        assert weights_in(tmp_path / "m.onnx") == weights_in(model)

    def test_a_shared_tensor_is_stored_once(self, tmp_path: Path) -> None:
        model = model_of(LARGE, LARGE)
        values = model.graph.initializers
        values["w1"].const_value = values["w0"].const_value
        storage.save(model, tmp_path / "m.onnx", external_data=True)
        assert (tmp_path / "m.onnx.data").stat().st_size == LARGE.nbytes
        assert weights_in(tmp_path / "m.onnx")["w1"] == LARGE.tolist()

    def test_progress_counts_bytes(self, tmp_path: Path) -> None:
        calls: list[tuple[int, int]] = []
        storage.save(
            model_of(LARGE, -LARGE),
            tmp_path / "m.onnx",
            external_data=True,
            progress=lambda done, total: calls.append((done, total)),
        )
        assert calls == [(2400, 4800), (4800, 4800)]

    @pytest.mark.parametrize("external_data", [True, False])
    def test_weights_that_are_computed_late_are_computed_once(
        self, tmp_path: Path, external_data: bool
    ) -> None:
        model, calls = model_of(LARGE, -LARGE), []

        def compute() -> ir.TensorProtocol:
            calls.append(1)
            return ir.tensor(LARGE + 1)

        lazy = ir.LazyTensor(compute, ir.DataType.FLOAT, ir.Shape(LARGE.shape), name="w0")
        model.graph.initializers["w0"].const_value = lazy
        storage.save(model, tmp_path / "m.onnx", external_data=external_data)
        assert len(calls) == 1
        assert weights_in(tmp_path / "m.onnx")["w0"] == (LARGE + 1).tolist()

    def test_narrow_elements_stay_packed(self, tmp_path: Path) -> None:
        import ml_dtypes

        codes = (np.arange(6000) % 16 - 8).astype(ml_dtypes.int4)
        model = model_of(LARGE)
        model.graph.initializers["w0"].const_value = ir.tensor(codes)
        storage.save(model, tmp_path / "a.onnx", external_data=True)
        assert (tmp_path / "a.onnx.data").stat().st_size == 3000
        loaded = storage.load(tmp_path / "a.onnx")
        storage.save(loaded, tmp_path / "b.onnx", external_data=False)
        tensor = loaded.graph.initializers["w0"].const_value
        assert isinstance(tensor, ir.ExternalTensor)
        assert tensor.raw is None, "copied as it was, not unpacked"
        again = storage.load(tmp_path / "b.onnx").graph.initializers["w0"].const_value
        assert again is not None
        np.testing.assert_array_equal(again.numpy(), codes)

    def test_names_and_metadata_of_tensors_survive_the_move(self, tmp_path: Path) -> None:
        proto = ir.to_proto(model_of(LARGE))
        proto.graph.initializer[0].doc_string = "trained"
        proto.graph.initializer[0].metadata_props.add(key="k", value="v")
        model = ir.from_proto(proto)
        storage.save(model, tmp_path / "a.onnx", external_data=True)
        storage.save(storage.load(tmp_path / "a.onnx"), tmp_path / "b.onnx", external_data=False)
        for name in ("a.onnx", "b.onnx"):
            tensor = onnx.load(tmp_path / name, load_external_data=False).graph.initializer[0]
            assert (tensor.name, tensor.doc_string) == ("w0", "trained")
            assert [(m.key, m.value) for m in tensor.metadata_props] == [("k", "v")]

    def test_empty_and_text_tensors_stay_inside(self, tmp_path: Path) -> None:
        model = model_of(LARGE, np.zeros((0, 3), np.float32))
        text = ir.StringTensor([b"a" * 2000], shape=ir.Shape([1]), name="w2")
        model.graph.initializers["w1"].meta["kept"] = True
        value = ir.Value(name="w2", const_value=text)
        model.graph.register_initializer(value)
        storage.save(model, tmp_path / "m.onnx", external_data=True)
        loaded = storage.load(tmp_path / "m.onnx").graph.initializers
        assert loaded["w1"].const_value.numpy().shape == (0, 3)  # type: ignore[union-attr]
        assert loaded["w2"].const_value.string_data() == [b"a" * 2000]  # type: ignore[union-attr]

    def test_an_empty_external_tensor_needs_no_file(self, stored: Path) -> None:
        proto = onnx.load(stored, load_external_data=False)
        proto.graph.initializer[0].dims[:] = [0]
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = "absent"
        stored.write_bytes(proto.SerializeToString())
        storage.save(storage.load(stored), stored.parent / "out.onnx")
        assert weights_in(stored.parent / "out.onnx")["w0"] == []

    def test_ir_version_rises_with_what_is_inside(self, tmp_path: Path) -> None:
        import ml_dtypes

        model = model_of(LARGE)
        storage.save(model, tmp_path / "m.onnx")
        assert onnx.load(tmp_path / "m.onnx").ir_version == 10
        values = model.graph.initializers
        values["w0"].const_value = ir.tensor(np.zeros(3, ml_dtypes.float4_e2m1fn))
        storage.save(model, tmp_path / "m.onnx")
        assert onnx.load(tmp_path / "m.onnx").ir_version == 11
        assert model.ir_version == 10, "the model in memory is left alone"

    def test_permissions_of_the_old_file_are_kept(self, tmp_path: Path) -> None:
        storage.save(model_of(SMALL), tmp_path / "m.onnx")
        (tmp_path / "m.onnx").chmod(0o640)
        storage.save(model_of(SMALL), tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == 0o640


class TestSaveOverOldFiles:
    def test_a_link_is_replaced_not_what_it_points_to(self, stored: Path, tmp_path: Path) -> None:
        before = stored.read_bytes()
        (tmp_path / "link.onnx").symlink_to(stored)
        storage.save(model_of(-LARGE), tmp_path / "link.onnx", external_data=True)
        assert stored.read_bytes() == before
        assert weights_in(tmp_path / "link.onnx")["w0"] == (-LARGE).tolist()

    def test_over_its_own_source(self, stored: Path) -> None:
        model = storage.load(stored)
        expected = weights_in(storage.load(stored))
        storage.save(model, stored)
        assert weights_in(stored) == expected
        assert weights_in(model) == expected, "the model in memory reads the new file"
        assert names_in(stored.parent) == ["in.onnx", "in.onnx-1.data"]
        storage.save(model, stored)
        assert weights_in(stored) == expected
        assert names_in(stored.parent) == ["in.onnx", "in.onnx.data"]

    def test_over_its_own_source_into_one_file(self, stored: Path) -> None:
        model = storage.load(stored)
        expected = weights_in(storage.load(stored))
        storage.save(model, stored, external_data=False)
        assert weights_in(model) == weights_in(stored) == expected
        assert names_in(stored.parent) == ["in.onnx"]

    def test_weights_computed_from_the_source_are_bound_to_the_new_file(self, stored: Path) -> None:
        model = storage.load(stored)
        old = model.graph.initializers["w0"].const_value
        assert old is not None
        model.graph.initializers["w0"].const_value = ir.LazyTensor(
            lambda: ir.tensor(old.numpy() * 2), ir.DataType.FLOAT, ir.Shape(LARGE.shape), name="w0"
        )
        storage.save(model, stored)
        assert weights_in(model)["w0"] == weights_in(stored)["w0"] == (LARGE * 2).tolist()

    def test_another_model_with_data_is_replaced_with_its_data(self, stored: Path) -> None:
        storage.save(model_of(3 * LARGE), stored, external_data=True)
        assert names_in(stored.parent) == ["in.onnx", "in.onnx-1.data"]
        assert weights_in(stored)["w0"] == (3 * LARGE).tolist()

    def test_the_name_of_a_missing_data_file_is_not_used(self, stored: Path) -> None:
        (stored.parent / "in.onnx.data").unlink()
        storage.save(model_of(-LARGE), stored, external_data=True)
        assert names_in(stored.parent) == ["in.onnx", "in.onnx-1.data"]

    def test_data_of_others_are_never_overwritten_or_removed(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx.data").write_bytes(b"mine")
        storage.save(model_of(LARGE), tmp_path / "m.onnx", external_data=True)
        storage.save(model_of(-LARGE), tmp_path / "m.onnx", external_data=True)
        assert (tmp_path / "m.onnx.data").read_bytes() == b"mine"
        assert len(names_in(tmp_path)) == 3

    def test_a_data_file_under_a_foreign_name_outlives_the_model(self, stored: Path) -> None:
        (stored.parent / "in.onnx.data").rename(stored.parent / "shared.bin")
        proto = onnx.load(stored, load_external_data=False)
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = "shared.bin"
        stored.write_bytes(proto.SerializeToString())
        storage.save(storage.load(stored), stored)
        assert "shared.bin" in names_in(stored.parent)

    def test_shards_get_new_names_too(self, tmp_path: Path) -> None:
        for _ in range(2):
            storage.save(model_of(LARGE, -LARGE), tmp_path / "m.onnx", shard_bytes=2400)
        assert names_in(tmp_path) == [
            "m.onnx",
            "m.onnx-1-00001-of-00002.data",
            "m.onnx-1-00002-of-00002.data",
        ]

    def test_shards_are_named_alike_even_if_one_name_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx-00002-of-00002.data").write_bytes(b"mine")
        storage.save(model_of(LARGE, -LARGE), tmp_path / "m.onnx", shard_bytes=2400)
        assert names_in(tmp_path) == [
            "m.onnx",
            "m.onnx-00002-of-00002.data",
            "m.onnx-1-00001-of-00002.data",
            "m.onnx-1-00002-of-00002.data",
        ]

    def test_garbage_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_bytes(b"\xff\xff")
        (tmp_path / "m.onnx.data").write_bytes(b"")
        storage.save(model_of(SMALL), tmp_path / "m.onnx")
        assert weights_in(tmp_path / "m.onnx")["w0"] == SMALL.tolist()


class TestSaveRefuses:
    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"'.*none' is not a folder. Create it"):
            storage.save(model_of(SMALL), tmp_path / "none" / "m.onnx")

    def test_anything_but_a_regular_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
            with pytest.raises(ModelError, match="not a regular file"):
                storage.save(model_of(SMALL), path)

    def test_the_data_file_that_the_model_reads(self, stored: Path) -> None:
        before = (stored.parent / "in.onnx.data").read_bytes()
        with pytest.raises(ModelError, match=r"in\.onnx\.data: holds the data of initializer 'w0'"):
            storage.save(storage.load(stored), stored.parent / "in.onnx.data")
        assert (stored.parent / "in.onnx.data").read_bytes() == before

    def test_two_values_of_one_name(self, tmp_path: Path) -> None:
        model = ir.from_onnx_text(TEXT)
        model.graph[1].outputs[0].name = "c"
        with pytest.raises(ModelError, match="'c' is given to two values"):
            storage.save(model, tmp_path / "m.onnx")
        assert names_in(tmp_path) == []

    @pytest.mark.parametrize("options", [{"shard_bytes": 0}, {"external_data": False}])
    def test_senseless_options(self, tmp_path: Path, options: dict[str, int]) -> None:
        with pytest.raises(OptionError, match="shard_bytes is"):
            storage.save(model_of(SMALL), tmp_path / "m.onnx", **{"shard_bytes": 5, **options})

    def test_an_error_while_weights_are_computed(self, stored: Path) -> None:
        def fail() -> ir.TensorProtocol:
            raise ZeroDivisionError

        model, before = storage.load(stored), names_in(stored.parent)
        model.graph.initializers["w0"].const_value = ir.LazyTensor(
            fail, ir.DataType.FLOAT, ir.Shape([600]), name="w0"
        )
        for external_data in (True, False):
            for path in (stored, stored.parent / "new.onnx"):
                with pytest.raises(ZeroDivisionError):
                    storage.save(model, path, external_data=external_data)
        assert names_in(stored.parent) == before
        assert weights_in(stored)["w0"] == LARGE.tolist()

    def test_a_disk_that_is_full_at_the_last_moment(
        self, stored: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, before = storage.load(stored), names_in(stored.parent)

        def full(path: Path, _content: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(ModelError, match=r"in\.onnx: cannot be written .*No space left"):
            storage.save(model, stored)
        assert names_in(stored.parent) == before
        assert weights_in(stored)["w0"] == LARGE.tolist()

    def test_what_protobuf_cannot_hold(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beside weights there may be a lot of text; protobuf itself is asked at the end."""

        def refuse(_model: ir.Model) -> onnx.ModelProto:
            raise EncodeError("too large")

        monkeypatch.setattr(ir, "to_proto", refuse)
        with pytest.raises(ModelError, match=r"one protobuf message.*external data"):
            storage.save(model_of(SMALL), tmp_path / "m.onnx")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_read_only_folder(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(ModelError, match="cannot be written"):
            storage.save(model_of(SMALL), tmp_path / "m.onnx")


class TestLargeModels:
    """Sizes are those of tensors that are never computed."""

    def huge(self, gigabytes: float) -> ir.Model:
        def never() -> ir.TensorProtocol:
            raise AssertionError("computed")

        model = model_of(SMALL)
        shape = ir.Shape([int(gigabytes * 1e9) // 4])
        lazy = ir.LazyTensor(never, ir.DataType.FLOAT, shape, name="w0")
        model.graph.initializers["w0"].const_value = lazy
        return model

    def test_weights_beyond_protobuf_go_to_data_files_by_themselves(self) -> None:
        assert datafiles.choose(list(slots(self.huge(1.4))), wanted=None, threshold=1024) == []
        assert len(datafiles.choose(list(slots(self.huge(1.6))), wanted=None, threshold=1024)) == 1

    def test_constant_nodes_beyond_protobuf_too(self) -> None:
        model = self.huge(1.6)
        tensor = model.graph.initializers["w0"].const_value
        model.graph.initializers["w0"].const_value = ir.tensor(LARGE)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
        node.outputs[0].name = "big"
        model.graph.insert_before(model.graph[0], node)
        chosen = datafiles.choose(list(slots(model)), wanted=None, threshold=1024)
        assert {slot.attribute for slot in chosen} == {"value", ""}

    def test_too_much_for_one_file_is_refused_before_anything_is_computed(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(ModelError, match=r"2400000000 bytes of weights.*external data"):
            storage.save(self.huge(2.4), tmp_path / "m.onnx", external_data=False)
        assert names_in(tmp_path) == []

    def test_weight_bytes_computes_nothing(self) -> None:
        assert storage.weight_bytes(self.huge(2.4)) == 2_400_000_000


def test_constant_nodes_in_data_files_are_read_by_the_standard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datafiles, "INLINE_LIMIT", 4)
    storage.save(ir.from_onnx_text(TEXT), tmp_path / "m.onnx", size_threshold=4)
    onnx.checker.check_model(tmp_path / "m.onnx")
    (constant, *_) = onnx.load(tmp_path / "m.onnx").graph.node
    assert onnx.numpy_helper.to_array(constant.attribute[0].t).tolist() == [3, 4]
    loaded = storage.load(tmp_path / "m.onnx")
    monkeypatch.undo()
    storage.save(loaded, tmp_path / "again.onnx", size_threshold=4)
    assert (tmp_path / "again.onnx.data").stat().st_size == 16, "what was outside stays outside"


def test_weight_bytes_counts_constants_too() -> None:
    assert storage.weight_bytes(ir.from_onnx_text(TEXT)) == 16


class TestSha256:
    def test_of_one_file_is_that_of_the_file(self, tmp_path: Path) -> None:
        storage.save(model_of(SMALL), tmp_path / "m.onnx")
        expected = hashlib.sha256((tmp_path / "m.onnx").read_bytes()).hexdigest()
        assert storage.sha256(tmp_path / "m.onnx") == expected

    def test_includes_external_data(self, stored: Path) -> None:
        data = stored.parent / "in.onnx.data"
        expected = hashlib.sha256(stored.read_bytes() + data.read_bytes()).hexdigest()
        assert storage.sha256(stored) == expected
        with data.open("r+b") as file:
            file.write(b"\x01")
        assert storage.sha256(stored) != expected


# Saves a model over another one, in a process that dies at its Nth operation on files.
KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
import onnx_ir as ir
from qgraph.storage import files as storage

os.fsync = lambda file: None  # a killed process loses nothing that it has written
folder, options = Path(sys.argv[1]), {
    "inline": {"external_data": False},
    "external": {"external_data": True},
    "safetensors": {"safetensors": True, "shard_bytes": 1200},
}[sys.argv[2]]
path = folder / "m.onnx"
wanted = {"old": 1.0, "new": 2.0}

def model(factor):
    def compute():
        return ir.tensor(np.full(600, factor, np.float32))
    lazy = ir.LazyTensor(compute, ir.DataType.FLOAT, ir.Shape([600]), name="w")
    value = ir.Value(name="w", const_value=lazy)
    node = ir.node("Neg", [value])
    node.outputs[0].name = "y"
    return ir.Model(ir.Graph([], node.outputs, nodes=[node], initializers=[value],
                             opset_imports={"": 21}, name="g"), ir_version=10)

def state():
    array = storage.load(path).graph.initializers["w"].const_value.numpy()
    assert array.shape == (600,) and (array == array[0]).all()
    return "old" if array[0] == 1 else "new"

seen, deaths = [], 0
while True:
    for left in list(folder.iterdir()):
        if left.is_dir():
            for inner in left.rglob("*"):
                inner.is_dir() or inner.unlink()
            for inner in sorted(left.rglob("*"), reverse=True):
                inner.rmdir()
            left.rmdir()
        else:
            left.unlink()
    storage.save(model(1.0), path, **options)
    child = os.fork()
    if child == 0:
        count = 0
        def hook(event, arguments):
            global count
            if event in {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod",
                         "os.chown", "os.link", "os.truncate", "fcntl.flock"}:
                count += 1
                if count == deaths + 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        storage.save(model(2.0), path, **options)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    seen.append(state())
    if deaths % 5 == 0:
        storage.save(model(1.0), path, **options)
        assert state() == "old"
        left = [name for name in os.listdir(folder) if name.startswith(".")]
        assert not left, (deaths, left)
    if not os.WIFSIGNALED(status):
        break
    deaths += 1
assert os.WEXITSTATUS(status) == 0
assert deaths >= 15, deaths
assert seen[0] == "old" and seen[-1] == "new" and seen == sorted(seen, reverse=True), seen
print(deaths)
"""


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    "where", ["inline", "external", pytest.param("safetensors", marks=pytest.mark.slow)]
)
def test_a_process_killed_at_any_moment_leaves_the_old_model_or_the_new_one(
    tmp_path: Path, where: str
) -> None:
    run_script(KILLED, tmp_path, where)


# Saves with too little room for the data file, then for the model file.
NO_ROOM = """
import os, resource, sys
from pathlib import Path
from qgraph.storage import files as storage
from qgraph.errors import ModelError

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
model = storage.load(folder / "in.onnx")
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    storage.save(model, folder / "in.onnx", external_data=sys.argv[3] == "external")
except ModelError as error:
    assert "in.onnx: cannot be written" in str(error), error
    sys.exit(0)
sys.exit("saved without room")
"""


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("limit", "where"), [(3000, "external"), (10, "external"), (99, "inline")])
def test_without_room_the_old_file_stands_alone(stored: Path, limit: int, where: str) -> None:
    before = {path.name: path.read_bytes() for path in stored.parent.iterdir()}
    run_script(NO_ROOM, stored.parent, str(limit), where)
    assert {path.name: path.read_bytes() for path in stored.parent.iterdir()} == before


def run_script(script: str, *arguments: object) -> None:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_a_large_model_is_loaded_without_its_weights(tmp_path: Path) -> None:
    """Half a gigabyte, of which loading, looking around and saving again touch nothing."""
    path = tmp_path / "m.onnx"
    array = np.zeros(1 << 27, np.uint8)
    storage.save(model_of(LARGE), path, external_data=True)
    proto = onnx.load(path, load_external_data=False)
    weight = proto.graph.initializer[0]
    weight.data_type, weight.dims[:] = onnx.TensorProto.UINT8, [array.size * 4]
    weight.raw_data = b""
    onnx.external_data_helper.set_external_data(weight, "m.onnx.data", 0, array.size * 4)
    path.write_bytes(proto.SerializeToString())
    with (tmp_path / "m.onnx.data").open("wb") as file:
        for _ in range(4):
            array.tofile(file)
    del array
    script = """
import resource, sys
from qgraph.storage import files as storage
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = storage.load(sys.argv[1])
assert storage.weight_bytes(model) == 1 << 29
storage.save(model, sys.argv[2])
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
assert grown < 100_000, grown
"""
    run_script(script, path, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size == 1 << 29


@pytest.mark.slow
def test_real_models_come_back_as_they_were(models: Path, tmp_path: Path) -> None:
    for path in sorted(models.glob("*.onnx")):
        storage.save(storage.load(path), tmp_path / path.name)
        expected = ir.to_proto(ir.load(path))
        expected.ir_version = max(expected.ir_version, storage.load(path).ir_version)
        found = onnx.load(tmp_path / path.name)
        assert found.ir_version >= expected.ir_version
        found.ir_version = expected.ir_version
        assert found.SerializeToString(deterministic=True) == expected.SerializeToString(
            deterministic=True
        ), path.name

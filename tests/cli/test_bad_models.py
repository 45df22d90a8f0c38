"""Whatever is wrong with a model or an input: one message that helps, exit status 3, no file."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

COMMANDS = {
    "info": ["info", "MODEL"],
    "run": ["run", "MODEL", "-o", "OUT"],
    "convert": ["convert", "MODEL", "-o", "OUT", "--to", "qdq", "--report", "REPORT"],
    "fold": ["fold", "MODEL", "-o", "OUT", "--report", "REPORT"],
    "transform": ["transform", "MODEL", "-o", "OUT", "-p", "fold-weights"],
    "check": ["check", "MODEL", "MODEL", "--report", "REPORT"],
}

RUNNING = ["run", "check"]


def arguments(command: str, model: Path) -> list[object]:
    names = {
        "MODEL": model,
        "OUT": model.with_name("out.onnx"),
        "REPORT": model.with_name("report.json"),
    }
    return [names.get(part, part) for part in COMMANDS[command]]


@pytest.fixture
def fails(qgraph, folder):
    """``fails(command, model, message)``: runs the command and returns what it says."""

    def check(command: str, model: Path, message: str) -> None:
        before = folder()
        found = qgraph(*arguments(command, model))
        assert found.status == 3, found
        assert found.out == ""
        assert message in found.error
        assert folder() == before

    return check


@pytest.mark.cases(fast=10)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"", "is empty"),
        (b"hello, this is not an ONNX model" * 10, "not an ONNX model"),
        (b"\x08\x0a", "no graph"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
    ids=["absent", "empty", "text", "no-graph", "pointer"],
)
def test_a_file_that_is_no_model(fails, tmp_path, command, content, message):
    path = tmp_path / "broken.onnx"
    if content is not None:
        path.write_bytes(content)
    fails(command, path, message)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_is_cut_short(qgraph, folder, model, command):
    """At any byte: an error of exit status 3, never a traceback, never a file."""
    whole = model.read_bytes()
    before = folder()
    for end in range(1, len(whole), 37):
        model.write_bytes(whole[:end])
        found = qgraph(*arguments(command, model))
        assert found.status == 3, (end, found)
        assert found.error
        assert folder() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_is_no_model(fails, tmp_path, command):
    (tmp_path / "model.onnx").mkdir()
    fails(command, tmp_path / "model.onnx", "is a folder")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_is_not_read_without_end(qgraph, tmp_path, command):
    (tmp_path / "model.onnx").symlink_to("/dev/zero")
    found = qgraph(*arguments(command, tmp_path / "model.onnx"))
    assert found.status == 3
    assert "is a device" in found.error
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_file_of_weights_is_not_read_as_a_model(qgraph, tmp_path):
    path = tmp_path / "model.onnx"
    path.touch()
    os.truncate(path, 5 << 30)
    found = qgraph("info", path)
    assert found.status == 3
    assert "has 5368709120 bytes or more" in found.error
    assert "Name the model file" in found.error


def test_other_files_are_not_read_without_end(qgraph, model):
    for words in (
        ["report", "/dev/zero", "--markdown", "out.md"],
        ["lock", str(model), "--check", "/dev/zero"],
        ["prove", "--verify", "/dev/zero", str(model), str(model)],
    ):
        found = qgraph(*words)
        assert found.status == 3
        assert "/dev/zero: cannot be read (is a device" in found.error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shape", "x:99999999999999999999,4"], "cannot have the shape"),
        (["--random", "99999999999999999999"], "is not in the range"),
    ],
)
def test_numbers_beyond_all_memory_are_usage(qgraph, model, words, message):
    found = qgraph("run", model, *words)
    assert found.status == 2
    assert message in found.error


@pytest.mark.cases(fast=10)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("absent", "there is no such file"),
        ("short", "but the file has 8"),
        ("outside", "outside the model's folder"),
        ("absolute", "relative to the model's folder"),
        ("link", "a link that leaves the model's folder"),
    ],
)
def test_external_data_that_cannot_be_used(
    qgraph, model, tmp_path, command, fault, message, folder
):
    inner = tmp_path / "inner"
    inner.mkdir()
    path, data = inner / "model.onnx", inner / "w.bin"
    ir.save(ir.load(model), path, external_data="w.bin", size_threshold_bytes=0)
    match fault:
        case "absent":
            data.unlink()
        case "short":
            data.write_bytes(data.read_bytes()[:8])
        case "outside" | "absolute":
            place = "../w.bin" if fault == "outside" else str(tmp_path / "w.bin")
            data.rename(tmp_path / "w.bin")
            _relocate(path, place)
        case "link":
            data.rename(tmp_path / "w.bin")
            data.symlink_to(tmp_path / "w.bin")
    before = {entry.name for entry in inner.iterdir()}
    found = qgraph(*arguments(command, path))
    assert found.status == 3
    assert message in found.error
    assert {entry.name for entry in inner.iterdir()} == before


def _relocate(path: Path, place: str) -> None:
    proto = onnx.ModelProto.FromString(path.read_bytes())
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place
    path.write_bytes(proto.SerializeToString())


def quant(mode: str = "ROUND", op: str = "Quant") -> str:
    """Two quantizers in a row, of which only the first is faulty."""
    return f"""
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        net (float[2,4] x) => (float[2,4] y)
        <float s = {{0.5}}, float z = {{0}}, float b = {{4}}, float good = {{4}}> {{
            [bad] a = qonnx.custom_op.general.{op}
                <signed = 1, narrow = 0, rounding_mode = "{mode}"> (x, s, z, b)
            [good] y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND"> (a, s, z, good)
        }}"""


def fake_quantize(levels: str = "levels = 256", limits: str = "float[1] lo = {-1}") -> str:
    upper = limits.replace(" lo ", " hi ").replace("-", "")
    return f"""
        <ir_version: 10, opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[2,4] x) => (float[2,4] y) <{limits}, {upper}> {{
            [bad] y = org.openvinotoolkit.FakeQuantize <{levels}> (x, lo, hi, lo, hi)
        }}"""


def width(number: float) -> dict[str, np.ndarray]:
    return {"b": np.array(number, np.float32)}


FAULTS = {
    "rounding": (quant(mode="STOCHASTIC"), {}, "'STOCHASTIC' is not known"),
    "no-bits": (quant(), width(0), "is 0, expected a whole number"),
    "half-bits": (quant(), width(2.5), "is 2.5, expected a whole number"),
    "nan-bits": (quant(), width(np.nan), "is nan, expected a whole number"),
    "minus-bits": (quant(), width(-3), "is -3, expected a whole number"),
    "levels-0": (fake_quantize("levels = 0"), {}, "there are 0 levels"),
    "levels-1": (fake_quantize("levels = 1"), {}, "there are 1 levels"),
    "levels": (fake_quantize('auto_broadcast = "numpy"'), {}, "'levels' is absent"),
    "range": (fake_quantize(limits="float[3] lo = {-1, -2, -3}"), {}, "does not broadcast"),
}


@pytest.mark.cases(fast=6)
@pytest.mark.parametrize("command", RUNNING)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_quantizer_does_not_run(fails, write, command, fault):
    text, initializers, message = FAULTS[fault]
    fails(command, write(text, **initializers), message)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_quantizer_is_left_out_of_a_conversion(qgraph, write, fault, read_json):
    text, initializers, message = FAULTS[fault]
    model = write(text, **initializers)
    assert qgraph(*arguments("convert", model)).status == 0
    report = read_json(model.with_name("report.json"))
    sites = {site["node"]: site for site in report["sites"]}
    assert sites["bad"]["outcome"] == "refused"
    assert message in sites["bad"]["reason"]
    assert sites.get("good", {"outcome": "changed"})["outcome"] == "changed"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_quantizer_is_named_by_info(qgraph, write, fault):
    text, initializers, message = FAULTS[fault]
    found = qgraph("info", write(text, **initializers))
    assert found.status == 0
    assert message in found.out


def pair(scale: str, zero_point: str, attributes: str = "") -> str:
    return f"""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[2,4] x) => (float[2,4] y) <{scale}, {zero_point}> {{
            [bad] q = QuantizeLinear {attributes} (x, s, z)
            [end] y = DequantizeLinear {attributes} (q, s, z)
        }}"""


@pytest.mark.cases(fast=12)
@pytest.mark.parametrize("command", ["info", "convert", "fold", "diff", "lock", "prove"])
@pytest.mark.parametrize(
    "text",
    [
        pair("float s = {1}", "int64 z = {0}"),
        pair("float s = {1}", "int8[4] z = {0, 0, 0, 0}"),
        pair("float[4] s = {1, 2, 3, 4}", "int8[4] z = {0, 0, 0, 0}", "<axis=1, block_size=2>"),
        pair("float[3] s = {1, 2, 3}", "int8[3] z = {0, 0, 0}", "<axis=1>"),
        pair("float[2,2] s = {1, 2, 3, 4}", "int8[2,2] z = {0, 0, 0, 0}", "<axis=7, block_size=2>"),
        pair("float[1,2,2] s = {1, 2, 3, 4}", "int8 z = {0}", "<axis=1, block_size=2>"),
    ],
    ids=["int64", "zero-points", "blocks", "channels", "axis", "rank"],
)
def test_a_parameter_that_does_not_fit(qgraph, write, command, text):
    """Such a pair is no quantizer, and the rest of the model is handled."""
    good = write(pair("float s = {1}", "int8 z = {0}"), name="good.onnx")
    model = write(text)
    more = {
        "convert": ["-o", model.with_name("o.onnx"), "--to", "qonnx"],
        "fold": ["-o", model.with_name("o.onnx")],
        "diff": [good],
        "prove": [good],
    }
    found = qgraph(command, model, *more.get(command, ()))
    expected = {"diff": {0, 1}, "prove": {1, 4}}  # what such a pair computes is nowhere defined
    assert found.status in expected.get(command, {0}), found
    assert "Error" not in found.err


@pytest.mark.parametrize("bits", [200, 3e38])
def test_a_width_beyond_all_numbers_gives_no_warning(qgraph, write, recwarn, bits):
    assert qgraph("info", write(quant(), **width(bits))).status == 0
    assert not recwarn.list


def test_a_weight_that_is_an_input_of_fewer_dimensions_than_its_scales(qgraph, tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    net (float[4] w, float[2,4,1] x) => (float[] y)
    <float[2,1,4] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2,1,1] s = {1, 2}, float o = {0},
     float b = {4}> {
        q = qonnx.custom_op.general.Quant (w, s, o, b)
        y = MatMul (x, q)
    }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    found = qgraph("info", path)
    assert (found.status, "could not be handled" in found.err) == (0, False)


def test_an_input_without_a_type_is_not_drawn(qgraph, model, tmp_path):
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
    path = tmp_path / "untyped.onnx"
    onnx.save(proto, path)
    found = qgraph("run", path, "--random", "1", "--backend", "numpy")
    assert (found.status, "Feed it" in found.error) == (2, True)


@pytest.mark.parametrize("command", RUNNING)
def test_an_unknown_operator_does_not_run(fails, write, command):
    fails(command, write(quant(op="Quantile")), "no kernel for operator")


def test_an_unknown_operator_is_named_by_info_and_left_by_convert(qgraph, write):
    model = write(quant(op="Quantile"))
    found = qgraph("info", model)
    assert "no installed backend can run: qonnx.custom_op.general::Quantile (1)" in found.out
    assert qgraph(*arguments("convert", model)).status == 0
    left = [node.op_type for node in ir.load(model.with_name("out.onnx")).graph]
    assert left[0] == "Quantile"


def test_a_missing_input_is_named_with_its_type(qgraph, model, tmp_path):
    np.savez(tmp_path / "in.npz", z=np.zeros((1, 4), np.float32))
    found = qgraph("run", model, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert found.status == 3
    assert "'x' (FLOAT[N,4])" in found.error
    assert "is not fed" in found.error
    assert "no inputs of the model are ignored: z" in found.err
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 4)), "float64"),
        (np.zeros((1, 5), np.float32), "[1, 5]"),
        (np.zeros(4, np.float32), "[4]"),
    ],
    ids=["dtype", "size", "rank"],
)
def test_an_input_that_does_not_fit(qgraph, model, tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    found = qgraph("run", model, "-i", f"x={tmp_path / 'x.npy'}")
    assert found.status == 3
    assert message in found.error
    assert "x" in found.error


@pytest.mark.parametrize(
    ("name", "option", "content", "message"),
    [
        ("absent.npy", "-i", None, "no such file"),
        ("text.npy", "-i", b"hello", "expected one array (.npy)"),
        ("short.npy", "-i", b"\x93NUMPY\x01\x00", "expected one array (.npy)"),
        ("text.npz", "--inputs", b"hello", "expected an archive of arrays (.npz)"),
        ("short.npz", "--inputs", b"PK\x03\x04", "expected an archive of arrays (.npz)"),
    ],
)
def test_an_input_file_that_is_none(qgraph, model, tmp_path, name, option, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    found = qgraph("run", model, option, f"x={path}" if option == "-i" else path)
    assert found.status == 3
    assert str(path) in found.error
    assert message in found.error


def test_an_archive_is_no_array_and_the_other_way_round(qgraph, model, tmp_path):
    x = np.zeros((1, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    found = qgraph("run", model, "-i", f"x={tmp_path / 'x.npz'}")
    assert (found.status, "it is an archive" in found.error) == (3, True)
    found = qgraph("run", model, "--inputs", tmp_path / "x.npy")
    assert (found.status, "one array without a name" in found.error) == (3, True)


def test_objects_are_not_unpickled(qgraph, model, tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    found = qgraph("run", model, "-i", f"x={tmp_path / 'x.npy'}")
    assert (found.status, "Python objects" in found.error) == (3, True)


def test_a_name_that_no_input_has(qgraph, model, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    found = qgraph("run", model, "-i", f"data={tmp_path / 'x.npy'}")
    assert found.status == 3
    assert "has no input 'data', expected 'x' (FLOAT[N,4])" in found.error


def damaged(path: Path, fault: str) -> None:
    """Write an archive with x and another array, damaged in one way."""
    x = io.BytesIO()
    np.save(x, np.zeros((1, 4), np.float32))
    data = x.getvalue()
    match fault:
        case "header":
            data = data.replace(b"}", b" ")
        case "nested":
            data = data[:10] + b"(" * (len(data) - 10)
        case "huge":
            data = data.replace(b"(1, 4), }" + b" " * 12, b"(1099511627776, 4), }")
        case "version":
            data = data[:6] + b"\x09" + data[7:]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    content = bytearray(path.read_bytes())
    local, entry = content.index(b"PK\3\4"), content.index(b"PK\1\2")
    match fault:
        case "encrypted":
            content[local + 6] = content[entry + 8] = 1
        case "method":
            content[local + 8] = content[entry + 10] = 99
        case "deflate":
            content[local + 40 : local + 50] = b"\xff" * 10
    path.write_bytes(content)


@pytest.mark.parametrize(
    "fault", ["header", "nested", "huge", "version", "encrypted", "method", "deflate"]
)
def test_a_damaged_archive_is_named(qgraph, model, tmp_path, fault):
    path = tmp_path / "in.npz"
    damaged(path, fault)
    found = qgraph("run", model, "--inputs", path)
    assert found.status == 3
    assert f"error: {path}: cannot be read (" in found.error
    assert "as numpy saves it" in found.error


def test_arrays_that_are_no_inputs_are_not_read(qgraph, model, tmp_path):
    """What the second array holds is broken; it would be noticed."""
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros((1, 4), np.float32))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.npy", b"no array")
    found = qgraph("run", model, "--inputs", path)
    assert found.status == 0
    assert "are ignored: other" in found.err


def test_a_link_to_itself_is_told_without_the_number_of_the_error(qgraph, tmp_path):
    loop = tmp_path / "loop.onnx"
    loop.symlink_to(loop)
    found = qgraph("fold", loop, "-o", tmp_path / "out.onnx")
    assert found.status == 3
    assert "loop.onnx: Too many levels of symbolic links. Correct this" in found.error

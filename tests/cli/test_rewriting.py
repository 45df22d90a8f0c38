"""convert, fold and transform: what they write, show, and refuse to overwrite."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph as library
from qgraph import transforms
from qgraph.comparison.check import Inputs

COMMANDS = {
    "convert": ["convert", "--to", "qdq"],
    "fold": ["fold"],
    "transform": ["transform", "-p", "convert{to=qdq}", "-p", "fold-weights"],
}


@pytest.fixture(params=COMMANDS)
def command(request):
    return COMMANDS[request.param]


def many(count: int) -> str:
    """A chain of ``count`` quantizers."""
    lines = "\n".join(
        f"[q{n}] v{n + 1} = qonnx.custom_op.general.Quant"
        f'<signed = 1, narrow = 0, rounding_mode = "ROUND"> (v{n}, s, z, b)'
        for n in range(count)
    )
    return f"""
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[2] v0) => (float[2] v{count})
        <float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{ {lines} }}"""


def test_the_result_is_a_valid_model_with_equal_outputs(qgraph, command, model, tmp_path):
    out = tmp_path / "out.onnx"
    found = qgraph(command[0], model, "-o", out, *command[1:])
    assert found.status == 0
    onnx.checker.check_model(out, full_check=True)
    library.check(model, out, Inputs(random=3), backend="numpy").raise_if_different()
    assert f"wrote {out}" in found.out


def test_convert_names_each_site_with_its_equality(qgraph, model, tmp_path):
    found = qgraph("convert", model, "-o", tmp_path / "out.onnx", "--to", "qdq")
    lines = [line.split("  ") for line in found.out.splitlines()]
    rows = {line[0].strip(): [part.strip() for part in line[1:] if part.strip()] for line in lines}
    assert rows["node"] == ["operator", "pass", "became", "equality", "compared on", "remark"]
    assert rows["act"][2:] == ["Q + Clip + DQ", "values", "every input", "NaN is not kept"]
    assert rows["weight"] == ["Quant", "convert", "DQ", "bits", "its constant"]
    assert "2 sites changed, all equal in value" in found.out
    assert "opset raised from 20 to 21" in found.err


def test_the_report_has_the_agreed_fields(qgraph, model, tmp_path, read_json):
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    qgraph("convert", model, "-o", out, "--to", "qdq", "--report", report)
    document = read_json(report)
    assert list(document) == [
        "qgraph", "schema", "command", "input", "output", "sites", "notes", "summary",
    ]  # fmt: skip
    assert document["qgraph"] == library.__version__
    assert (document["schema"], document["command"]) == (2, "convert")
    assert document["input"] == {"path": str(model), "sha256": _digest(model)}
    assert document["output"] == {
        "path": str(out),
        "sha256": _digest(out),
        "opset": 21,
        "ir_version": onnx.load(out).ir_version,
    }
    site = {site["node"]: site for site in document["sites"]}["act"]
    assert site | {"reason": None} == {
        "node": "act",
        "op": "qonnx.custom_op.general::Quant",
        "pass": "convert",
        "outcome": "changed",
        "spelling": "QuantizeLinear+Clip+DequantizeLinear",
        "exactness": "values",
        "method": "intervals",
        "differing_inputs": 0,
        "differing_codes": 0,
        "noise_ulps": None,
        "noise_steps": None,
        "witness": site["witness"],
        "bound": None,
        "reason": None,
        "reason_id": None,
        "figures": {},
        "stored": None,
        "is_part": False,
    }
    assert document["summary"] == {
        "changed": 2,
        "kept": 0,
        "refused": 0,
        "frozen_inputs": 0,
        "weight_bytes_before": 12 * 4 + 3 * 4,
        "weight_bytes_after": document["summary"]["weight_bytes_after"],
        "stored": {
            "weights": 1,
            "bytes_before": 12 * 4,
            "bytes_after": 12 // 2 + 4,
            "elements": 12,
            "unchanged": 12,
            "clipped": document["summary"]["stored"]["clipped"],
        },
    }


def test_the_command_is_one_call_of_the_library(qgraph, model, tmp_path, read_json):
    reports = [tmp_path / "a.json", tmp_path / "b.json"]
    out = tmp_path / "out.onnx"
    qgraph("convert", model, "-o", out, "--to", "qonnx", "--report", reports[0])
    step = transforms.ConvertDialect(to="qonnx")
    transforms.rewrite(model, out, step, report=reports[1], command="convert")
    assert read_json(reports[0]) == read_json(reports[1])


def test_refusals_are_listed_with_reasons_and_status_0(qgraph, write, tmp_path):
    text = """
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[2] x) => (float[2] y)
        <float s = {0.1}, float e = {4}, float m = {3}, float b = {7}, float h = {448}> {
            [act] y = qonnx.custom_op.general.FloatQuant (x, s, e, m, b, h)
        }"""
    model, out = write(text), tmp_path / "out.onnx"
    found = qgraph("convert", model, "-o", out, "--to", "openvino")
    assert found.status == 0
    (row,) = [line for line in found.out.splitlines() if line.startswith("act ")]
    assert row.split()[1:5] == ["FloatQuant", "FakeQuantize", "has", "evenly"]
    assert "UNCHANGED: No quantizer was changed; 1 refused." in found.out
    assert [node.op_type for node in onnx.load(out).graph.node] == ["FloatQuant"]
    quiet = qgraph("-q", "convert", model, "-o", out, "--to", "openvino")
    assert quiet.out == ""
    assert quiet.err == "warning: 1 quantizer left unchanged; the report says why\n"


def test_quiet_says_nothing_when_all_is_well(qgraph, command, model, tmp_path):
    assert qgraph(command[0], "-q", model, "-o", tmp_path / "o.onnx", *command[1:]) == (0, "", "")


def test_many_sites_are_gathered_unless_all_are_asked_for(qgraph, write, tmp_path):
    model, out = write(many(30)), tmp_path / "out.onnx"
    found = qgraph("convert", model, "-o", out, "--to", "qdq")
    (row,) = [line for line in found.out.splitlines() if "Q + Clip + DQ" in line]
    assert row.startswith("q0 and 29 more  Quant ")
    found = qgraph("convert", model, "-o", out, "--to", "qdq", "-v")
    assert sum("Q + Clip + DQ" in line for line in found.out.splitlines()) == 30


def test_many_refusals_for_one_reason_are_one_line(qgraph, write, tmp_path):
    model = write(many(30), s=np.float32(0))
    found = qgraph("convert", model, "-o", tmp_path / "out.onnx", "--to", "qdq")
    (line,) = [line for line in found.out.splitlines() if "scale is zero" in line]
    assert line.startswith("q0 and 29 more  Quant ")
    found = qgraph("convert", model, "-o", tmp_path / "out.onnx", "--to", "qdq", "-v")
    lines = [line for line in found.out.splitlines() if "scale is zero" in line]
    assert [line.split()[0] for line in lines] == [f"q{n}" for n in range(30)]


def test_initializers_that_are_inputs_too_are_frozen_unless_kept(qgraph, write, tmp_path):
    text = """
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[2] x, float s, float z, float b) => (float[2] y)
        <float s = {0.5}, float z = {0}, float b = {4}> {
            y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
        }"""
    model, out = write(text), tmp_path / "out.onnx"
    found = qgraph("convert", model, "-o", out, "--to", "qdq")
    assert "3 initializers that were also graph inputs became constants" in found.err
    assert [value.name for value in onnx.load(out).graph.input] == ["x"]
    found = qgraph("convert", model, "-o", out, "--to", "qdq", "--keep-inputs")
    assert "became constants" not in found.err
    assert "1 refused" in found.out
    assert [value.name for value in onnx.load(out).graph.input] == ["x", "s", "z", "b"]


@pytest.mark.parametrize("way", ["same", "spelling", "symlink", "hardlink"])
def test_the_model_is_not_overwritten(qgraph, command, model, tmp_path, way):
    out = tmp_path / "other.onnx"
    match way:
        case "same":
            out = model
        case "spelling":
            (tmp_path / "sub").mkdir()
            out = tmp_path / "sub" / ".." / model.name
        case "symlink":
            out.symlink_to(model)
        case "hardlink":
            os.link(model, out)
    before = model.read_bytes()
    found = qgraph(command[0], model, "-o", out, *command[1:])
    assert found.status == 2
    assert "is the input model" in found.error
    assert "--in-place" in found.error
    assert model.read_bytes() == before


@pytest.mark.parametrize("named", [True, False])
def test_in_place_replaces_the_model(qgraph, command, model, named):
    out = ["-o", model] if named else []
    expected = library.load(model).run({"x": np.eye(4, dtype=np.float32)}, backend="numpy")
    assert qgraph(command[0], model, *out, "--in-place", *command[1:]).status == 0
    operators = {node.op_type for node in onnx.load(model).graph.node}
    assert "DequantizeLinear" in operators
    found = library.load(model).run({"x": np.eye(4, dtype=np.float32)}, backend="numpy")
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_without_a_place_for_the_result_nothing_is_done(qgraph, command, model):
    found = qgraph(command[0], model, *command[1:])
    assert found.status == 2
    assert "-o OUT" in found.error


def test_weights_of_the_model_are_not_overwritten(qgraph, model, tmp_path):
    source = tmp_path / "external.onnx"
    ir.save(ir.load(model), source, external_data="w.bin", size_threshold_bytes=0)
    data = tmp_path / "w.bin"
    before = data.read_bytes()
    for options in (["-o", data], ["-o", tmp_path / "o", "--report", data]):
        found = qgraph("convert", source, *options, "--to", "qdq")
        assert found.status == 2
        assert "holds weights of the model that is read" in found.error
    assert data.read_bytes() == before
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("report", ["model.onnx", "out.onnx"])
def test_a_report_does_not_take_the_place_of_a_model(qgraph, model, tmp_path, report):
    before = model.read_bytes()
    options = ["-o", tmp_path / "out.onnx", "--to", "qdq", "--report", tmp_path / report]
    found = qgraph("convert", model, *options)
    assert found.status == 2
    assert "Name another file" in found.error
    assert model.read_bytes() == before
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_a_missing_folder_is_told_and_nothing_written(qgraph, model, tmp_path, folder, option):
    files = {"-o": tmp_path / "out.onnx", "--report": tmp_path / "r.json"}
    files[option] = tmp_path / "missing" / "file"
    before = folder()
    options = [part for pair in files.items() for part in pair]
    found = qgraph("convert", model, *options, "--to", "qdq")
    assert found.status == 3
    assert "missing' is not a folder. Create it first." in found.error
    assert folder() == before


def test_a_failing_pass_writes_nothing(qgraph, model, tmp_path, folder):
    before = folder()
    options = ["-o", tmp_path / "out.onnx", "--report", tmp_path / "r.json"]
    found = qgraph("convert", model, *options, "--to", "qqd")
    assert found.status == 2
    assert "There is no dialect called 'qqd'; did you mean 'qdq'?" in found.error
    assert folder() == before


def test_if_the_model_cannot_be_written_there_is_no_report(
    qgraph, model, tmp_path, folder, monkeypatch
):
    (tmp_path / "r.json").write_text("old")

    def full(*_arguments: object, **_options: object) -> None:
        raise library.QGraphError("disk full")

    monkeypatch.setattr("qgraph.storage.files.save", full)
    before = folder()
    options = ["-o", tmp_path / "out.onnx", "--report", tmp_path / "r.json", "--to", "qdq"]
    found = qgraph("convert", model, *options)
    assert found.status == 3
    assert "disk full" in found.error
    assert folder() == before
    assert (tmp_path / "r.json").read_text() == "old"


def test_an_existing_result_is_replaced_with_its_permissions(qgraph, model, tmp_path):
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    for file in (out, report):
        file.write_text("old")
        file.chmod(0o640)
    assert qgraph("fold", model, "-o", out, "--report", report).status == 0
    for file in (out, report):
        assert file.stat().st_mode & 0o777 == 0o640
        assert file.read_bytes() != b"old"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "-", "-o", "o.onnx", "--to", "qdq"], "'-' is not a file"),
        (["convert", "m.onnx", "-o", "-", "--to", "qdq"], "'-' is not a file"),
        (["convert", "m.onnx", "-o", "", "--to", "qdq"], "'' is not a file"),
        (["convert", "m.onnx", "-o", "o.onnx"], "The option --to DIALECT is missing: Target: qdq"),
        (["convert", "m.onnx", "-o", "o", "--to", "qdq", "--exact", "all"], "'all' is not one of"),
        (["convert", "m.onnx", "-o", "o", "--to", "qdq", "--opset", "0"], "range"),
        (
            ["convert", "m.onnx", "-o", "o", "--to", "qdq", "--opset", "x"],
            "not a valid whole number",
        ),
        (["convert", "m.onnx", "-o", "o", "--to", "qdq", "--timeout", "x"], "not a valid number"),
        (["convert", "m" * 300, "-o", "o", "--to", "qdq"], "the name of the file is too long"),
        (["diff", "m", "n", "--format", "csv", "--json"], "there is --format csv"),
        (["diff", "m", "n", "--json", "--format", "csv"], "there is --format csv"),
        (["lint", "m.onnx", "--target", ""], "There is no target ''"),
        (["transform", "m.onnx", "-o", "o.onnx"], "The option -p / --pass SPEC is missing"),
        (["transform", "m", "-o", "o", "-p", "fold-weight"], "did you mean 'fold-weights'?"),
        (["transform", "m", "-o", "o", "-p", "convert"], "needs the option 'to'"),
        (["fold", "m.onnx", "n.onnx", "-o", "o.onnx"], "names a file for one model"),
    ],
)
def test_wrong_usage(qgraph, arguments, message):
    found = qgraph(*arguments)
    assert found.status == 2
    assert message in found.err
    assert found.error


def test_options_of_convert_and_fold_are_those_of_the_passes(qgraph):
    for command, name in (("convert", "convert"), ("fold", "fold-weights")):
        help_text = qgraph(command, "--help").out
        for option in transforms.describe(transforms.TRANSFORMS.find(name)).options:
            assert f"--{option.name.replace('_', '-')} " in help_text
    from qgraph.quantizers.dialects.dialect import DIALECTS

    help_text = qgraph("convert", "--help").out
    assert all(name in help_text for name in DIALECTS.names())


def test_only_named_quantizers_are_converted(qgraph, model, tmp_path):
    (weight,) = (n.outputs[0].name for n in ir.load(model).graph if n.inputs[0].is_initializer())
    assert qgraph("convert", model, "-o", tmp_path / "out.onnx", "--to", "qdq", "--values", weight)
    found = [node.op_type for node in ir.load(tmp_path / "out.onnx").graph]
    assert "DequantizeLinear" in found
    assert "Quant" in found


def test_fold_shows_what_became_of_each_weight(qgraph, model, tmp_path):
    found = qgraph("fold", model, "-o", tmp_path / "out.onnx")
    (row,) = [line.split() for line in found.out.splitlines() if line.split()[1:2] == ["INT4"]]
    assert row[1:5] == ["INT4", "FLOAT", "48", "B"]
    told = "1 weight stored as codes, 48 B -> 10 B. Of 12 values, compared one by one, none changed"
    assert told in found.out


@pytest.mark.parametrize(
    ("text", "size"),
    [("600", 600), ("2GB", 2 * 10**9), ("1.5 KiB", 1536), ("0", None), ("x", None)],
)
def test_sizes_of_data_files_are_given_in_bytes(qgraph, model, tmp_path, text, size):
    out = tmp_path / "out.onnx"
    found = qgraph("fold", model, "-o", out, "--shard-size", text, "--external-threshold", "1B")
    assert found.status == (2 if size is None else 0)
    assert bool(list(tmp_path.glob("out.onnx*.data"))) == (size is not None)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

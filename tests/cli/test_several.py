"""Commands that take several models: files and folders, one bad model among them, processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

COMMANDS = {
    "convert": ["convert", "--to", "qdq"],
    "fold": ["fold"],
    "transform": ["transform", "-p", "fold-weights"],
    "deploy": ["deploy", "--target", "onnxruntime-cpu"],
}


@pytest.fixture
def zoo(model: Path, tmp_path: Path) -> Path:
    """A folder with two models, one of them in a folder within, and a file that is no model."""
    folder = tmp_path / "zoo"
    (folder / "inner").mkdir(parents=True)
    shutil.copy(model, folder / "a.onnx")
    shutil.copy(model, folder / "inner" / "b.onnx")
    (folder / "bad.onnx").write_text("this is no model")
    (folder / "notes.txt").write_text("nor is this")
    return folder


def each_command(*fast: str):
    """Parametrise a test over all commands; others than those named are in the slow tier."""
    return pytest.mark.parametrize(
        "command",
        [c if c in fast else pytest.param(c, marks=pytest.mark.slow) for c in COMMANDS],
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@each_command("convert")
def test_a_bad_model_does_not_stop_the_others_and_decides_the_status(
    qgraph, command, zoo, tmp_path
):
    name, *others = COMMANDS[command]
    out, report = tmp_path / "new" / "out", tmp_path / "r.json"
    found = qgraph(name, zoo, "--output-dir", out, "--report", report, *others)
    assert found.status == 3
    assert files(out) == {"a.onnx", "inner/b.onnx"}
    for path in files(out):
        onnx.checker.check_model(out / path)
    assert found.error.startswith(f"error: {zoo / 'bad.onnx'}: ")
    *_, count, last = found.out.splitlines()
    assert count == "3 models: 2 good, 1 failed"
    assert last == f"{zoo / 'bad.onnx'}: status 3"
    document = json.loads(report.read_text())
    assert list(document) == ["qgraph", "schema", "command", "models", "summary"]
    assert document["summary"] == {"models": 3, "failed": 1}
    first, bad, second = document["models"]
    assert (bad["path"], bad["status"]) == (str(zoo / "bad.onnx"), 3)
    assert first["input"]["path"] == str(zoo / "a.onnx")
    assert second["output"]["path"] == str(out / "inner" / "b.onnx")
    # an entry is what the command reports for that model alone
    alone = tmp_path / "alone.json"
    assert qgraph(name, zoo / "a.onnx", "-o", tmp_path / "a", "--report", alone, *others)[0] == 0
    paths = {"output": None, "prove": None, "lint": None}  # what names the file that is written
    assert first | paths == json.loads(alone.read_text()) | paths


def test_an_error_names_its_model(qgraph, zoo, tmp_path):
    models = [zoo / "a.onnx", zoo / "inner" / "b.onnx"]
    options = ["--to", "qdq", "--values", "nosuch", "--output-dir", tmp_path / "x"]
    found = qgraph("convert", *models, *options)
    assert found.status == 2
    for model in models:
        assert f"error: {model}: values is 'nosuch'" in found.err


@pytest.mark.slow
def test_processes_give_the_same_results_and_print_them_in_the_same_order(qgraph, zoo, tmp_path):
    single = qgraph("fold", zoo, "--output-dir", tmp_path / "x")
    shared = qgraph("fold", zoo, "--output-dir", tmp_path / "y", "--jobs", 2)
    assert (shared.status, shared.error) == (single.status, single.error)
    assert shared.out == single.out.replace(str(tmp_path / "x"), str(tmp_path / "y"))
    for path in files(tmp_path / "x"):
        assert (tmp_path / "x" / path).read_bytes() == (tmp_path / "y" / path).read_bytes()


def test_info_of_several_models_is_one_json_document(qgraph, zoo):
    alone = json.loads(qgraph("info", zoo / "a.onnx", "--json").out)
    found = qgraph("info", zoo / "a.onnx", zoo / "inner" / "b.onnx", "--json")
    assert found.status == 0
    document = json.loads(found.out)
    assert document["models"] == [alone, alone | {"path": str(zoo / "inner" / "b.onnx")}]
    found = qgraph("info", zoo, "--json")
    assert found.status == 3
    assert [model.get("status") for model in json.loads(found.out)["models"]] == [None, 3, None]


def test_info_of_several_models_shows_each_under_its_name(qgraph, zoo):
    found = qgraph("info", zoo / "a.onnx", zoo / "inner" / "b.onnx")
    lines = found.out.splitlines()
    assert [str(zoo / "a.onnx"), str(zoo / "inner" / "b.onnx")] == [
        line for line in lines if line.endswith(".onnx")
    ]
    assert lines[-1] == "2 models: 2 good, 0 failed"


def test_models_are_replaced_in_place(qgraph, zoo):
    (zoo / "bad.onnx").unlink()
    assert qgraph("fold", zoo, "--in-place").status == 0
    for path in ("a.onnx", "inner/b.onnx"):
        operators = {node.op_type for node in onnx.load(zoo / path).graph.node}
        assert "DequantizeLinear" in operators


def test_models_in_the_folder_for_results_are_no_input(qgraph, zoo):
    (zoo / "bad.onnx").unlink()
    for _ in range(2):
        found = qgraph("fold", zoo, "--output-dir", zoo / "out")
        assert found.out.endswith("2 models: 2 good, 0 failed\n")


@each_command("fold")
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    qgraph, command, zoo, model, tmp_path
):
    name, *others = COMMANDS[command]
    (tmp_path / "empty").mkdir()
    before = files(tmp_path)

    def refused(status: int, message: str, *arguments: object) -> None:
        found = qgraph(name, *arguments, *others)
        assert (found.status, found.out) == (status, "")
        assert message in found.error
        assert files(tmp_path) == before
        assert not (tmp_path / "out").exists()

    out = tmp_path / "out"
    a, b = zoo / "a.onnx", zoo / "inner" / "b.onnx"
    shutil.copy(a, tmp_path / "empty" / "A.onnx")
    before = files(tmp_path)
    refused(2, "their results would both be", a, tmp_path / "empty" / "A.onnx", "--output-dir", out)
    refused(2, "their results would both be", a, a, "--output-dir", out)
    (tmp_path / "empty" / "A.onnx").unlink()
    before = files(tmp_path)
    refused(3, "is a folder without models", tmp_path / "empty", "--output-dir", out)
    refused(2, "is read by this command", a, b, "--output-dir", zoo)
    refused(2, "is read by this command", a, b, "--output-dir", out, "--report", a)
    refused(2, "is a file, expected a folder", a, b, "--output-dir", model)
    refused(3, "cannot be made (Not a directory)", a, b, "--output-dir", model / "out")
    refused(2, "names a file for one model", a, b, "-o", out)
    refused(2, "names a file for one model", a, b, "--output-dir", out, "--markdown", out)
    refused(2, "--output-dir, the folder for the results, is missing", a, b)


def test_an_output_is_no_data_file_of_another_model(qgraph, zoo, model, tmp_path):
    import onnx_ir as ir

    ir.save(ir.load(model), zoo / "big.onnx", external_data="data.onnx", size_threshold_bytes=0)
    (tmp_path / "data.onnx").write_bytes(model.read_bytes())
    content = (zoo / "data.onnx").read_bytes()
    both = (zoo / "big.onnx", tmp_path / "data.onnx")
    found = qgraph("fold", *both, "--output-dir", zoo)
    assert found.status == 2
    assert "is read by this command" in found.error
    assert (zoo / "data.onnx").read_bytes() == content


def test_links_that_lead_in_circles_end(qgraph, zoo, tmp_path):
    (zoo / "inner" / "again").symlink_to(zoo)
    (zoo / "bad.onnx").unlink()
    (zoo / "self.onnx").symlink_to("self.onnx")
    found = qgraph("fold", zoo, "--output-dir", tmp_path / "out")
    assert found.status == 3
    assert f"{zoo / 'inner' / 'again'}: is a link to a folder, and is not searched" in found.err
    assert str(zoo / "self.onnx") in found.error
    assert files(tmp_path / "out") == {"a.onnx", "inner/b.onnx"}


def test_an_empty_folder_for_results_is_not_left(qgraph, zoo, tmp_path):
    found = qgraph("fold", zoo / "bad.onnx", "--output-dir", tmp_path / "new" / "out")
    assert found.status == 3
    assert not (tmp_path / "new").exists()


def test_a_list_of_reports_is_no_report(qgraph, zoo, tmp_path):
    qgraph("fold", zoo, "--output-dir", tmp_path / "out", "--report", tmp_path / "r.json")
    found = qgraph("report", tmp_path / "r.json", "--markdown", tmp_path / "r.md")
    assert found.status == 3
    assert "is a list of reports" in found.error

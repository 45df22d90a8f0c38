"""``--html`` and ``--sarif`` of several commands, and ``qgraph report``."""

from __future__ import annotations

import importlib.util
import json

import onnx_ir as ir
import pytest

from qgraph.cli.main import main
from tests.cli.conftest import QUANT

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

COMMANDS = ["convert", "fold", "transform", "prove", "check"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The content of a file to which ``model`` is converted."""
    folder = tmp_path_factory.mktemp("converted")
    source, out = folder / "model.onnx", folder / "other.onnx"
    ir.save(ir.from_onnx_text(QUANT), source)
    assert main(["convert", str(source), "-o", str(out), "--to", "qdq"]) == 0
    return out.read_bytes()


@pytest.fixture
def other(converted, tmp_path):
    out = tmp_path / "other.onnx"
    out.write_bytes(converted)
    return out


def line(command, model, other, tmp_path):
    out = tmp_path / "new.onnx"
    return {
        "convert": ("convert", model, "-o", out, "--to", "qdq"),
        "fold": ("fold", model, "-o", out),
        "transform": ("transform", model, "-o", out, "-p", "convert{to=onnx}"),
        "prove": ("prove", model, other),
        "check": ("check", model, other, "--backend", "numpy"),
    }[command]


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("command", COMMANDS)
def test_both_views_are_written(qgraph, model, other, tmp_path, read_json, command):
    page, log = tmp_path / "r.html", tmp_path / "r.sarif"
    plain = qgraph(*line(command, model, other, tmp_path))
    found = qgraph(*line(command, model, other, tmp_path), "--html", page, "--sarif", log)
    assert found.status == plain.status == 0
    assert found.out == plain.out
    html = page.read_text("utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert html.count("<svg") >= 1
    assert str(model) in html
    run = read_json(log)["runs"][0]
    assert run["automationDetails"]["id"].startswith(f"qgraph/{command}/")
    assert run["artifacts"][0]["location"]["uri"] == model.as_uri()
    assert run["artifacts"][0]["hashes"]["sha-256"] in html


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_report_makes_the_same_views_later(qgraph, model, other, tmp_path, command):
    option = "--certificate" if command == "prove" else "--report"
    paths = {name: tmp_path / name for name in ("r.json", "a.html", "a.sarif", "b.html", "b.sarif")}
    arguments = line(command, model, other, tmp_path)
    found = qgraph(
        *(*arguments, option, paths["r.json"], "--html", paths["a.html"]),
        *("--sarif", paths["a.sarif"]),
    )
    assert found.status == 0
    found = qgraph(
        "report", paths["r.json"], "--html", paths["b.html"], "--sarif", paths["b.sarif"]
    )
    assert found.status == 0
    assert found.out.splitlines() == [f"wrote {paths['b.html']}", f"wrote {paths['b.sarif']}"]
    assert json.loads(paths["a.sarif"].read_text()) == json.loads(paths["b.sarif"].read_text())
    if command != "check":  # which counts codes of the data, too
        assert paths["a.html"].read_text() == paths["b.html"].read_text()


def test_without_its_models_a_report_is_shown_without_steps(qgraph, model, other, tmp_path):
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    qgraph("prove", model, other, "--certificate", report)
    other.unlink()
    found = qgraph("report", report, "--html", page)
    assert found.status == 0
    assert "the model files are missing or have changed" in found.err
    assert "proved" in page.read_text()
    assert "<svg" not in page.read_text()


def test_a_model_can_be_replaced_and_shown(qgraph, model, tmp_path):
    page = tmp_path / "r.html"
    found = qgraph("fold", model, "--in-place", "--html", page)
    assert found.status == 0
    assert "Size summary" in page.read_text("utf-8")


@pytest.mark.slow
def test_differences_of_a_proof_are_findings(qgraph, write, model, tmp_path, read_json):
    text = model.read_bytes().replace(b"ROUND", b"FLOOR", 1)
    changed = tmp_path / "floor.onnx"
    changed.write_bytes(text)
    page, log = tmp_path / "r.html", tmp_path / "r.sarif"
    found = qgraph("prove", model, changed, "--html", page, "--sarif", log)
    assert found.status == 1
    assert "The steps around a difference" in page.read_text("utf-8")
    (result,) = read_json(log)["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("region-differs", "error")
    assert result["locations"][0]["logicalLocations"][0]["name"] == "act"


def test_what_is_not_proved_leaves_no_view(qgraph, model, tmp_path, folder):
    before = folder()
    found = qgraph("convert", model, "-o", tmp_path / "no" / "o.onnx", "--to", "qdq", "--html", "h")
    assert found.status == 3
    assert folder() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_overwritten(qgraph, model, other, tmp_path, folder, command):
    before = folder()
    arguments = line(command, model, other, tmp_path)
    assert "another file" in qgraph(*arguments, "--html", model).error
    found = qgraph(*arguments, "--html", tmp_path / "r", "--sarif", tmp_path / "r")
    assert found.status == 2
    assert "named twice" in found.error
    assert folder() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_libraries_are_named_before_any_work(
    qgraph, model, other, tmp_path, folder, monkeypatch, command
):
    before = folder()
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else known(name)
    )
    arguments = line(command, model, other, tmp_path)
    found = qgraph(*arguments, "--html", tmp_path / "r.html")
    assert found.status == 2
    assert "needs matplotlib, which is not installed" in found.error
    assert "pip install 'qgraph[report]'" in found.error
    assert folder() == before
    assert qgraph(*arguments, "--sarif", tmp_path / "r.sarif").status == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "cannot be read"),
        ("[1]", "is not a report of qgraph"),
        ('{"a": 1}', "is not a report of qgraph"),
        ('{"command": "check"}', "is not a valid report of qgraph"),
        ('{"command": "prove", "regions": 3, "verdict": "x"}', "is not a valid report of qgraph"),
        ('{"command": "convert", "sites": [1], "summary": {}}', "is not a valid report of qgraph"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_bad_reports(qgraph, tmp_path, folder, text, message):
    report = tmp_path / "r.json"
    report.write_text(text)
    for option in ("--html", "--sarif", "--markdown"):
        found = qgraph("report", report, option, tmp_path / "out")
        assert found.status == 3
        assert message in found.error
        assert folder() == {"r.json"}


def test_a_report_of_another_command_is_refused(qgraph, tmp_path):
    report = tmp_path / "r.json"
    report.write_text('{"command": "diff"}')
    for option in ("--html", "--sarif"):
        found = qgraph("report", report, option, tmp_path / "out")
        assert found.status == 2
        assert "expected one of bench, check" in found.error


def test_a_report_has_to_become_something(qgraph, tmp_path):
    found = qgraph("report", tmp_path / "r.json")
    assert found.status == 2
    assert "Add --html, --sarif, --markdown or --junit" in found.error


def test_verifying_writes_no_views(qgraph, model, other, tmp_path):
    found = qgraph("prove", model, other, "--verify", "c.json", "--html", tmp_path / "r.html")
    assert found.status == 2


@pytest.mark.parametrize("command", [*COMMANDS, "report"])
def test_help_has_both(qgraph, command):
    found = qgraph(command, "--help")
    assert found.status == 0
    assert "--html" in found.out
    assert "--sarif" in found.out


@pytest.mark.parametrize("command", ["convert", "fold", "transform", "check"])
def test_summaries_are_written(qgraph, model, other, tmp_path, command):
    summary = tmp_path / "r.md"
    found = qgraph(*line(command, model, other, tmp_path), "--markdown", summary)
    assert found.status == 0
    assert summary.read_text().startswith(f"## {command.capitalize()}: equal")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("check", ["--report", "{0}", "--junit", "{0}"]),
        ("check", ["--report", "{0}", "--markdown", "no/r.md"]),
        ("prove", ["--certificate", "{0}", "--junit", "{0}"]),
        ("prove", ["--certificate", "{0}", "--witness", "no/w.npz"]),
    ],
)
def test_what_cannot_be_written_is_told_before_any_work(
    qgraph, model, other, tmp_path, folder, monkeypatch, command, options
):
    monkeypatch.setattr("qgraph.cli.commands.check.ProgressBar", None)
    monkeypatch.setattr("qgraph.cli.commands.prove.ProgressBar", None)
    before = folder()
    words = [option.format(tmp_path / "r") for option in options]
    found = qgraph(*line(command, model, other, tmp_path), *words)
    assert found.status in (2, 3)
    assert "named twice" in found.error or "Create it first" in found.error
    assert folder() == before

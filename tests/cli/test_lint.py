"""``qgraph lint``: its output, exit status, settings and baseline."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx_ir as ir
import pytest

HEADER = '<ir_version: 10, opset_import: ["": 21]> net '
TRAP = f"""{HEADER} (float[N,4] x) => (float[N,4] y)
<float s = {{0.0}}, float t = {{0.1}}, int8 z = {{0}}> {{
    [bad] c = QuantizeLinear (x, s, z)
    d = DequantizeLinear (c, s, z)
    [relu] r = Relu (d)
    [half] e = QuantizeLinear (r, t, z)
    y = DequantizeLinear (e, t, z)
}}"""
CLEAN = f"{HEADER} (float[N,4] x) => (float[N,4] y) {{ [one] y = Sigmoid (x) }}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("trap", TRAP), ("sub/clean", CLEAN)):
        path = tmp_path / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        ir.save(ir.from_onnx_text(text), path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_exit_status_is_that_of_the_worst_finding(qgraph, folder: Path) -> None:
    outcome = qgraph("lint", "trap.onnx")
    assert outcome.status == 1
    assert "QG101 zero-scale" in outcome.out
    assert "ERRORS: 1 error" in outcome.out
    assert qgraph("lint", "sub/clean.onnx").status == 0
    assert qgraph("lint", "trap.onnx", "--ignore", "QG101").status == 0  # an information is left
    assert qgraph("lint", "trap.onnx", "--ignore", "QG101", "--fail-on", "info").status == 1
    assert qgraph("lint", "trap.onnx", "--fail-on", "never").status == 0
    assert qgraph("lint", "trap.onnx", "--select", "QG13").status == 2
    assert qgraph("lint", "trap.onnx", "--select", "QG1", "--ignore", "QG1").status == 2
    assert qgraph("lint", "trap.onnx", "--target", "onnxrutime").status == 2


def test_a_folder_is_one_report(qgraph, folder: Path) -> None:
    outcome = qgraph("lint", ".", "--format", "json", "--report", "r.json", "--junit", "r.xml")
    document = json.loads(outcome.out)
    assert document == json.loads(Path("r.json").read_text())
    assert [model["path"] for model in document["models"]] == ["sub/clean.onnx", "trap.onnx"]
    assert document["summary"] == {"error": 1, "warning": 0, "info": 2, "models": 2, "known": 0}
    assert {rule["id"] for rule in document["rules"]} == {"QG101", "QG707", "QG714"}
    suite = ET.parse("r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "0")


@pytest.mark.slow  # starts processes
def test_several_processes_write_the_same_report(qgraph, folder: Path) -> None:
    Path("sub/broken.onnx").write_bytes(b"nothing")
    one, two = (qgraph("lint", ".", "--json", "--jobs", jobs) for jobs in ("1", "2"))
    assert (one.status, one.out, one.err) == (two.status, two.out, two.err)
    assert one.status == 3
    assert "sub/broken.onnx" in one.err
    assert qgraph("lint", ".", "--jobs", "2", "--target", "onnxrutime").status == 2


def test_a_warning_is_a_failure_of_a_test_and_no_error(qgraph, folder: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[N,4] x) => (float[N,4] y)
        <float s = {-0.1}, uint8 z = {128}> {
            [bad] c = QuantizeLinear (x, s, z)    [one] y = DequantizeLinear (c, s, z) }"""
    proto = ir.serde.serialize_model(ir.from_onnx_text(text))
    Path("trap.onnx").write_bytes(proto.SerializeToString())
    assert qgraph("lint", "trap.onnx", "--select", "QG104", "--junit", "r.xml").status == 1
    suite = ET.parse("r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")


def test_a_model_that_cannot_be_read_is_named_and_the_others_are_linted(qgraph, folder) -> None:
    Path("sub/broken.onnx").write_bytes(b"nothing")
    views = ("--report", "r.json", "--sarif", "r.sarif", "--junit", "r.xml")
    outcome = qgraph("lint", ".", *views)
    assert outcome.status == 3
    document = json.loads(Path("r.json").read_text())
    assert len(document["models"]) == 2
    assert [each["path"] for each in document["failed"]] == ["sub/broken.onnx"]
    (run,) = json.loads(Path("r.sarif").read_text())["runs"]
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    (told,) = invocation["toolExecutionNotifications"]
    (place,) = told["locations"]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "sub/broken.onnx"}
    assert (told["level"], told["message"]["text"]) == ("error", document["failed"][0]["error"])
    suite = ET.parse("r.xml").getroot()
    (error,) = suite.findall("testcase[@name='sub/broken.onnx']/error")
    assert error.get("message") == document["failed"][0]["error"]
    assert suite.get("errors") == "1"
    assert qgraph("lint", "sub/broken.onnx").status == 3
    *_, last = qgraph("lint", ".", "--format", "github").out.splitlines()
    assert last.startswith("::error file=sub/broken.onnx::sub/broken.onnx: these 7 bytes are not")


def test_annotations_are_those_of_github(qgraph, folder: Path) -> None:
    lines = qgraph("lint", "trap.onnx", "--format", "github").out.splitlines()
    assert lines[0] == (
        "::error file=trap.onnx,title=QG101 zero-scale::bad: 1 of 1 scales are 0: every value is "
        "divided by zero"
    )
    assert lines[-1].startswith("::notice file=trap.onnx,title=QG714 ")


def write_chain() -> None:
    """Write a model with constant codes that a pass folds."""
    text = CLEAN.replace("y = Sigmoid (x) }", """y = MatMul (x, e)
        [chain] e = DequantizeLinear (k, s) k = Clip (w, lo, hi) }""").replace(
        "{ [one]", """<int8[4,4] w = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},
        int8 lo = {-8}, int8 hi = {7}, float s = {0.1}> { [one]""")  # fmt: skip
    proto = ir.serde.serialize_model(ir.from_onnx_text(text))
    Path("chain.onnx").write_bytes(proto.SerializeToString())


def test_sarif_has_rules_levels_and_fixes(qgraph, folder: Path) -> None:
    write_chain()
    assert qgraph("lint", "chain.onnx", "--select", "QG413", "--sarif", "r.sarif").status == 1
    (run,) = json.loads(Path("r.sarif").read_text())["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["QG413"]
    (result,) = run["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("QG413", 0, "warning")
    (fix,) = result["fixes"]
    text = fix["description"]["text"]
    assert text == "qgraph lint chain.onnx --select QG413 --fix -o OUT (fold-constants, bits)"
    (change,) = fix["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "chain.onnx"
    assert change["replacements"]


def test_the_paths_of_a_baseline_are_those_from_its_folder(qgraph, folder: Path, monkeypatch):
    assert qgraph("lint", "trap.onnx", "--write-baseline", "sub/known.json").status == 0
    monkeypatch.chdir("sub")
    assert qgraph("lint", "../trap.onnx", "--baseline", "known.json").status == 0
    Path("trap.onnx").write_bytes(Path("../trap.onnx").read_bytes())
    assert qgraph("lint", "trap.onnx", "--baseline", "known.json").status == 1


def test_a_report_for_programs_has_no_lines_of_the_difference(qgraph, folder: Path) -> None:
    write_chain()
    assert "+++ after" in qgraph("lint", "chain.onnx", "--fix", "--diff").out
    outcome = qgraph("lint", "chain.onnx", "--fix", "--diff", "--format", "json")
    assert json.loads(outcome.out)["command"] == "lint"
    assert "+++ after" in outcome.err


def test_a_baseline_leaves_known_findings_out(qgraph, folder: Path) -> None:
    written = qgraph("lint", ".", "--write-baseline", "known.json")
    assert written.status == 0
    assert "wrote known.json" in written.err
    outcome = qgraph("lint", ".", "--baseline", "known.json", "--format", "json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["summary"]["known"] == 3
    known = json.loads(Path("known.json").read_text())
    known["findings"] = [each for each in known["findings"] if each["id"] != "QG101"]
    Path("known.json").write_text(json.dumps(known))
    assert qgraph("lint", ".", "--baseline", "known.json").status == 1
    Path("known.json").write_text("{}")
    assert "is no baseline" in qgraph("lint", ".", "--baseline", "known.json").error


def test_settings_are_those_of_the_nearest_project(qgraph, folder: Path, monkeypatch) -> None:
    Path("pyproject.toml").write_text('[tool.qgraph.lint]\nignore = ["QG101"]\n')
    assert qgraph("lint", "trap.onnx").status == 0
    monkeypatch.chdir(folder / "sub")
    assert qgraph("lint", "../trap.onnx").status == 0
    Path("qgraph.toml").write_text('[lint]\nfail-on = "info"\nselect = ["hygiene"]\n')
    assert qgraph("lint", "../trap.onnx").status == 1
    for text, message in (
        ("[lint]\nignored = []", "'ignored'"),
        ("[lint]\nignore = 1", "a list of strings"),
        ('[lint]\nfail-on = "x"', "fail-on"),
        ("[lint", "TOML"),
        ('target = "iree"', "there is 'target', expected the table [lint]"),
        ("[tool.qgraph.lint]", "there is 'tool', expected the table [lint]"),
    ):
        Path("qgraph.toml").write_text(text)
        outcome = qgraph("lint", "../trap.onnx")
        assert outcome.status == 2
        assert message in outcome.error


def test_data_is_looked_at_where_inputs_are_given(qgraph, folder: Path) -> None:
    Path("data.onnx").write_bytes(
        ir.serde.serialize_model(
            ir.from_onnx_text(TRAP.replace("{0.0}", "{100.0}"))
        ).SerializeToString()
    )
    assert "QG807" not in qgraph("lint", "data.onnx").out
    np.savez("x.npz", x=np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4))
    found = qgraph("lint", "data.onnx", "--inputs", "x.npz", "--select", "QG8")
    assert "QG807 constant-data" in found.out


def test_explain_shows_the_page_of_a_rule(qgraph) -> None:
    outcome = qgraph("explain", "qg112")
    assert outcome.out.startswith("QG112 bias-scale (correctness, error)\n")
    assert "    [here] y = Gemm (d, e, f)" not in outcome.out.split("Before:")[0]
    assert "        [here] y = Gemm (d, e, f)" in outcome.out
    assert "--ignore QG112" in outcome.out
    assert qgraph("explain", "bias-scale").out == outcome.out


CHAIN = f"""{HEADER} (float[N,4] x) => (float[N,4] y)
<int8[4,4] w = {{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}}, int8 lo = {{-8}},
 int8 hi = {{7}}, float s = {{0.1}}> {{
    k = Clip (w, lo, hi)
    [chain] e = DequantizeLinear (k, s)
    [one] y = MatMul (x, e)
}}"""


def test_fixes_are_written_where_they_are_wanted(qgraph, folder: Path) -> None:
    path = Path("chain.onnx")
    ir.save(ir.from_onnx_text(CHAIN), path)
    before = path.read_bytes()
    shown = qgraph("lint", path, "--select", "QG413", "--diff")
    assert shown.status == 1
    assert "-k = Clip (w, lo, hi)" in shown.out
    assert path.read_bytes() == before
    assert qgraph("lint", path, "--select", "QG413", "--fix", "-o", "new.onnx").status == 0
    assert path.read_bytes() == before
    assert qgraph("prove", path, "new.onnx").status == 0
    assert qgraph("lint", path, "--select", "QG413", "--fix", "--in-place").status == 0
    fixed = path.read_bytes()
    assert fixed != before
    assert qgraph("lint", path, "--select", "QG413", "--fix", "--in-place").status == 0
    assert path.read_bytes() == fixed


def test_options_of_fixes_go_together(qgraph, folder: Path) -> None:
    for arguments in (["--fix"], ["-o", "y.onnx"], ["--fix", "-o", "y.onnx", "--in-place"]):
        assert qgraph("lint", "trap.onnx", *arguments).status == 2
    assert qgraph("lint", ".", "--fix", "-o", "y.onnx").status == 2
    assert qgraph("lint", ".", "--fix", "--in-place", "--jobs", "2").status == 2

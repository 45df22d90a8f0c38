"""Commands that compare two folders of models, pair by pair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

TEXT = """<ir_version: 10, opset_import: ["": 21]>
net (float16[N,4] x) => (float16[N,4] y) { y = FORM (x) }"""


@pytest.fixture
def folders(write, tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with two models: the first are equal, the second, in a folder, are not."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, operator in ((ours, "Relu"), (theirs, "Neg")):
        (folder / "inner").mkdir(parents=True)
        shutil.move(write(TEXT.replace("FORM", "Relu")), folder / "a.onnx")
        shutil.move(write(TEXT.replace("FORM", operator)), folder / "inner" / "b.onnx")
    return ours, theirs


@pytest.mark.slow
def test_models_of_the_same_name_are_proved(qgraph, folders, tmp_path):
    proofs = tmp_path / "proofs"
    found = qgraph("prove", *folders, "--certificate", proofs, "--junit", proofs)
    assert found.status == 1
    assert found.out.count(" and ") >= 2
    *_, count, last = found.out.splitlines()
    assert count == "2 pairs: 1 good, 1 failed"
    assert last == f"{folders[1] / 'inner' / 'b.onnx'}: status 1: different"
    verdicts = {
        str(path.relative_to(proofs)): json.loads(path.read_text())["verdict"]
        for path in proofs.rglob("*.json")
    }
    assert verdicts == {"a.json": "proved", "inner/b.json": "different"}
    assert ET.parse(proofs / "inner" / "b.xml").getroot().get("failures") == "1"
    again = qgraph("prove", *folders, "--verify", proofs)
    assert again.status == 1
    assert again.out.splitlines()[-2] == "2 pairs: 1 good, 1 failed"


def test_a_report_of_a_check_has_all_pairs(qgraph, folders, tmp_path):
    report = tmp_path / "r.json"
    found = qgraph("check", *folders, "--random", 2, "--report", report, "-q")
    assert found.status == 1
    assert f"{folders[0] / 'a.onnx'} and {folders[1] / 'a.onnx'}" in found.out
    document = json.loads(report.read_text())
    assert [model["verdict"] for model in document["models"]] == ["equal", "different"]
    assert document["summary"] == {"models": 2, "failed": 1}
    printed = qgraph("check", *folders, "--random", 2, "--json")
    assert json.loads(printed.out)["summary"] == document["summary"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_model_without_a_counterpart_is_an_error(qgraph, folders, side):
    missing = folders[side] / "inner" / "b.onnx"
    missing.unlink()
    found = qgraph("prove", *folders)
    assert found.status == 3
    assert found.error.startswith(f"error: {missing}: is missing, expected a counterpart of each")
    assert found.out == ""


@pytest.mark.slow
def test_a_model_that_cannot_be_read_does_not_stop_the_others(qgraph, folders):
    (folders[1] / "a.onnx").write_text("this is no model")
    found = qgraph("prove", *folders)
    assert found.status == 3
    assert "2 pairs: 0 good, 2 failed" in found.out
    assert "DIFFERENT" in found.out


def test_a_folder_and_a_file_are_no_pair(qgraph, folders):
    assert qgraph("prove", folders[0], folders[1] / "a.onnx").status == 3
    assert qgraph("check", *folders, "--junit", "-").status == 2


def test_a_folder_that_is_not_there_is_named_before_its_reports(qgraph, folders):
    found = qgraph("prove", "absent", folders[1], "--certificate", "proofs", "--junit", "proofs")
    assert found.status == 3
    assert "absent: there is no such file, expected a model, or a folder of models" in found.error

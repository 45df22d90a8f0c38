"""``qgraph check``: exit status, tolerances and reports."""

from __future__ import annotations

import json
import re
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from qgraph import check, load
from qgraph.comparison.check import Inputs

MODEL = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N,4] x) => (float[N,4] y, float[N,4] p)
    <float s = {0.5}, float z = {0}, float b = {4}, float shift = {0}> {
        a = Add (x, shift)
        [act] y = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (a, s, z, b)
        p = Mul (x, s)
    }"""


@pytest.fixture
def pair(write):
    """Two models that differ in the output y by at most one step, 0.5."""
    return write(MODEL, "one.onnx"), write(MODEL, "other.onnx", shift=np.float32(0.25))


def test_equal_models_are_0(qgraph, pair):
    found = qgraph("check", pair[0], pair[0], "--random", 2)
    assert (found.status, found.talk) == (0, "")
    assert found.err.startswith(f"next: qgraph prove {pair[0]} {pair[0]}  # ")
    assert found.out.splitlines()[-1] == (
        "EQUAL: Every value of 2 outputs is the same in both models on the tested inputs."
    )


def test_different_models_are_1_and_the_first_divergence_is_named(qgraph, pair):
    found = qgraph("check", *pair, "--shape", "x:64,4")
    assert found.status == 1
    last = "DIFFERENT: Of 2 outputs, 'y' differs by more than the tolerance allows."
    assert found.out.splitlines()[-1] == last
    assert "The first tensor that differs is 'a' by up to 0.25, which Add" in found.out


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--atol", 0.5], 0),
        (["--atol", 0.4], 1),
        (["--atol", "y:0.5"], 0),
        (["--atol", "p:0.5"], 1),
        (["--atol", 0, "--atol", "y:0.5"], 0),
        (["--atol", "y:0.4", "--atol", 9], 1),
        (["--max-steps", "y:1"], 0),
        (["--max-steps", "y:0.5"], 1),
        (["--min-sqnr", -20], 0),
        (["--min-sqnr", 200], 1),
        (["--rtol", "y:1e9", "--atol", "y:1"], 0),
    ],
)
def test_tolerances(qgraph, pair, options, status):
    found = qgraph("check", *pair, *options, "--shape", "x:64,4")
    assert found.status == status, found
    verdict = "WITHIN TOLERANCE" if status == 0 else "DIFFERENT: Of 2"
    assert found.out.splitlines()[-1].startswith(verdict)


@pytest.mark.slow
def test_a_headline_says_what_differs_within_the_tolerance(qgraph, pair, tmp_path, read_json):
    """The outputs hold 512 and 256 values, and those of 'y' differ by steps of 0.5."""
    files = [tmp_path / f"r.{kind}" for kind in ("md", "html", "json")]
    options = [w for file in files for w in (f"--{FLAGS[file.suffix]}", file)]
    found = qgraph("check", *pair, "--atol", 0.5, "--shape", "x:64,4", *options)
    document = read_json(files[2])
    assert (found.status, document["verdict"]) == (0, "equal")
    differing, total = (sum(o[k] for o in document["outputs"]) for k in ("mismatches", "elements"))
    told = f"{differing} of {total} values of 2 outputs differ by up to 0.5"
    assert found.out.splitlines()[-1].startswith(f"WITHIN TOLERANCE: {told}")
    assert files[0].read_text().splitlines()[:3:2] == [
        "## Check: within tolerance",
        f"{told}, which the tolerance allows.",
    ]
    page = files[1].read_text()
    assert "<title>qgraph check: within tolerance" in page
    assert 'class="good' not in page[page.index("<h1") : page.index("</h1>")]


FLAGS = {".md": "markdown", ".html": "html", ".json": "report"}


def test_inputs_come_from_files(qgraph, pair, tmp_path):
    np.save(tmp_path / "x.npy", np.full((2, 4), 0.5, np.float32))
    np.savez(tmp_path / "x.npz", x=np.full((2, 4), 0.25, np.float32))
    # 0.5 + 0.25 is a tie that goes up, 0.25 + 0.25 is no tie and changes the code as well.
    assert qgraph("check", *pair, "-i", f"x={tmp_path / 'x.npy'}").status == 1
    assert qgraph("check", pair[0], pair[0], "--inputs", tmp_path / "x.npz").status == 0


def test_the_reports_are_written_whatever_the_verdict(qgraph, pair, tmp_path, read_json):
    files = {name: tmp_path / f"r.{name}" for name in ("json", "junit", "markdown")}
    options = [part for key in files for part in (f"--{key}".replace("json", "report"), files[key])]
    for candidate, verdict in ((pair[0], "equal"), (pair[1], "different")):
        qgraph("check", pair[0], candidate, *options, "--random", 9, "--backend", "numpy")
        expected = check(pair[0], candidate, Inputs(random=9), backend="numpy")
        assert read_json(files["json"]) == json.loads(json.dumps(expected.to_json()))
        assert read_json(files["json"])["verdict"] == verdict
        assert ET.parse(files["junit"]).getroot().tag == "testsuite"
        assert files["markdown"].read_text() == expected.to_markdown()


def test_the_report_does_not_replace_a_model(qgraph, pair):
    before = pair[0].read_bytes()
    found = qgraph("check", *pair, "--report", pair[0])
    assert found.status == 2
    assert pair[0].read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--atol", "small"], "'small' is neither a number nor of the form NAME:1e-4"),
        (["--atol", "y:"], "'y:' is neither a number"),
        (["--atol", -1], "atol is -1"),
        (["--atol", "nan"], "atol is nan"),
        (["--min-sqnr", "nan"], "min_sqnr is nan"),
        (["--max-steps", "q:1"], "max_steps is given for output 'q'"),
        (["--random", "x"], "'x' is not a valid whole number"),
    ],
)
def test_wrong_usage(qgraph, pair, options, message):
    found = qgraph("check", *pair, *options)
    assert found.status == 2
    assert message in found.error


def test_models_of_different_interfaces_are_3(qgraph, pair, model):
    found = qgraph("check", pair[0], model)
    assert found.status == 3
    assert "expected as many" in found.error


def test_names_matched_by_position_are_told(qgraph, write):
    first, second = write(MODEL), write(MODEL.replace("y", "yy"), "other.onnx")
    found = qgraph("check", first, second)
    assert found.status == 0
    assert "outputs are matched by position: 'y' with 'yy'" in found.err
    assert load(second).outputs[0].name == "yy"


@pytest.mark.slow
def test_probes_find_what_random_inputs_do_not(qgraph, write):
    """The candidate's scale is one ulp larger: only the thresholds move."""
    text = MODEL.replace("float s = {0.5}", "float s = {0.3}")
    coarse = text.replace("y = qonnx", "c = qonnx").replace("p = Mul (x, s)", "p = Div (c, s)")
    codes = coarse.replace("float[N,4] y, ", "")
    reference = write(codes)
    candidate = write(codes, "other.onnx", s=np.nextafter(np.float32(0.3), np.float32(1)))
    found = qgraph(
        "check", reference, candidate, "--backend", "numpy", "--probes", 12, "--atol", 0.5
    )
    assert found.status == 1
    assert re.search(r"made for \d+ thresholds of 1 quantizer:", found.out)
    verbose = qgraph("check", reference, reference, "--backend", "numpy", "--probes", 12, "-v")
    (row,) = [line for line in verbose.out.splitlines() if line.startswith("act")]
    assert row.split()[2] == row.split()[3]


def test_labels_come_from_a_file_or_from_the_archive(qgraph, pair, tmp_path):
    x = np.eye(4, dtype=np.float32)
    labels = np.asarray([0, 1, 2, 0])
    np.savez(tmp_path / "data.npz", x=x, answers=labels)
    np.save(tmp_path / "labels.npy", labels)
    data = ["--inputs", tmp_path / "data.npz", "--batch", 2]
    for given in ("answers", tmp_path / "labels.npy"):
        found = qgraph("check", pair[0], pair[0], *data, "--labels", given)
        assert found.status == 0
        assert "top1 on 4 samples: 0.75 in the reference, 0.75 in the candidate" in found.out
    assert "ignored" not in qgraph("check", pair[0], pair[0], *data, "--labels", "answers").err
    wrong = qgraph("check", pair[0], pair[0], *data, "--labels", "nothing")
    assert wrong.status == 3
    assert "no array 'nothing' with labels, expected a name among x, answers" in wrong.error
    np.save(tmp_path / "short.npy", labels[:3])
    wrong = qgraph("check", pair[0], pair[0], *data, "--labels", tmp_path / "short.npy")
    assert wrong.status == 3
    assert f"{tmp_path / 'short.npy'}: There are 3 labels, but the outputs are" in wrong.error
    wrong = qgraph("check", pair[0], pair[0], *data, "--labels", "x")
    assert wrong.status == 3
    assert f"{tmp_path / 'data.npz'}: array 'x': There are 16 labels" in wrong.error


def test_a_metric_of_the_user_comes_from_the_current_folder(qgraph, pair, tmp_path, monkeypatch):
    (tmp_path / "scores_of_mine.py").write_text(
        "def negative_sum(outputs, labels):\n    return -float(outputs['y'].sum())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    np.save("x.npy", np.full((2, 4), 0.5, np.float32))
    np.save("labels.npy", np.zeros(2, np.int64))
    options = ["-i", "x=x.npy", "--labels", "labels.npy", "--metric", "scores_of_mine:negative_sum"]
    found = qgraph("check", *pair, *options, "--max-drop", 1)
    assert found.status == 1
    assert "-4 in the reference, -8 in the candidate" in found.out
    assert "is lower by 4, at most 1 is allowed" in found.out
    assert qgraph("check", *pair, *options, "--max-drop", 4).status == 0


def test_the_worst_tensors_are_listed(qgraph, pair):
    found = qgraph("check", *pair, "--shape", "x:64,4")
    lines = found.out.splitlines()
    (place,) = [n for n, line in enumerate(lines) if line.startswith("2 of 3 tensors that both")]
    assert sorted(line.split()[0] for line in lines[place + 2 : place + 4]) == ["a", "y"]
    assert "2 of 3 tensors" not in qgraph("check", *pair, "--shape", "x:64,4", "-q").out


def test_of_several_batches_the_one_is_told_that_tensors_are_compared_on(qgraph, pair):
    lines = qgraph("check", *pair, "--shape", "x:64,4", "--random", 2).out.splitlines()
    told = " on the first batch with a difference"
    assert any(
        line.startswith(f"2 of 3 tensors that both models have differ{told}.") for line in lines
    )
    assert any(line.startswith(f"The first tensor that differs{told} is 'a'") for line in lines)


def test_the_input_that_shows_a_difference_is_written(qgraph, pair, tmp_path):
    file = tmp_path / "witness.npz"
    assert qgraph("check", *pair, "--random", 9, "--witness", file).status == 1
    assert qgraph("check", *pair, "--inputs", file).status == 1
    file.unlink()
    found = qgraph("check", pair[0], pair[0], "--witness", file)
    assert (found.status, file.exists()) == (0, False)
    assert "no difference was found" in found.err


@pytest.mark.slow
@pytest.mark.runtime
def test_runtimes_are_told_apart_from_the_rewrite(qgraph, write):
    pytest.importorskip("onnxruntime")
    model = write("""
        <ir_version: 10, opset_import: ["": 21]> net (float[N,4] x) => (float[N,4] y)
        <float s = {0.5}, int8 z = {0}> {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Relu (d) }""")
    found = qgraph("check", model, model, "--runtimes", "-v")
    assert found.status == 0
    assert "The rewrite is exact; ONNX Runtime" in found.out
    assert "plain" in found.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--labels", "l.npy"], "--labels needs --inputs"),
        (["--metric", "top1", "--max-drop", 1], "--max-drop needs --labels"),
        (["--metric", "best"], "There is no metric 'best'"),
        (["--min-top1", "z:1"], "min_top1 is given for output 'z'"),
        (["--probes", -1], "-1 is not in the range"),
    ],
)
def test_options_that_do_not_fit(qgraph, pair, options, message):
    found = qgraph("check", *pair, *options)
    assert found.status in (2, 3)
    assert message in found.error


def test_models_of_other_inputs_are_told_before_they_run(qgraph, write):
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[N,SIZE] x) => (float[N,SIZE] y) { y = Relu (x) }"""
    paths = [write(text.replace("SIZE", n), f"{n}.onnx") for n in ("3", "4")]
    for command in (["check"], ["why"], ["reduce", "-o", paths[0].parent / "parts"]):
        found = qgraph(*command, *paths)
        assert found.status == 3
        text = "No array can be fed to both models: input 'x' is [N,3] in the reference"
        assert text in found.error


def test_the_next_step_proves_the_bounds_that_were_compared(qgraph, pair):
    for limits in ([], ["--within", "1step"]):
        found = qgraph("check", pair[0], pair[0], "--random", 2, *limits)
        assert ("--within 1step  # covers every input" in found.err) is bool(limits)

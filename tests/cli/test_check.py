"""``qgraph check``: exit status, tolerances and reports."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest

from qgraph import check, load

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
    assert (found.status, found.err) == (0, "")
    assert found.out.splitlines()[-1] == "equal: every value is the same"


def test_different_models_are_1_and_the_first_divergence_is_named(qgraph, pair):
    found = qgraph("check", *pair, "--shape", "x:64,4")
    assert found.status == 1
    assert found.out.splitlines()[-1] == "different"
    assert "the first tensor that differs is 'a' by up to 0.25, which Add" in found.out
    assert "y: " in found.out
    assert "p: " not in found.out


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
    verdict = "equal within the tolerance" if status == 0 else "different"
    assert found.out.splitlines()[-1] == verdict


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
        expected = check(pair[0], candidate, random=9, backend="numpy")
        assert read_json(files["json"]) == expected.to_json()
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
        (["--max-steps", "q:1"], "max_steps is given for output 'q'"),
        (["--random", "x"], "'x' is not a valid integer"),
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

"""``qgraph reduce``: files that show a difference by themselves."""

from __future__ import annotations

import shlex

import numpy as np
import onnx
import pytest

MODEL = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N,4] x) => (float[N,4] y)
    <float s = {0.5}, float z = {0}, float b = {4}, float shift = {0}> {
        n = Neg (x)
        a = Add (n, shift)
        [act] q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (a, s, z, b)
        y = Exp (q)
    }"""


@pytest.fixture
def pair(write):
    """Two models that differ in an addition."""
    return write(MODEL, "one.onnx"), write(MODEL, "other.onnx", shift=np.float32(0.25))


def test_the_files_show_the_difference(qgraph, pair, tmp_path):
    out = tmp_path / "small"
    found = qgraph("reduce", *pair, "-o", out, "--shape", "x:8,4")
    assert found.status == 0
    lines = found.out.splitlines()
    assert lines[0].startswith(
        "tensor 'a', made by Add 'a', differs in 4 of 4 values, by up to 0.25"
    )
    assert lines[1:3] == ["reference: 1 node of 4", "candidate: 1 node of 4"]
    assert sorted(path.name for path in out.iterdir()) == [
        "candidate.onnx",
        "inputs.npz",
        "reference.onnx",
    ]
    for name in ("reference", "candidate"):
        onnx.checker.check_model(out / f"{name}.onnx", full_check=True)
    command = shlex.split(lines[3].removeprefix("replay: qgraph "))
    replayed = qgraph(*command)
    assert replayed.status == 1
    assert "4 of 4 values differ, by up to 0.25" in replayed.out


def test_inputs_may_come_from_files(qgraph, pair, tmp_path):
    np.save(tmp_path / "x.npy", np.full((3, 4), 0.75, np.float32))
    found = qgraph(
        "reduce",
        *pair,
        "-i",
        f"x={tmp_path / 'x.npy'}",
        "-o",
        tmp_path / "out",
        "--backend",
        "numpy",
    )
    assert found.status == 0
    assert found.out.splitlines()[-1].endswith("--backend numpy")
    with np.load(tmp_path / "out" / "inputs.npz") as content:
        np.testing.assert_array_equal(content["n"], np.full((1, 4), -0.75, np.float32))


def test_models_without_a_difference_are_4_and_nothing_is_written(qgraph, pair, tmp_path):
    found = qgraph("reduce", pair[0], pair[0], "-o", tmp_path / "out")
    assert found.status == 4
    assert "expected a difference to reduce" in found.error
    assert not (tmp_path / "out").exists()


def test_a_model_in_the_folder_is_not_replaced(qgraph, write, tmp_path):
    reference = write(MODEL, "reference.onnx")
    other = write(MODEL, "other.onnx", shift=np.float32(0.25))
    before = reference.read_bytes()
    found = qgraph("reduce", reference, other, "-o", tmp_path)
    assert found.status == 2
    assert reference.read_bytes() == before


def test_the_folder_has_to_be_given(qgraph, pair):
    found = qgraph("reduce", *pair)
    assert found.status == 2
    assert "The option -o / --output FOLDER is missing" in found.error
    assert "'qgraph reduce --help'" in found.error

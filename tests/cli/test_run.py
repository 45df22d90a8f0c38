"""``qgraph run``: where inputs come from, and what is shown or written."""

from __future__ import annotations

import zipfile

import ml_dtypes
import numpy as np
import pytest

from qgraph import load
from qgraph.cli import arrays
from qgraph.equivalence.inputs import make_inputs

X = np.array([[0.4, -0.6, 9, 1], [-0.25, 0.75, 2, -9]], np.float32)


def expected(model, x=X, *taps):
    return load(model).run({"x": x}, backend="numpy", taps=taps)


def table(out):
    """The rows of a table by their first cell; two blanks separate the cells."""
    rows = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()
    ]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("way", ["file", "archive"])
def test_inputs_come_from_files(qgraph, model, tmp_path, way):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "all.npz", x=X, label=np.zeros(2))
    source = {
        "file": ["-i", f"x={tmp_path / 'x.npy'}"],
        "archive": ["--inputs", tmp_path / "all.npz"],
    }
    out = tmp_path / "out.npz"
    found = qgraph("run", model, *source[way], "-o", out, "--backend", "numpy")
    assert (found.status, found.out) == (0, "")
    assert f"wrote {out}" in found.err
    with np.load(out) as written:
        assert written.files == ["y"]
        np.testing.assert_array_equal(written["y"], expected(model)["y"])


def test_without_a_file_a_table_is_shown(qgraph, model, tmp_path):
    np.save(tmp_path / "x.npy", X)
    found = qgraph("run", model, "-i", f"x={tmp_path / 'x.npy'}", "--backend", "numpy")
    assert (found.status, found.err) == (0, "")
    y = expected(model)["y"]
    numbers = [f"{number:.6g}" for number in (y.min(), y.max(), y.astype(np.float64).mean())]
    assert table(found.out) == {
        "output": ["type", "shape", "min", "max", "mean"],
        "y": ["float32", "[2,3]", *numbers],
    }


def test_random_batches_are_joined_and_depend_on_the_seed_alone(qgraph, model, tmp_path):
    options = ["--random", 3, "--seed", 7, "--shape", "x:2,4", "--backend", "numpy"]
    for name in ("a.npz", "b.npz"):
        assert qgraph("run", model, *options, "-o", tmp_path / name).status == 0
    loaded = load(model)
    batches = [make_inputs(loaded, seed=7, number=n, shapes={"x": (2, 4)}) for n in range(3)]
    parts = [loaded.run(batch, backend="numpy")["y"] for batch in batches]
    for name in ("a.npz", "b.npz"):
        with np.load(tmp_path / name) as written:
            np.testing.assert_array_equal(written["y"], np.concatenate(parts))


def test_taps_are_shown_besides_the_outputs(qgraph, model):
    found = qgraph("run", model, "--tap", "a", "--tap", "x")
    assert list(table(found.out)) == ["output", "y", "a", "x"]
    found = qgraph("run", model, "--tap", "A1")
    assert found.status == 2
    assert "There is no tensor 'A1' to tap" in found.error


def test_nan_is_counted(qgraph, model, tmp_path):
    x = X.copy()
    x[0, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    found = qgraph("run", model, "-i", f"x={tmp_path / 'x.npy'}", "--backend", "numpy")
    assert "y (3 NaN)" in table(found.out)


@pytest.mark.parametrize("target", ["model.onnx", "x.npy"])
def test_what_is_read_is_not_overwritten(qgraph, model, tmp_path, target):
    np.save(tmp_path / "x.npy", X)
    before = (tmp_path / target).read_bytes()
    found = qgraph("run", model, "-i", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / target)
    assert found.status == 2
    assert "is read by this command" in found.error
    assert (tmp_path / target).read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-i", "x"], "'x' is not of the form NAME=FILE.npy"),
        (["-i", "x=-"], "'-' is not a file"),
        (["-i", "x=a.npy", "-i", "x=b.npy"], "-i names 'x' twice"),
        (["-i", "x=a.npy", "--random", 2], "--random is for random inputs"),
        (["--inputs", "a.npz", "--shape", "x:1,4"], "--shape is for random inputs"),
        (["--random", 0], "range"),
        (["--seed", -1], "range"),
        (["--shape", "1,4"], "'1,4' is not of the form NAME:1,3,224,224"),
        (["--shape", "x:1,four"], "'x:1,four' is not of the form"),
        (["--shape", "x:1,-4"], "'x:1,-4' is not of the form"),
        (["--shape", "x:3,5"], "cannot have the shape [3, 5]"),
        (["--shape", "z:3,5"], "A shape is given for 'z'"),
        (["--backend", "cuda"], "'cuda' is not one of"),
    ],
)
def test_wrong_usage(qgraph, model, options, message):
    found = qgraph("run", model, *options)
    assert found.status == 2
    assert message in found.err
    assert found.error


def test_results_of_every_kind_are_written(tmp_path):
    """Narrow types become wider ones with the same values, and any name is possible."""
    narrow = {
        "b": np.array([0.1, -3], ml_dtypes.bfloat16),
        "e": np.array([448, 0.5], ml_dtypes.float8_e4m3fn),
        "i": np.array([-8, 7], ml_dtypes.int4),
        "u": np.array([0, 15], ml_dtypes.uint4),
    }
    results = {
        **narrow,
        "file": np.array(True),
        "a/b:0": np.zeros((0, 3), np.int64),
        "s": np.array(["ü", "long text"], object),
        "q": [np.float32([1, 2]), np.float32([3])],
    }
    arrays.save(tmp_path / "r.npz", results)
    with np.load(tmp_path / "r.npz", allow_pickle=False) as written:
        assert set(written.files) == {*results, "q.0", "q.1"} - {"q"}
        for name, array in narrow.items():
            assert written[name].dtype in (np.float32, np.int8)
            np.testing.assert_array_equal(written[name], array.astype(np.float32))
        assert written["file"] == np.array(True)
        assert written["a/b:0"].shape == (0, 3)
        assert written["s"].tolist() == ["ü", "long text"]
        assert written["q.0"].tolist() == [1, 2]
    assert zipfile.is_zipfile(tmp_path / "r.npz")


def test_tables_show_results_of_every_kind(capsys):
    results = {
        "empty": np.zeros((0, 3), np.float32),
        "text": np.array(["a"], object),
        "flag": np.array([True, False]),
        "bf": np.array([1, 2], ml_dtypes.bfloat16),
        "inf": np.float32([np.inf, -np.inf]),
    }
    arrays.show_all(results)
    rows = table(capsys.readouterr().out)
    assert rows["empty"] == ["float32", "[0,3]", "-", "-", "-"]
    assert rows["text"] == ["object", "[1]", "-", "-", "-"]
    assert rows["flag"] == ["bool", "[2]", "0", "1", "0.5"]
    assert rows["bf"] == ["bfloat16", "[2]", "1", "2", "1.5"]
    assert rows["inf"] == ["float32", "[2]", "-inf", "inf", "nan"]

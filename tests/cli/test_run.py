"""``qgraph run``: where inputs come from, and what is shown or written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import load
from qgraph.cli.main import main
from qgraph.execution.inputs import make_inputs
from qgraph.reporting.model_view import bars

pytestmark = pytest.mark.sums

X = np.array([[0.4, -0.6, 9, 1], [-0.25, 0.75, 2, -9]], np.float32)


def expected(model, x=X, *taps):
    return load(model).run({"x": x}, backend="numpy", taps=taps)


def table(out):
    """The rows of a table by their first cell; two blanks separate the cells."""
    rows = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()
    ]
    return {row[0]: row[1:] for row in rows if row}


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
    assert (found.status, found.talk) == (0, "")
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
    batches = [make_inputs(loaded.inputs, seed=7, number=n, shapes={"x": (2, 4)}) for n in range(3)]
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


def test_a_dataset_runs_batch_by_batch(qgraph, model, tmp_path, read_json):
    """By the batch that is asked for, or by the one that the model fixes."""
    x = np.concatenate([X, X * 2, X[:1]])
    np.save(tmp_path / "x.npy", x)
    source = ["-i", f"x={tmp_path / 'x.npy'}", "--backend", "numpy"]
    found = qgraph("run", model, *source, "--batch", 2, "-o", tmp_path / "y.npz", "--tap", "t")
    assert (found.status, found.out) == (0, "")
    want = expected(model, x, "t")
    with np.load(tmp_path / "y.npz") as written:
        assert set(written.files) == {"y", "t"}
        for name in written.files:  # t depends on no input: it is there once
            np.testing.assert_array_equal(written[name], want[name])
    fixed = load(model)
    for value in (*fixed.inputs, *fixed.outputs):
        value.shape = ir.Shape([1, value.shape[1]])
    fixed.save(tmp_path / "fixed.onnx")
    fixed = tmp_path / "fixed.onnx"
    found = qgraph("run", fixed, *source, "--json")
    (tmp_path / "o.json").write_text(found.out)
    document = read_json(tmp_path / "o.json")
    assert (document["command"], document["batches"]) == ("run", 5)
    (tensor,) = document["tensors"]
    assert tensor["shape"] == [5, 3]
    np.testing.assert_allclose(tensor["mean"], want["y"].mean(dtype=np.float64))
    found = qgraph("run", fixed, *source, "--batch", 2)
    assert (found.status, "fixes the first dimension" in found.error) == (2, True)
    found = qgraph("run", model, "--batch", 2)
    assert (found.status, "--batch applies to arrays from files" in found.error) == (2, True)


def test_nothing_is_written_when_a_later_batch_fails(qgraph, write, tmp_path, folder):
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float y)
        <float[2] t = {1, 2}> { i = Cast <to = 7> (x) y = Gather (t, i) }"""
    model = write(text)
    np.save(tmp_path / "x.npy", np.float32([0, 1, 7]))
    before = folder()
    source = ["-i", f"x={tmp_path / 'x.npy'}", "--backend", "numpy"]
    found = qgraph("run", model, *source, "-o", tmp_path / "y.npz")
    assert (found.status, "Gather" in found.error) == (3, True)
    assert folder() == before


def test_every_tensor_is_shown_and_written(qgraph, model, tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = ["-i", f"x={tmp_path / 'x.npy'}"]
    found = qgraph("run", model, *source, "--tap-all")
    assert list(table(found.out)) == ["output", "y", "a", "q", "t"]
    for backend in ("numpy", "auto"):
        options = [*source, "--backend", backend, "--tap-all", "-o", tmp_path / "all.npz"]
        assert qgraph("run", model, *options).status == 0
        with np.load(tmp_path / "all.npz") as written:
            for name, array in expected(model, X, "a", "q", "t").items():
                np.testing.assert_array_equal(written[name], array)


def test_statistics_of_quantizers(qgraph, model, tmp_path, read_json):
    np.save(tmp_path / "x.npy", X)
    source = ["-i", f"x={tmp_path / 'x.npy'}", "--backend", "numpy"]
    found = qgraph("run", model, *source, "--stats")
    rows = table(found.out)
    # X / 0.5 beyond -8 .. 7: 18 and -18 of eight values; 0.4 and 0.75 go to codes 1 and 2
    assert rows["act"][:6] == ["data", "int4", "-4", "3.5", "0.4375", "25.00%"]
    assert rows["act"][6] == "7/16"
    assert rows["weight"][:2] == ["weight", "int4 narrow"]
    found = qgraph("run", model, *source, "--stats", "--json")
    (tmp_path / "o.json").write_text(found.out)
    act, weight = read_json(tmp_path / "o.json")["quantizers"]
    assert (act["node"], act["inputs"], act["clipped"]) == ("act", 8, 2)
    assert act["codes"] == [[-8, 1], [-1, 1], [0, 1], [1, 1], [2, 2], [4, 1], [7, 1]]
    assert (weight["weight"], weight["elements"], weight["clipped"]) == (True, 12, 0)


def test_bars_show_everything_that_occurs():
    assert bars([]) == ""
    assert bars([(-1, 5), (1, 5)]) == "█ █"
    assert bars([(0, 1), (1, 1000), (3, 500)]) == "▁█ ▄"
    assert len(bars([(code, 1) for code in range(256)])) == 16
    assert bars([(0, 1), (255, 1)]) == "█" + " " * 14 + "█"
    assert bars([(-6.0, 1), (0.5, 2), (6.0, 1)]) in ("▄█▄", "▄▄█")
    assert bars([(0.5, 3)]) == "█"


def test_progress_tells_the_batch(qgraph, model, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        "qgraph.cli.output.ProgressBar.tell", lambda self, *state: told.append(state)
    )
    np.save(tmp_path / "x.npy", np.zeros((5, 4), np.float32))
    source = ["-i", f"x={tmp_path / 'x.npy'}", "--backend", "numpy"]
    assert qgraph("run", model, *source, "--batch", 2).status == 0
    assert told[1:] == [
        ("running model.onnx, batch 1 of 3", 0, 3),
        ("running model.onnx, batch 2 of 3", 1, 3),
        ("running model.onnx, batch 3 of 3", 2, 3),
    ]


def test_statistics_have_a_page(tmp_path: Path) -> None:
    page = tmp_path / "codes.md"
    model = Path(__file__).resolve().parents[2] / "examples" / "digits_brevitas.onnx"
    assert main(["run", str(model), "--random", "1", "--stats", "--markdown", str(page)]) == 0
    text = page.read_text()
    assert "1 tensor and 10 quantizers on 1 batch." in text
    assert "| `scores` | float32 |" in text

"""Commands that end at a time limit say how far they came, with exit status 4."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qgraph import api
from qgraph.effort import time_limit
from qgraph.errors import UndecidedError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES / "digits_brevitas.onnx"
NEVER, SOON = 1e9, 1e-6


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("convert", ["--to", "qdq"]),
        ("fold", []),
        ("transform", ["-p", "convert{to=onnx}", "-p", "fold-weights"]),
        ("deploy", ["--target", "tensorrt"]),
    ],
)
def test_a_rewrite_that_is_out_of_time_writes_nothing(qgraph, tmp_path, command, options):
    out = tmp_path / "out.onnx"
    found = qgraph(command, MODEL, "-o", out, *options, "--timeout", SOON)
    assert found.status == 4
    assert "in 1e-06 seconds, the time limit. Allow more time." in found.error
    assert not out.exists()


def test_a_rewrite_within_its_time_is_written(qgraph, tmp_path):
    out = tmp_path / "out.onnx"
    assert qgraph("convert", MODEL, "-o", out, "--to", "qdq", "--timeout", NEVER).status == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("convert{to=onnx}", "^0 quantizers were compared in "),
        ("fold-constants", "^1 of 1 passes were run in "),
    ],
)
def test_a_pass_that_is_out_of_time_leaves_the_model_in_memory(step, message):
    model = api.load(MODEL)
    before = model.to_proto()
    with time_limit(SOON), pytest.raises(UndecidedError, match=message):
        api.transform(model, step)
    assert model.to_proto() == before


@pytest.mark.slow
def test_why_returns_the_batches_that_were_run(qgraph, tmp_path, monkeypatch):
    """The time ends after two of six batches; their rows are scored as without the others."""
    with np.load(EXAMPLES / "digits_test.npz") as data:
        rows = {"x": data[data.files[0]][:18], "label": data["label"][:18]}
    name = str(api.load(MODEL).inputs[0].name)
    np.savez(tmp_path / "all.npz", **{name: rows["x"], "label": rows["label"]})
    np.savez(tmp_path / "some.npz", **{name: rows["x"][:6], "label": rows["label"][:6]})
    asked = iter([False, True])
    monkeypatch.setattr("qgraph.comparison.why.why.is_over", lambda: next(asked))
    pair = EXAMPLES / "digits_nncf.onnx", MODEL
    common = ["--labels", "label", "--batch", 3, "--json", "--backend", "numpy"]
    cut = qgraph("why", *pair, "--inputs", tmp_path / "all.npz", *common)
    assert cut.status == 4
    monkeypatch.undo()
    whole = qgraph("why", *pair, "--inputs", tmp_path / "some.npz", *common)
    assert whole.status == 0
    first, second = json.loads(cut.out), json.loads(whole.out)
    assert (first["batches"], first["batches_in_all"]) == (2, 6)
    assert "the time limit was reached after 2 of 6 batches" in first["notes"]
    assert first["quantizers"] == second["quantizers"]
    assert any(each["gain_if_restored"] for each in first["quantizers"])
    assert first["candidate"] == second["candidate"]


def test_why_says_how_far_its_first_batch_is(qgraph):
    found = qgraph("why", MODEL, MODEL, "--timeout", SOON)
    assert found.status == 4
    assert "runs of the first batch were done in 1e-06 seconds, the time limit" in found.error

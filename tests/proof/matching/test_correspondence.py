"""Tensors of two models are paired by what makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.comparison import divergence as module
from qgraph.comparison.divergence import correspondence
from qgraph.errors import UnsupportedError
from qgraph.model import Model


def model(body: str) -> Model:
    return Model(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 21]> {body}'))


def pairs(reference: Model, candidate: Model) -> dict[str, str]:
    found = correspondence(reference, candidate, {"y": "y"})
    return {match.reference: match.candidate for match in found}


def test_names_that_were_swapped_do_not_matter() -> None:
    reference = model("g (float[2] x) => (float[2] y) { a = Abs (x) b = Neg (a) y = Exp (b) }")
    candidate = model("g (float[2] x) => (float[2] y) { b = Abs (x) a = Neg (b) y = Exp (a) }")
    assert pairs(reference, candidate) == {"a": "b", "b": "a", "y": "y"}


def test_what_comes_after_a_difference_is_paired_all_the_same() -> None:
    reference = model("g (float[2] x) => (float[2] y) { a = Abs (x) b = Neg (a) y = Exp (b) }")
    candidate = model("g (float[2] x) => (float[2] y) { p = Abs (x) q = Sqrt (p) y = Exp (q) }")
    assert pairs(reference, candidate) == {"a": "p", "b": "q", "y": "y"}


def test_of_several_equal_tensors_the_first_goes_with_the_first() -> None:
    text = "g (float[2] x) => (float[2] y) { A = Abs (x) B = Abs (x) y = Add (A, B) }"
    reference = model(text)
    candidate = model("g (float[2] x) => (float[2] y) { p = Abs (x) q = Abs (x) y = Add (p, q) }")
    assert pairs(reference, candidate) == {"A": "p", "B": "q", "y": "y"}


def test_a_graph_that_cannot_be_matched_is_matched_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError("no")

    monkeypatch.setattr(module, "normalised_models", refuse)
    text = "g (float[2] x) => (float[2] y) { a = Abs (x) y = Exp (a) }"
    assert pairs(model(text), model(text)) == {"a": "a", "y": "y"}


def test_two_dialects_of_one_network_share_their_tensors(models: Path) -> None:
    """Between quantizers the graphs are one; all pairs hold equal values, whatever their names."""
    reference = qgraph.load(models / "brev_cnn_w4a4.onnx")
    candidate = qgraph.load(models / "brev_cnn_w4a4_qcdq.onnx")
    names = [str(side.outputs[0].name) for side in (reference, candidate)]
    found = correspondence(reference, candidate, dict([names]))
    assert len(found) > 20
    x = {"x": np.load(models / "brev_cnn_w4a4.npz")["x"][:4]}
    ours = reference.run(x, backend="numpy", taps=[match.reference for match in found])
    theirs = candidate.run(x, backend="numpy", taps=[match.candidate for match in found])
    for match in found:
        np.testing.assert_array_equal(ours[match.reference], theirs[match.candidate])

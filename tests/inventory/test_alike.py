"""Quantizers of models that differ in these only are paired as a matching pairs them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.inventory import differences
from qgraph.inventory.differences import pairs_of_alike
from tests.fuzz.networks import network

QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'


def model_of(body: str, header: str = "(float[2,2] x) => (float[2,2] y)") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net {header} <float[2,2] w = {{0.5, -1, 2, 1}}, float[2,2] v = {{1, 2, 3, 4}},
            float s = {{0.25}}, float t = {{0.5}}, float z = {{0}}, float b = {{4}}> {{ {body} }}"""
    )


REFERENCE = f"""qw = {QUANT} (w, s, z, b) qv = {QUANT} (v, t, z, b) qx = {QUANT} (x, s, z, b)
    p = MatMul (qx, qw) r = Relu (p) q = {QUANT} (r, t, z, b) y = MatMul (q, qv)"""


def names(reference: ir.Model, candidate: ir.Model) -> list[tuple[str, str]] | None:
    pairs = pairs_of_alike(reference, candidate)
    return pairs and [(a.description.name, b.description.name) for a, b in pairs]


def test_quantizers_at_one_place_are_pairs() -> None:
    candidate = f"""c0 = {QUANT} (x, t, z, b) c1 = {QUANT} (v, t, z, b) d = MatMul (c0, c2)
        e = Relu (d) c3 = {QUANT} (e, s, z, b) y = MatMul (c3, c1)"""
    candidate = f"c2 = {QUANT} (v, s, z, b) {candidate}"
    pairs = [("qw", "c2"), ("qv", "c1"), ("qx", "c0"), ("q", "c3")]
    assert names(model_of(REFERENCE), model_of(candidate)) == pairs


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r = Relu (p)", "r = Neg (p)"),
        ("p = MatMul (qx, qw)", "p = MatMul (qw, qx)"),
        ("p = MatMul (qx, qw)", "p = MatMul (qx, w)"),
        ("y = MatMul (q, qv)", "y = MatMul (r, qv)"),
        ("y = MatMul", f"u = {QUANT} (w, s, z, b) y = MatMul"),
        ("r = Relu (p)", "f = Relu (p) r = Relu (f)"),
    ],
)
def test_models_with_other_operators_are_not_alike(old: str, new: str) -> None:
    one, other = model_of(REFERENCE), model_of(REFERENCE.replace(old, new))
    assert names(one, other) is None
    assert names(other, one) is None


@pytest.mark.parametrize(
    "header",
    [
        "(float[2,2] a) => (float[2,2] y)",
        "(float[N,2] x) => (float[2,2] y)",
        "(float[2,2] x, float s) => (float[2,2] y)",
        "(float[2,2] x) => (float[2,2] y, float[2,2] r)",
    ],
)
def test_models_with_other_inputs_or_outputs_are_not_alike(header: str) -> None:
    body = REFERENCE.replace("(x,", "(a,") if "a)" in header else REFERENCE
    assert names(model_of(REFERENCE), model_of(body, header)) is None


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino", "onnx"])
@pytest.mark.parametrize(
    "seed", [6, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(7, 60))]
)
def test_a_matching_gives_the_same(seed: int, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = ir.from_proto(network(np.random.default_rng(seed)))
    candidate = qgraph.load(reference.clone())
    qgraph.convert(candidate, to=to)
    assert seed != 6 or pairs_of_alike(reference, candidate.ir)
    some = differences.diff(reference, candidate.ir).to_json()
    monkeypatch.setattr(differences, "pairs_of_alike", lambda reference, candidate: None)
    assert some == differences.diff(reference, candidate.ir).to_json()

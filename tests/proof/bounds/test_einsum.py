"""Einsum that computes a matrix product has the bound of MatMul."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import qgraph

NET = """<ir_version: 10, opset_import: ["": 21]> g (int8[2,5,4] x) => (uint8[A,B,C] y)
    <float s = {0.05}, int8 z = {3}, float t = {STEP}, uint8 u = {0},
     float[4,4] w = {1, -0.5, 0.3, 2, 0.1, 0.2, 0.3, 0.4, 1, 2, 3, -1, 0.5, 0.6, 0.7, 0.8}> {
        a = DequantizeLinear(x, s, z)  d = Sigmoid(a)
        SUM  y = QuantizeLinear(m, t, u) }"""
TURNED = "e = Transpose<perm = [0, 2, 1]>(d) "


def net(form: str, step: str = "0.037") -> ir.Model:
    return ir.from_onnx_text(NET.replace("STEP", step).replace("SUM", form))


def einsum(equation: str, factors: str) -> str:
    return f'm = Einsum<equation = "{equation}">({factors})'


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.parametrize(
    ("product", "equation", "factors", "before"),
    [
        ("m = MatMul(a, w)", "blk,km->blm", "a, w", ""),
        ("v = Transpose(w) m = MatMul(a, v)", "b l k, m k -> b l m", "a, w", ""),
        (f"{TURNED}m = MatMul(a, e)", "blk,bmk->blm", "a, d", ""),
        (f"{TURNED}m = MatMul(a, e)", "blk,bkm->blm", "a, e", TURNED),
    ],
)
def test_it_has_the_bound_of_the_product(product, equation, factors, before):
    candidates = product, before + einsum(equation, factors)
    models = net(product), *(net(form, "0.03700001") for form in candidates)
    found = [qgraph.prove(models[0], each, within="1step", hashes=False) for each in models[1:]]
    assert [each.verdict for each in found] == ["bounded", "bounded"]
    assert found[0].regions[-1].bound == found[1].regions[-1].bound


@pytest.mark.cases(fast=1, slow=5)
@pytest.mark.parametrize(
    ("equation", "factors"),
    [
        ("blk,km->bml", "a, w"),  # another order of axes
        ("blk,kk->blk", "a, w"),
        ("blk,blk->bl", "a, d"),
        ("blk,blm->bkm", "a, d"),
        ("bkk,km->bkm", "a, w"),
    ],
)
def test_other_equations_have_none(equation, factors):
    ours = net("m = MatMul(a, w)")
    found = qgraph.prove(ours, net(einsum(equation, factors)), within="1step", hashes=False)
    assert found.verdict == "undecided"

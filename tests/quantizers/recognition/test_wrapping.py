"""Quantizers whose codes wrap around are named, and left as they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.sites import sites

# As Keras exports a layer of HGQ2, with constants in place of what it computes from shapes.
WRAP = """<ir_version: 9, opset_import: ["": 20]>
net (float[N,3] x) => (float[N,3] y)
<float[1,3] s = {4, 4, 8}, float half = {0.5}, float[1,3] o = {4, 0, 2}, float[1,3] m = {8, 4, 4}> {
    t = Mul (x, s)
    zero = Sub (t, t)
    h = Add (t, half)
    f = Floor (h)
    c = Add (f, zero)
    v = Div (c, s)
    a = Add (v, o)
    q = Div (a, m)
    [limit] n = Floor (q)
    p = Mul (n, m)
    r = Sub (a, p)
    y = Sub (r, o)
}"""


def refusals(text: str) -> list[Refusal]:
    return [site for site in sites(ir.from_onnx_text(text)) if isinstance(site, Refusal)]


def test_the_form_wraps_around() -> None:
    """4 bits with and without a sign, from the definition of fixed-point numbers."""
    x = np.array([[3.75, 3.75, 1.9375], [4, 4, 2], [-4.25, -0.25, -2.125]], np.float32)
    y = qgraph.load(ir.from_onnx_text(WRAP)).run({"x": x}, backend="numpy")["y"]
    assert y.tolist() == [[3.75, 3.75, -2], [-4, 0, -2], [3.75, 3.75, 1.875]]


def test_it_is_named() -> None:
    (refusal,) = refusals(WRAP)
    assert refusal.root.name == "limit"
    assert "overflow: wrap" in refusal.reason


def test_info_and_convert_name_it() -> None:
    model = qgraph.load(ir.from_onnx_text(WRAP))
    (quantizer,) = qgraph.info(model).quantizers
    assert "overflow: wrap" in str(quantizer.reason)
    (site,) = qgraph.convert(model, to="qdq").sites
    assert (site.outcome, site.reason_id) == ("refused", "QG006")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = Sub (r, o)", "y = Sub (r, half)"),
        ("p = Mul (n, m)", "p = Mul (n, o)"),
        ("f = Floor (h)", "f = Relu (h)"),
        ("y = Sub (r, o)", "k = Sub (r, o) y = Add (k, n)"),
    ],
    ids=["offset", "divisor", "not-rounded", "used-elsewhere"],
)
def test_other_forms_are_not_named(before: str, after: str) -> None:
    assert before in WRAP
    assert refusals(WRAP.replace(before, after)) == []

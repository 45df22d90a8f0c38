"""Nodes between a Reshape and the one that undoes it, lowered to expressions of the data."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.proof.functions.expression import Builder, evaluate
from qgraph.proof.functions.lowering import lower
from qgraph.reasons import Undecidable


def lowered(body: str):
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (float[2, 6] x) => (float[2, 6] y)
        <float[2, 3, 1] s = {{1, 2, 4, 8, 16, 32}}, float[1, 1, 1] one = {{1}},
         int64[3] blocks = {{2, 3, 2}}, int64[2] whole = {{2, 6}}, int64[2] other = {{3, 4}},
         int64[2] open = {{2, -1}}, float[5] five = {{1, 2, 3, 4, 5}}> {{ {body} }}"""
    graph = ir.from_onnx_text(text).graph
    return lower(tuple(graph), graph.inputs[0], graph.outputs[0], (2, 6), Builder())


def test_constants_of_a_view_are_laid_along_the_data():
    found = lowered(
        "v = Reshape (x, blocks) m = Mul (v, s) n = Add (m, one) y = Reshape (n, whole)"
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    scale = np.repeat(np.float32([[1, 2, 4], [8, 16, 32]]), 2, axis=1)
    np.testing.assert_array_equal(evaluate(found, x), x * scale + 1)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("v = Reshape (x, blocks) y = Mul (v, s)", "the result has shape"),
        ("v = Reshape (x, other) y = Add (v, x)", "different shapes"),
        ("v = Reshape (x, open) y = Identity (v)", "Reshape of"),
        (
            "v = Reshape (x, blocks) m = Mul (v, five) y = Reshape (m, whole)",
            "does not fit the data",
        ),
    ],
)
def test_what_is_no_view_is_undecided(body, reason):
    with pytest.raises(Undecidable, match=reason):
        lowered(body)

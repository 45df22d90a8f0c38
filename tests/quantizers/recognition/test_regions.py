"""Expressions of elementwise neighbourhoods: each node by itself, whatever others are like it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import INPUT, Expr, in_order, known
from qgraph.quantizers.recognition.regions import UseDefGraph

HEADER = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x, float[4] u) => (float[4] p, float[4] y)"""


def value_at(root: Expr, variables: dict[int, np.ndarray]) -> np.ndarray:
    values = {}
    for e in in_order([root]):
        operands = [values[id(o)] for o in e.inputs]
        if e.op == INPUT:
            values[id(e)] = variables[id(e)]
        else:
            values[id(e)] = NUMPY[e.op](*operands) if operands else known(e)
    return values[id(root)]


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Max(x, lo) b = Round(u) p = Clip(x, lo, a) y = Clip(u, lo, b)",
        "a = Max(x, u) b = Abs(u) p = Max(x, u, a) y = Max(u, x, b)",
        "a = Min(x, u) b = Neg(x) p = Min(x, u, a) y = Min(x, u, b)",
    ],
)
def test_an_operand_that_is_a_step_of_its_user_stands_for_no_other_operand(nodes):
    model = ir.from_onnx_text(f"{HEADER} <float lo = {{0.25}}> {{ {nodes} }}")
    graph = UseDefGraph(model.graph)
    x, u = (np.float32([-2.75, -0.5, 0.5, 1.25]), np.float32([3.5, -1.75, 0.4, -0.6]))
    last = graph.expression(model.graph.outputs[1])
    inputs = (graph._expressions[value] for value in model.graph.inputs)
    found = value_at(last, {id(e): array for e, array in zip(inputs, (x, u), strict=True)})
    expected = {
        "Clip": np.minimum(np.maximum(u, np.float32(0.25)), np.round(u)),
        "Max": np.maximum(np.maximum(u, x), np.abs(u)),
        "Min": np.minimum(np.minimum(x, u), -x),
    }[model.graph.outputs[1].producer().op_type]
    np.testing.assert_array_equal(found, expected)

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.ops.operator import input_grid, input_range, output_step

IMPORTS = '"": 21, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1'
HEADER = "g (float[2,3] x) => (y) <float s = {0.5}, float[2] t = {0.5, 2}, float z = {0}, "
HEADER += "float b = {8}, int8[2] c = {0, 3}, float l = {-1}, float h = {2}>"


def graph(body: str) -> ir.Graph:
    return ir.from_onnx_text(f"<ir_version: 10, opset_import: [{IMPORTS}]> {HEADER} {body}").graph


QUANT = "qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)"
PAIR = "q = QuantizeLinear <axis = 0> (x, t, c) d = DequantizeLinear <axis = 0> (q, t, c)"
FAKE = "org.openvinotoolkit.FakeQuantize <levels = 13> (x, l, h, l, h)"


@pytest.mark.parametrize(
    ("body", "step"),
    [
        (f"{{ y = {QUANT} }}", [[0.5]]),
        (f"{{ q = {QUANT} y = Transpose (q) }}", [[0.5]]),
        (f"{{ {PAIR} y = Identity (q) }}", None),
        (f"{{ {PAIR.replace('d =', 'y =')} }}", [[0.5], [2]]),
        (f"{{ {PAIR} y = Transpose (d) }}", None),
        (f"{{ y = {FAKE} }}", [[0.25]]),
        ("{ y = Abs (x) }", None),
    ],
)
def test_step_of_an_output(body: str, step: list[list[float]] | None) -> None:
    found = output_step(graph(body).outputs[0], (2, 3))
    if step is None:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(np.broadcast_to(found, (2, 3)), np.broadcast_to(step, (2, 3)))


def test_grid_of_a_quantizer_with_a_zero_point_per_channel() -> None:
    grid = input_grid(graph(f"{{ {PAIR} y = Abs (d) }}")[0], (2, 3))
    assert grid is not None
    np.testing.assert_array_equal(grid.step, [[0.5], [2]])
    np.testing.assert_array_equal(grid.offset, [[0], [-6]])


def test_parameters_that_do_not_fit_the_shape_give_no_grid() -> None:
    assert input_grid(graph(f"{{ {PAIR} y = Abs (d) }}")[0], (7, 3)) is None
    ends = FAKE.replace("(x, l, h, l, h)", "(x, e, t, l, h)")
    body = f"{{ e = Constant <value_floats = [-1.0, -2.0, -3.0]> () y = {ends} }}"
    assert input_grid(graph(body)[1], (2, 3)) is None


def test_computed_parameters_give_no_grid() -> None:
    body = "{ k = Abs (x) y = qonnx.custom_op.general.Quant (x, k, z, b) }"
    assert input_grid(graph(body)[1], (2, 3)) is None


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        (f"{{ y = {QUANT} }}", [-64, -64], [63.5, 63.5]),
        (f"{{ {PAIR} y = Abs (d) }}", [-64, -262], [63.5, 248]),
        (f"{{ y = {FAKE} }}", [-1, -1], [2, 2]),
    ],
)
def test_range_of_a_quantizer(body: str, low: list[float], high: list[float]) -> None:
    found = input_range(graph(body)[0], (2, 3))
    assert found is not None
    for side, expected in zip(found, (low, high), strict=True):
        np.testing.assert_array_equal(side, np.repeat(np.asarray(expected)[:, None], 3, axis=1))


def test_other_nodes_have_no_range() -> None:
    assert input_range(graph("{ y = Abs (x) }")[0], (2, 3)) is None

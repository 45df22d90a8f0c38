"""Operators that ONNX Runtime computes, each node alone, in the NumPy backend too."""

from __future__ import annotations

import logging
import sys

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import prove
from qgraph.errors import UnsupportedError
from qgraph.model import Model, load

pytestmark = pytest.mark.runtime

NORMALIZED = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[2, 4] x, float[2, 4] skip) => (float[2, 4] y, float[2, 4] s)
<float[4] w = {1, 2, 3, 4}> {
    n = SimplifiedLayerNormalization <axis = -1, epsilon = EPSILON> (x, w)
    r = Relu (n)
    y, , , s = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.125> (r, skip, w)
}"""


def normalized(epsilon: str = "0.5") -> Model:
    return load(ir.from_onnx_text(NORMALIZED.replace("EPSILON", epsilon)))


def scaled(x: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * [1, 2, 3, 4]


@pytest.mark.parametrize("backend", ["numpy", "ort"])
def test_each_node_runs_in_a_session_of_its_own(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    x, skip = np.random.default_rng(0).normal(size=(2, 2, 4)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        result = normalized().run({"x": x, "skip": skip}, backend=backend)
    total = np.maximum(scaled(x.astype(float), 0.5), 0) + skip
    np.testing.assert_allclose(result["s"], total, rtol=1e-5)
    np.testing.assert_allclose(result["y"], scaled(total, 0.125), rtol=1e-5)
    names = "SimplifiedLayerNormalization (1), SkipSimplifiedLayerNormalization (1)"
    assert (names in caplog.text) == (backend == "numpy")


def test_a_mode_that_opset_13_removed_runs_in_onnx_runtime() -> None:
    """tf2onnx writes it for UpSampling2D in every opset."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 1, 1, 2] x) => (float[1, 1, 2, 4] y) <float[4] scales = {1, 1, 2, 2}> {
        y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn", mode = "nearest",
            nearest_mode = "floor"> (x, , scales)
    }"""
    x = np.float32([[[[3, 5]]]])
    y = load(ir.from_onnx_text(text)).run({"x": x}, backend="numpy")["y"]
    np.testing.assert_array_equal(y, [[[[3, 3, 5, 5], [3, 3, 5, 5]]]])


def test_without_onnx_runtime_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    x = np.ones((2, 4), np.float32)
    with pytest.raises(UnsupportedError, match=r"pip install qgraph\[ort\], or write the node in"):
        normalized().run({"x": x, "skip": x}, backend="numpy")


def test_an_operator_that_onnx_runtime_does_not_have_is_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[2] x) => (float[2] y) { y = com.microsoft.Unheard (x) }"""
    with pytest.raises(UnsupportedError, match="Unheard is an operator of ONNX Runtime's own"):
        load(ir.from_onnx_text(text)).run({"x": np.ones(2, np.float32)}, backend="numpy")


def test_a_standard_operator_of_a_later_opset_is_refused_as_such() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {
        y = Gelu (x)
    }"""
    with pytest.raises(UnsupportedError, match="its domain is imported at version 17"):
        load(ir.from_onnx_text(text)).run({"x": np.ones(2, np.float32)}, backend="numpy")


@pytest.mark.parametrize("backend", ["numpy", "ort"])
def test_layer_normalization_runs_below_its_opset(backend: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[2, 2] x) => (float[2, 2] y)
    <float[2] w = {1, 2}, float[2] b = {0, 1}> { y = LayerNormalization (x, w, b) }"""
    x = np.float32([[1, 3], [5, 1]])
    y = load(ir.from_onnx_text(text)).run({"x": x}, backend=backend)["y"]
    np.testing.assert_allclose(y, [[-1, 3], [1, -1]], atol=1e-4)


def test_in_proofs_equal_operators_of_equal_operands_are_equal() -> None:
    assert str(prove(normalized(), normalized()).verdict) == "proved"
    assert str(prove(normalized(), normalized("0.25")).verdict) != "proved"


@pytest.mark.parametrize("axis", [0, -1])
def test_gather_and_scatter_elements_take_axes_of_any_length(axis: int) -> None:
    """ONNX: y[i][j] = x[index[i][j]][j] for axis 0, y[i][j] = x[i][index[i][j]] for axis 1."""
    text = f"""<ir_version: 5, opset_import: ["": 10]>
    g (float[40, 50] x, int64[3, 4] i, float[3, 4] u) => (float[40, 50] y) {{
        y = Scatter <axis = {axis}> (x, i, u)
    }}"""
    gather = f"""<ir_version: 8, opset_import: ["": 13]>
    g (float[40, 50] x, int64[3, 4] i) => (float[3, 4] y) {{
        y = GatherElements <axis = {axis}> (x, i)
    }}"""
    x = np.arange(2000, dtype=np.float32).reshape(40, 50)
    i = np.asarray([[39, -40, 2, 3], [5, 6, 7, 38], [11, 10, 9, 8]])
    u = -np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    y = load(ir.from_onnx_text(text)).run({"x": x, "i": i, "u": u}, backend="numpy")["y"]
    found = load(ir.from_onnx_text(gather)).run({"x": x, "i": i}, backend="numpy")["y"]
    expected = x.copy()
    for row, column in np.ndindex(3, 4):
        place = (i[row, column], column) if axis == 0 else (row, i[row, column])
        expected[place] = u[row, column]
        assert found[row, column] == x[place]
    assert y.tolist() == expected.tolist()

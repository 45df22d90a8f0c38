"""Cutting a dataset into batches, and running them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import ExecutionError, OptionError
from qgraph.execution.prepare import Batches, prepare, run_batches


def graph(inputs: str, body: str = "y = Add (x, k)") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float[A,B] y) {{ {body} }}'
    )


X = np.arange(20, dtype=np.float32).reshape(10, 2)
K = np.ones((1, 2), np.float32)


def shapes(found: Batches, name: str = "x") -> list[tuple[int, ...]]:
    assert len(list(found)) == len(found)
    return [batch[name].shape for batch in found]


@pytest.mark.parametrize(
    ("first", "size", "expected"),
    [
        ("N", None, [(10, 2)]),
        ("N", 4, [(4, 2), (4, 2), (2, 2)]),
        ("N", 20, [(10, 2)]),
        ("1", None, [(1, 2)] * 10),
        ("5", None, [(5, 2)] * 2),
        ("5", 5, [(5, 2)] * 2),
        ("10", None, [(10, 2)]),
    ],
)
def test_rows_of_each_batch(first, size, expected):
    model = graph(f"float[{first},2] x, float[1,2] k")
    found = Batches(model.graph, {"x": X, "k": K}, size)
    assert shapes(found) == expected
    assert np.array_equal(np.concatenate([batch["x"] for batch in found]), X)
    assert all(batch["k"] is K for batch in found), "what fits goes to every batch"
    assert all(np.shares_memory(batch["x"], X) for batch in found)


@pytest.mark.parametrize(
    ("inputs", "rows", "size", "error", "message"),
    [
        ("float[3,2] x, float[1,2] k", 1, None, ExecutionError, "a multiple of the 3"),
        ("float[1,2] x, float[1,2] k", 4, None, ExecutionError, "which are 4 batches, expected 10"),
        ("float[N,2] x, float[M,2] k", 4, 3, ExecutionError, "expected 10 as of 'x'"),
        ("float[N,2] x, float[M,2] k", 9, 3, ExecutionError, "expected 10 as of 'x'"),
        ("float[10,2] x, float[1,2] k", 1, 3, OptionError, "the model fixes the first dimension"),
    ],
)
def test_what_cannot_be_cut(inputs, rows, size, error, message):
    k = np.ones((rows, 2), np.float32)
    with pytest.raises(error, match=message):
        Batches(graph(inputs).graph, {"x": X, "k": k}, size)


def test_what_is_no_array_or_fits_nowhere_is_left_to_the_executor():
    model = graph("float[1,2] x, float[1,2] k")
    found = Batches(model.graph, {"x": [[1, 2]], "k": np.ones(2, np.float32), "other": 3})
    assert list(found) == [{"x": [[1, 2]], "k": pytest.approx(np.ones(2)), "other": 3}]


@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_every_tensor_is_handed_over_once_a_run(backend):
    if backend == "ort":
        pytest.importorskip("onnxruntime")
    body = "a = Abs (x)  c = Exp (k2)  b = Mul (a, c)  y = Neg (b)"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2,2] x) => (float[2,2] y) <float k2 = {{0}}> {{ {body} }}"""
    executor = prepare(ir.from_onnx_text(text), backend)
    received: list[tuple[str, np.ndarray]] = []
    done: list[int] = []
    batches = Batches(ir.from_onnx_text(text).graph, {"x": -X})
    run_batches(
        executor,
        batches,
        lambda name, value: received.append((name, value.copy())),
        taps=["a", "b", "c", "y", "x"],
        progress=done.append,
    )
    assert done == [0, 1, 2, 3, 4]
    assert [name for name, _ in received].count("c") == 1, "it depends on no input"
    for name in ("a", "b", "y", "x"):
        parts = [value for key, value in received if key == name]
        expected = {"a": X, "b": X, "y": -X, "x": -X}[name]
        np.testing.assert_array_equal(np.concatenate(parts), expected)

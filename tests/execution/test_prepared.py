from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.execution.executor import Executor
from qgraph.execution.prepare import prepare

X = {"x": np.asarray([0.3, -1.0], np.float32)}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends of the plans that were made, in order."""
    backends: list[str] = []

    def counting(model: ir.Model, backend: str = "auto", **options: Any) -> Executor:
        backends.append(backend)
        return prepare(model, backend, **options)

    monkeypatch.setattr("qgraph.execution.prepare.prepare", counting)
    return backends


def small() -> qgraph.Model:
    return qgraph.load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[2] x, float s) => (float[2] y) <float s = {0.5}, float z = {0}, float b = {4}> {
            q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
            y = Neg (q)
        }""")
    )


def y(model: qgraph.Model, **options: Any) -> list[float]:
    return [float(v) for v in model.run(X, backend="numpy", **options)["y"]]


def test_a_loop_plans_once_for_each_backend(made: list[str]) -> None:
    model = small()
    for _ in range(3):
        model.run(X, backend="numpy")
        model.run(X, backend="numpy", taps=["q"])
        model.run(X)
    assert made == ["numpy", "auto"]


def test_a_pass_makes_the_plan_anew(made: list[str]) -> None:
    model = small()
    before = y(model)
    model.apply(transforms.ConvertDialect(to="qdq"))
    assert y(model) == before
    assert made == ["numpy", "numpy"]


def test_edits_by_hand_are_seen(made: list[str]) -> None:
    model = small()
    assert y(model) == [-0.5, 1.0]
    model.ir.graph.initializers["s"].const_value = ir.tensor(np.asarray(1, np.float32))
    assert y(model) == [0.0, 1.0]
    negation = model.ir.graph[1]
    negation.op_type = "Abs"
    assert y(model) == [0.0, 1.0]
    negation.replace_input_with(0, model.ir.graph.inputs[0])
    assert y(model) == [float(np.float32(0.3)), 1.0]
    model.ir.graph[0].attributes["signed"] = ir.AttrInt64("signed", 0)
    y(model)
    model.freeze_inputs()
    y(model)
    assert made == ["numpy"] * 6


def test_edits_in_a_branch_are_seen(made: list[str]) -> None:
    model = qgraph.load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] u) { u = Neg (x) },
                        else_branch = e () => (float[2] v) { v = Abs (x) }>
        }""")
    )
    inputs = {**X, "c": np.asarray(True)}
    model.run(inputs, backend="numpy")
    branch = model.ir.graph[0].attributes["then_branch"].as_graph()
    branch[0].op_type = "Abs"
    result = model.run(inputs, backend="numpy")["y"]
    np.testing.assert_array_equal(result, np.abs(X["x"]))
    assert len(made) == 2


def test_a_copy_has_plans_of_its_own(made: list[str]) -> None:
    model = small()
    y(model)
    y(model.clone())
    assert len(made) == 2

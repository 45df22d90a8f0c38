"""Tensors are compared one after the other, few of them held at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from qgraph.comparison import divergence
from qgraph.comparison.check import check
from qgraph.comparison.divergence import ModelRun, compare_tensors, correspondence, first_divergence
from qgraph.execution.executor import Executor
from qgraph.model import Model
from qgraph.reporting.pages import page_of

DEPTH = 12


def model(body: str) -> Model:
    return Model(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 21]> {body}'))


def chain(other: str = "Neg") -> Model:
    """Return ``DEPTH`` operators in a row, of which the sixth may be another one."""
    names = ["x", *(f"t{n}" for n in range(1, DEPTH)), "y"]
    operators = [other if n == 5 else "Neg" for n in range(DEPTH)]
    nodes = [f"{names[n + 1]} = {operators[n]} ({names[n]})" for n in range(DEPTH)]
    return model(f"g (float[N] x) => (float[N] y) {{ {' '.join(nodes)} }}")


class Counting(Executor):
    """Counts its runs."""

    runs = 0

    def stream(
        self, inputs: Mapping[str, npt.ArrayLike], taps: Sequence[str]
    ) -> Iterator[tuple[str, Any]]:
        self.runs += 1
        return super().stream(inputs, taps)


@pytest.mark.parametrize("held", [1 << 28, 1])
def test_one_run_of_each_model_is_enough(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(divergence, "_HELD_BYTES", held)
    reference, candidate = chain(), chain("Abs")
    executors = Counting(reference.ir), Counting(candidate.ir)
    x = {"x": np.full(100, -2, np.float32)}
    found = compare_tensors(
        ModelRun(reference.ir.graph, executors[0], x),
        ModelRun(candidate.ir.graph, executors[1], x),
        correspondence(reference, candidate, {"y": "y"}),
    )
    assert [tensor.reference for tensor in found] == [f"t{n}" for n in range(1, DEPTH)] + ["y"]
    assert [tensor.max_abs for tensor in found] == [0.0] * 5 + [4.0] * 7
    assert [executor.runs for executor in executors] == [1, 1]


def test_only_what_leads_to_an_output_that_differs_is_the_first() -> None:
    """The tensor that differs first may be of no effect."""
    text = (
        "g (float[2] x) => (float[2] y, float[2] z) "
        "{ a = OP1 (x) n = Neg (a) z = Mul (n, n) b = OP2 (x) y = Neg (b) }"
    )
    reference = model(text.replace("OP1", "Abs").replace("OP2", "Abs"))
    candidate = model(text.replace("OP1", "Neg").replace("OP2", "Identity"))
    report = check(reference, candidate, {"x": np.asarray([-1, 2], np.float32)}, backend="numpy")
    apart = [tensor.reference for tensor in report.tensors if not tensor.compared.equal]
    assert "a" in apart
    assert report.first_divergence is not None
    assert report.first_divergence.reference == "b"
    assert [output.mismatches for output in report.outputs] == [1, 0]


def test_nothing_is_first_where_nothing_differs() -> None:
    reference = chain()
    x = {"x": np.full(3, 2, np.float32)}
    run = ModelRun(reference.ir.graph, Executor(reference.ir), x)
    tensors = compare_tensors(run, run, correspondence(reference, reference, {"y": "y"}))
    assert len(tensors) == DEPTH
    assert first_divergence(reference.ir.graph, tensors, {"y"}) is None


def test_tensors_are_ranked_by_relative_error() -> None:
    text = (
        "g (float[2] x) => (float[2] y) <float e = {E}, float t = {1000}> "
        "{ a = Add (x, e) b = Mul (a, t) y = Add (b, t) }"
    )
    reference, candidate = (model(text.replace("E", number)) for number in ("0", "0.5"))
    report = check(reference, candidate, {"x": np.ones(2, np.float32)}, backend="numpy")
    # 0.5 of 1, 500 of 1000, 500 of 2000; equal errors stay in the order of the graph
    errors = [(t["reference"], t["relative"]) for t in report.to_json()["tensors"]]
    assert errors == [
        ("a", pytest.approx(0.5)),
        ("b", pytest.approx(0.5)),
        ("y", pytest.approx(0.25)),
    ]
    (section,) = [s for s in page_of(report.to_json()).sections if s.title == "Error by layer"]
    assert [row[0].text for row in section.tables[0].rows] == ["a", "b", "y"]

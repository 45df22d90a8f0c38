"""Comparing the tensors of two models: every one of them, and few of them held at a time."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.comparison import divergence
from qgraph.execution.runtime import RuntimeExecutor

LENGTH = 20
OPERATORS = ("Mul", "Relu", "Add", "Neg", "Abs")


def chain(first: float, length: int = LENGTH) -> ir.Model:
    lines = []
    for i, name in zip(range(length), itertools.cycle(OPERATORS), strict=False):
        factor = "" if name not in ("Mul", "Add") else ", c" if i else ", first"
        lines.append(f"v{i + 1} = {name}(v{i}{factor})")
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,256] v0) => (float[N,256] v{length})
        <float first = {{{first}}}, float c = {{0.75}}> {{ {" ".join(lines)} }}"""
    )


def branches(order: str) -> ir.Model:
    """Return a model that computes a, b, c and d in some order, before it adds them."""
    names = {"a": "Relu", "b": "Neg", "c": "Abs", "d": "Floor"}
    lines = [f"{name} = {names[name]}(x)" for name in order]
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,8] x) => (float[N,8] y) <float s = {{{1 + (order == "abcd")}}}> {{
            {" ".join(lines)} t = Sum(a, b, c, d) y = Mul(t, s)
        }}"""
    )


X = np.random.default_rng(0).standard_normal((4096, 256)).astype(np.float32)


@pytest.mark.slow
def test_a_longer_chain_holds_no_more_activations():
    peaks = []
    for length in (6, LENGTH):
        sides = qgraph.load(chain(0.5, length)), qgraph.load(chain(0.625, length))
        qgraph.check(*sides, {"v0": X[:2]}, backend="numpy")
        tracemalloc.start()
        try:
            report = qgraph.check(*sides, {"v0": X}, backend="numpy")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert [len(report.tensors), report.tensors[0].compared.equal] == [length, False]
    assert peaks[1] - peaks[0] < 2 * X.nbytes


@pytest.fixture
def sessions(monkeypatch):
    """How many results sessions have, and whether they keep their memory; without probes."""
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    counts = []

    old = RuntimeExecutor.session

    def session(self, nodes, imports, feeds, constants, outputs, *, arena=True):
        if [node.op_type for node in nodes] != ["Identity"]:
            counts.append((len(outputs), arena))
        return old(self, nodes, imports, feeds, constants, outputs, arena=arena)

    monkeypatch.setattr(RuntimeExecutor, "session", session)
    return counts


def test_no_session_returns_many_tensors(sessions):
    sides = qgraph.load(chain(0.5)), qgraph.load(chain(0.625))
    expected = qgraph.check(*sides, {"v0": X[:4]}, backend="numpy")
    report = qgraph.check(*sides, {"v0": X[:4]}, backend="ort")
    assert [t.to_json() for t in report.tensors] == [t.to_json() for t in expected.tensors]
    assert max(number for number, _ in sessions) <= 3
    assert len(sessions) == LENGTH + len(sides)
    assert not any(keeps_memory for _, keeps_memory in sessions)


def test_sessions_of_segments_share_their_memory(sessions):
    sides = [
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        g (int8[2,2] x) => (float[2,2] y)
        <float[2,2] w = {{1, 2, 3, {last}}}, float s = {{0.1}}, int8 z = {{0}}> {{
            a = DequantizeLinear (x, s, z) m = MatMul (a, w)
            q = QuantizeLinear (m, s, z) b = DequantizeLinear (q, s, z) y = MatMul (b, w)
        }}""")
        for last in (4, 4.001)
    ]
    x = np.arange(4, dtype=np.int8).reshape(2, 2)
    tolerances = qgraph.Tolerances(within="9step")
    report = qgraph.check(*sides, {"x": x}, tolerances=tolerances, backend="ort")
    assert len(report.bounds.segments) == 2
    assert len(sessions) == len(sides) * (1 + 2)
    assert not any(keeps_memory for _, keeps_memory in sessions)


@pytest.mark.parametrize("held", [1 << 28, 1])
@pytest.mark.parametrize("order", ["dcba", "badc"])
def test_another_order_of_computation_leaves_none_out(monkeypatch, held, order):
    monkeypatch.setattr(divergence, "_HELD_BYTES", held)
    report = qgraph.check(branches("abcd"), branches(order), {"x": X[:1024, :8]}, backend="numpy")
    assert [tensor.reference for tensor in report.tensors] == [*"abcd", "t", "y"]
    assert [tensor.candidate for tensor in report.tensors] == [*"abcd", "t", "y"]
    assert [tensor.compared.equal for tensor in report.tensors] == [True] * 5 + [False]
    assert report.first_divergence is not None
    assert report.first_divergence.reference == "y"

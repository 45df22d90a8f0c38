"""Threads that share a model for runs."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.execution.runtime import RuntimeExecutor

THREADS = 8
NETWORK = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,32] x) => (float[N,32] y)
<float[32,32] w = {WEIGHTS}> {
    [first] a = MatMul (x, w)
    [middle] b = Softmax (a)
    [last] y = MatMul (b, w)
}"""
QUANTIZED = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
net (float[N,4] x) => (float[N,4] y)
<float s = {0.5}, float z = {0}, float b = {8}, float[4] k = {1, 1, 1, 1}> {
    [scaled] m = Mul (x, k)
    [act] q = qonnx.custom_op.general.Quant <signed = 1, rounding_mode = "ROUND"> (m, s, z, b)
    [double] y = Add (q, q)
}"""


def in_threads(work: Any) -> list[Any]:
    """Return what ``work`` returns for the number of each thread; all of them start at once."""
    barrier = threading.Barrier(THREADS)

    def waiting(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(waiting, range(THREADS)))


@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_each_thread_gets_the_results_of_its_inputs(backend: str) -> None:
    model = qgraph.load(ir.from_onnx_text(QUANTIZED))
    factors = model.ir.graph.initializers["k"]

    def work(number: int) -> list[bool]:
        right = []
        for run in range(6):
            x = np.full((1, 4), number + run / 4, np.float32)
            y = model.run({"x": x}, backend=backend, taps=["q"] if run % 2 else [])["y"]
            right.append(bool((y == 2 * np.clip(np.rint(factor * x / 0.5), -128, 127) * 0.5).all()))
        return right

    for factor in (1, 2, 3):  # the model may be edited when no thread runs it
        factors.const_value = ir.tensor(np.full(4, factor, np.float32), name="k")
        assert all(map(all, in_threads(work)))


@pytest.mark.runtime
@pytest.mark.parametrize("taps", [[], ["a"], ["a", "b"]])
def test_all_threads_wait_for_the_session_of_the_first(
    taps: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import onnxruntime

    generator = np.random.default_rng(0)
    weights = ", ".join(f"{w:.6f}" for w in generator.standard_normal(32 * 32))
    model = qgraph.load(ir.from_onnx_text(NETWORK.replace("WEIGHTS", weights)))
    x = generator.standard_normal((4, 32)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.to_proto().SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    sessions = []
    own = RuntimeExecutor.session

    def slow(self: RuntimeExecutor, nodes: Any, *rest: Any, **named: Any) -> Any:
        sessions.append([node.name for node in nodes])
        time.sleep(0.02)
        return own(self, nodes, *rest, **named)

    monkeypatch.setattr(RuntimeExecutor, "session", slow)
    found = in_threads(lambda _: model.run({"x": x}, backend="ort", taps=taps)["y"])
    assert all(np.array_equal(y, expected) for y in found)
    assert sessions.count(["first", "middle", "last"]) == 1
    assert not [names for names in sessions if len(names) == 1 and names[0] in ("first", "last")]
    assert "refuses" not in caplog.text


@pytest.mark.runtime
def test_threads_may_ask_for_different_taps() -> None:
    model = qgraph.load(ir.from_onnx_text(QUANTIZED))
    wanted = [["m"], ["q"], ["m", "q"], []]

    def work(number: int) -> list[bool]:
        x = np.full((2, 4), number, np.float32)
        right = []
        for run in range(20):
            taps = wanted[(number + run) % len(wanted)]
            outputs = model.run({"x": x}, backend="ort", taps=taps)
            right.append(set(outputs) == {"y", *taps} and bool((outputs["y"] == 2 * x).all()))
        return right

    assert all(map(all, in_threads(work)))

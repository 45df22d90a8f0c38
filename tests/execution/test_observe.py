"""Values that are handed over when they are computed, and held no longer than needed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.execution.prepare import prepare

BACKENDS = ["numpy", pytest.param("ort", marks=pytest.mark.runtime)]


def model(body: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 18]> {body}')


@pytest.mark.parametrize("backend", BACKENDS)
def test_taps_are_handed_over_in_order_and_not_returned(backend):
    if backend == "ort":
        pytest.importorskip("onnxruntime")
    graph = """g (float[2] x) => (float[2] y, float[2] s) <float[2] s = {5, 6}> {
        k = Constant <value_floats = [1.0, 2.0]> ()
        a = Add (x, k)  b = Neg (a)  y = Abs (b)
    }"""
    seen: list[tuple[str, Any]] = []
    executor = prepare(model(graph), backend)
    found = executor.run(
        {"x": [1, 2]},
        taps=["b", "a", "x", "k", "s", "y"],
        observe=lambda name, value: seen.append((name, value.tolist())),
    )
    assert {name: value.tolist() for name, value in found.items()} == {"y": [2, 4], "s": [5, 6]}
    assert seen[:3] == [("x", [1, 2]), ("k", [1, 2]), ("s", [5, 6])]
    assert seen[3:] == [("a", [2, 4]), ("b", [-2, -4]), ("y", [2, 4])]
    assert executor.computed == ["a", "b", "y"]


def test_an_unknown_tap_is_refused():
    executor = prepare(model("g (float[2] x) => (float[2] y) { y = Neg (x) }"), "numpy")
    with pytest.raises(OptionError, match="'z'"):
        executor.run({"x": [1, 2]}, taps=["z"], observe=lambda name, value: None)


def test_memory_stays_flat_however_much_is_observed():
    nodes = "  ".join(f"v{i + 1} = Neg (v{i})" for i in range(100))
    executor = prepare(
        model(f"g (float[N] x) => (float[N] y) {{ v0 = Abs (x)  {nodes}  y = Neg (v100) }}"),
        "numpy",
    )
    x = np.ones(1 << 18, np.float32)
    seen = []
    tracemalloc.start()
    executor.run({"x": x}, taps=executor.computed, observe=lambda name, _: seen.append(name))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == executor.computed
    assert peak < 4 * x.nbytes


def test_what_changes_with_an_input():
    graph = """g (float[2] x, float[2] o, bool c) => (float[2] y, float[2] r) <float[2] o = {1, 2},
        float[2] w = {3, 4}> {
        a = Neg (o)  b = Neg (w)  k = Constant <value_floats = [1.0, 2.0]> ()  e = Exp (k)
        y = If (c) <then_branch = t () => (float[2] p) { p = Neg (x) },
                    else_branch = f () => (float[2] q) { q = Neg (b) }>
        r = RandomNormal <shape = [2]> ()
    }"""
    executor = prepare(model(graph), "numpy")
    assert executor.depending_on(["x"]) == {"x", "y", "r"}
    assert executor.depending_on(["o", "c"]) == {"o", "a", "c", "y", "r"}

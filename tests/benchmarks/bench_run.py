"""Time one inference, after loading, batch 1, with backend ``ort``, against two others.

* qonnx's ``execute_onnx``, in a process of its own environment, on the model that its clean-up
  makes;
* ONNX Runtime on the same network with the quantizers removed, constant ones folded, with the
  session options that qgraph uses.

The three alternate, so that a change of the machine's load meets all; the ratios of each round are
taken, then their medians. Without models the MobileNet of ``make_mobilenet.py`` is timed.

    python tests/benchmarks/bench_run.py [MODEL.onnx]... [--qonnx-python /path/to/bin/python]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from make_mobilenet import make_mobilenet

import qgraph
from qgraph.execution.inputs import make_inputs
from qgraph.graph.constants import constant_expression
from qgraph.graph.opset.versions import declare_domains, minimum_ir_version
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites

QONNX = """
import sys, time
import numpy as np
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.core.onnx_exec import execute_onnx
from qonnx.util.cleanup import cleanup_model
talk, sys.stdout = sys.stdout, sys.stderr
model = cleanup_model(ModelWrapper(sys.argv[1]))
inputs = dict(zip([v.name for v in model.graph.input], np.load(sys.argv[2]).values()))
output = execute_onnx(model, inputs)
np.save(sys.argv[3], next(iter(output.values())))
print("ready", file=talk, flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        start = time.perf_counter()
        execute_onnx(model, inputs)
        times.append(time.perf_counter() - start)
    print(sorted(times)[len(times) // 2], file=talk, flush=True)
"""


class Qonnx:
    """qonnx in another environment; it waits without computing while others are timed."""

    def __init__(self, python: Path, model: Path, inputs: dict[str, Any], folder: Path) -> None:
        np.savez(folder / "inputs.npz", *inputs.values())
        files = [str(model), str(folder / "inputs.npz"), str(folder / "output.npy")]
        self._process = subprocess.Popen(
            [str(python), "-c", QONNX, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._answer() != "ready":
            raise SystemExit(f"{python} cannot run {model} with qonnx")
        self.output = np.load(folder / "output.npy")

    def seconds(self, runs: int) -> float:
        """Return the median time of ``runs`` inferences."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{runs}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def seconds(run: Callable[[], object], runs: int) -> float:
    """Return the median time of ``runs`` calls."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def without_quantizers(path: Path) -> ir.Model:
    """Return the model without its quantizers; what they make of constants is stored instead."""
    model = qgraph.load(path)
    model.freeze_inputs()
    for site in [found for found in sites(model.ir) if isinstance(found, Site)]:
        if site.values is None:
            site.y.replace_all_uses_with(site.x, replace_graph_outputs=True)
        else:
            store(site.y, site.values)
        model.ir.graph.remove(list(site.nodes), safe=True)
    for node in list(model.ir.graph):
        known = None if node.op_type == "Constant" else constant_expression(node.outputs[0])
        if known is not None:
            store(node.outputs[0], known)
            model.ir.graph.remove(node, safe=True)
    for domain in set(model.ir.opset_imports) - {node.domain for node in model.ir.graph} - {""}:
        del model.ir.opset_imports[domain]
    declare_domains(model.ir)
    model.ir.ir_version = max(minimum_ir_version(model.ir), 8)
    return model.ir


def store(value: ir.Value, array: np.ndarray[Any, Any]) -> None:
    """Put an initializer in the place of a value."""
    tensor = ir.tensor(np.ascontiguousarray(array), name=f"{value.name}_stored")
    stored = ir.Value(
        name=tensor.name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(stored)
    value.replace_all_uses_with(stored, replace_graph_outputs=True)


def session_of(model: ir.Model) -> onnxruntime.InferenceSession:
    """Return a session with the options that qgraph uses."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", "100")
    data = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def bench(path: Path, python: Path | None, rounds: int, budget: float) -> None:
    """Time one model and print medians and ratios."""
    model = qgraph.load(path)
    inputs = make_inputs(qgraph.load(path).inputs)
    start = time.perf_counter()
    (output, *_) = model.run(inputs, backend="ort").values()
    first = time.perf_counter() - start
    plain = session_of(without_quantizers(path))
    times: dict[str, list[float]] = {"qgraph": [], "no quantizers": []}
    with tempfile.TemporaryDirectory() as folder:
        qonnx = None if python is None else Qonnx(python, path, inputs, Path(folder))
        if qonnx is not None:
            times["qonnx"] = []
        once = seconds(lambda: model.run(inputs, backend="ort"), 3)
        runs = max(3, round(budget / once))
        for _ in range(rounds):
            times["qgraph"].append(seconds(lambda: model.run(inputs, backend="ort"), runs))
            times["no quantizers"].append(seconds(lambda: plain.run(None, inputs), runs))
            if qonnx is not None:
                times["qonnx"].append(qonnx.seconds(3))
        if qonnx is not None:
            qonnx.close()
    medians = ", ".join(f"{k} {1e3 * statistics.median(v):.3f} ms" for k, v in times.items())
    print(f"{path.stem}: {medians}; first run of qgraph {first:.2f} s")
    ours = times["qgraph"]
    slower = statistics.median(a / b for a, b in zip(ours, times["no quantizers"], strict=True))
    line = f"    {slower:.2f} times the time without quantizers"
    if qonnx is not None:
        faster = statistics.median(b / a for a, b in zip(ours, times["qonnx"], strict=True))
        line += f"; {faster:.1f} times faster than qonnx"
        line += f" (largest difference of outputs {np.abs(output - qonnx.output).max():.2g})"
    print(line, flush=True)


def main() -> None:
    """Time every model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--qonnx-python", type=Path, help="interpreter that has qonnx")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="per round, of qgraph")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = options.models
        if not models:
            models = [Path(folder) / "mobilenet.onnx"]
            ir.save(make_mobilenet(), models[0])
        for path in models:
            bench(path, options.qonnx_python, options.rounds, options.seconds)


if __name__ == "__main__":
    main()

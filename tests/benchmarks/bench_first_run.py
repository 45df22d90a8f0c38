"""Time the first and the second run of chains, beside a session of ONNX Runtime on floats.

python tests/benchmarks/bench_first_run.py [--nodes 1000 10000] [--command]

With ``--command``, Python collects garbage as in a process of the command line, and else as usual.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
from bench_graphs import SHAPE, Maker, chain

import qgraph
from qgraph.cli.tuning import tune


def milliseconds(task: Callable[[], object], nodes: int) -> float:
    """Return the processor time of a task, per node.

    Garbage that it makes is collected as usual; what earlier tasks left is not counted.
    """
    gc.collect()
    start = time.process_time()
    task()
    return 1e3 * (time.process_time() - start) / nodes


def make_floats(nodes: int) -> ir.Model:
    """Return a chain of Relu, Neg and Abs."""
    names = ("Relu", "Neg", "Abs")
    lines = " ".join(f"v{i + 1} = {names[i % 3]}(v{i})" for i in range(nodes))
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[1,{SHAPE[1]}] v0) => '
        f"(float[1,{SHAPE[1]}] v{nodes}) {{ {lines} }}"
    )


def make_chain(nodes: int) -> ir.Model:
    """Return a chain of quantizers and float operators in turn."""
    return chain(Maker(repeats=True), nodes)


def by_runtime(model: ir.Model, x: np.ndarray) -> None:
    """Run a model once in a new session."""
    data = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    session.run(None, {"v0": x})


def main() -> None:
    """Time each kind of chain."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--command", action="store_true", help="collect garbage as commands do")
    options = parser.parse_args()
    if options.command:
        tune()
    x = np.ones(SHAPE, np.float32)
    for nodes in (10, *options.nodes):  # the first one imports what is needed
        plain = milliseconds(lambda n=nodes: by_runtime(make_floats(n), x), nodes)
        print(f"{nodes} nodes: ONNX Runtime, floats: {plain:.3f} ms a node")
        for kind, make, name in (("floats", make_floats, "v0"), ("quantizers", make_chain, "x")):
            for backend in ("numpy", "ort"):
                model = qgraph.load(make(nodes))
                run = [
                    milliseconds(lambda m=model, k=name, b=backend: m.run({k: x}, backend=b), nodes)
                    for _ in range(2)
                ]
                print(f"  {kind}, {backend}: first {run[0]:.3f}, second {run[1]:.4f}", flush=True)


if __name__ == "__main__":
    main()

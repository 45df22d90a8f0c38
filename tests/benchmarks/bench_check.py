"""Measure the peak memory of checking two chains, in activations, and the processor time.

The floor is one run of both models: operand and result of a node.

    python tests/benchmarks/bench_check.py [--nodes 20] [--megabytes 32]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import numpy as np
import onnx_ir as ir

import qgraph

OPERATORS = ("Mul", "Relu", "Add", "Neg", "Abs")


def make_chain(first: float, nodes: int) -> ir.Model:
    """Return a chain whose first factor is ``first``."""
    lines = []
    for i in range(nodes):
        name = OPERATORS[i % len(OPERATORS)]
        factor = "" if name not in ("Mul", "Add") else ", c" if i else ", first"
        lines.append(f"v{i + 1} = {name}(v{i}{factor})")
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,1024] v0) => (float[N,1024] v{nodes})
        <float first = {{{first}}}, float c = {{0.75}}> {{ {" ".join(lines)} }}"""
    )


def check(backend: str, candidate: float, nodes: int, megabytes: int) -> None:
    """Check two chains in this process, and print the peak."""
    x = np.random.default_rng(0).standard_normal((megabytes << 8, 1024)).astype(np.float32)
    sides = make_chain(0.5, nodes), make_chain(candidate, nodes)
    qgraph.check(*sides, {"v0": x[:2]}, backend=backend)
    before = resource.getrusage(resource.RUSAGE_SELF)
    report = qgraph.check(*sides, {"v0": x}, backend=backend)
    after = resource.getrusage(resource.RUSAGE_SELF)
    held = 1024 * (after.ru_maxrss - before.ru_maxrss) / x.nbytes
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{backend}, {report.verdict}: {held:.1f} activations, {spent:.1f} s", flush=True)


def main() -> None:
    """Check equal and different chains, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--one", nargs=2, metavar=("BACKEND", "FACTOR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        check(options.one[0], float(options.one[1]), options.nodes, options.megabytes)
        return
    sizes = ["--nodes", str(options.nodes), "--megabytes", str(options.megabytes)]
    for backend in ("numpy", "ort"):
        for factor in ("0.5", "0.625"):
            command = [sys.executable, __file__, *sizes, "--one", backend, factor]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

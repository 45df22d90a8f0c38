"""Measure the peak memory of checking two chains, in activations, and the processor time.

The floor is one run of both models: operand and result of a node. With ``--within`` the time that
``check`` takes with bounds is measured as a multiple of that without: of a MobileNet-v1 of 8 bits
and its form with BatchNormalization folded, or of the two models named, on random inputs.

    python tests/benchmarks/bench_check.py [--nodes 20] [--megabytes 32]
    python tests/benchmarks/bench_check.py --within [REFERENCE.onnx CANDIDATE.onnx]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

import numpy as np
import onnx_ir as ir
from make_mobilenet import make_mobilenet

import qgraph
from qgraph import transforms

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


def check(backend: str, candidate: float, tolerance: float, nodes: int, megabytes: int) -> None:
    """Check two chains in this process, and print the peak."""
    tolerances = qgraph.Tolerances(atol=tolerance)
    x = np.random.default_rng(0).standard_normal((megabytes << 8, 1024)).astype(np.float32)
    sides = make_chain(0.5, nodes), make_chain(candidate, nodes)
    qgraph.check(*sides, {"v0": x[:2]}, backend=backend)
    before = resource.getrusage(resource.RUSAGE_SELF)
    report = qgraph.check(*sides, {"v0": x}, tolerances=tolerances, backend=backend)
    after = resource.getrusage(resource.RUSAGE_SELF)
    held = 1024 * (after.ru_maxrss - before.ru_maxrss) / x.nbytes
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    verdict = f"{report.verdict} within {tolerance:g}" if tolerance else report.verdict
    print(f"{backend}, {verdict}: {held:.1f} activations, {spent:.1f} s", flush=True)


def user_seconds() -> float:
    """Return the processor time of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def compare_within(paths: list[str], runs: int) -> None:
    """Print the times of checks without and with bounds, in turns after one that is not counted."""
    reference, candidate = (qgraph.load(path) for path in paths) if paths else folded()
    for backend in ("ort", "numpy"):
        for batches in (1, 8):
            inputs = qgraph.Inputs(random=batches)
            pairs = []
            for _ in range(runs + 1):
                times = [user_seconds()]
                for limit in (None, "1step"):
                    tolerances = qgraph.Tolerances(within=limit)
                    qgraph.check(
                        reference, candidate, inputs, tolerances=tolerances, backend=backend
                    )
                    times.append(user_seconds())
                pairs.append((times[1] - times[0], times[2] - times[1]))
            plain, within = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
            print(
                f"{backend}, batches {batches}: {plain:.2f} s, with bounds {within:.2f} s, "
                f"{within / plain:.1f} times",
                flush=True,
            )


def folded() -> tuple[qgraph.Model, qgraph.Model]:
    """Return a MobileNet-v1, and its form with BatchNormalization folded."""
    models = qgraph.load(make_mobilenet(bits=8)), qgraph.load(make_mobilenet(bits=8))
    models[1].apply(transforms.FoldBatchNorm())
    return models


def main() -> None:
    """Check chains with each verdict, in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--within", nargs="*", metavar="MODEL", help="measure checks with bounds")
    parser.add_argument("--runs", type=int, default=3, help="of checks with bounds")
    options = parser.parse_args()
    if options.within is not None:
        compare_within(options.within, options.runs)
        return
    if options.one:
        backend, factor, tolerance = options.one
        check(backend, float(factor), float(tolerance), options.nodes, options.megabytes)
        return
    sizes = ["--nodes", str(options.nodes), "--megabytes", str(options.megabytes)]
    for backend in ("numpy", "ort"):
        for pair in (("0.5", "0"), ("0.625", "9"), ("0.625", "0")):
            command = [sys.executable, __file__, *sizes, "--one", backend, *pair]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

"""Lint a large model and folders: milliseconds for each node, and for each model.

The large model is a chain of quantized layers: five nodes each, two thirds of them quantizers. The
small models are those of ``bench_several.py``. With a folder, its models of more than 100 nodes are
linted instead, and those in its folders. Processor time, without reading a model.

    python tests/benchmarks/bench_lint.py [--layers 2000] [--models 1000] [--folder MODELS]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import onnx_ir as ir
from bench_several import cpu_seconds, make_models

import qgraph
from qgraph.graph.scopes import nodes_of, owners
from qgraph.lint.engine import lint

TARGETS = (None, "onnxruntime-cpu", "openvino-cpu")
HEAD = """<ir_version: 10, opset_import: ["": 21]> net (float[N,8] x0) => (float[N,8] x{layers})
<float s = {{0.1}}, uint8 z = {{0}}, int8 o = {{0}},
 float[8] b = {{1, 2, 3, 4, 5, 6, 7, 8}}{weights}> {{
{nodes}
}}"""
LAYER = """q{i} = QuantizeLinear (x{i}, s, z) d{i} = DequantizeLinear (q{i}, s, z)
e{i} = DequantizeLinear (w{i}, s, o) g{i} = Gemm (d{i}, e{i}, b) x{n} = Relu (g{i})"""


def chain(layers: int) -> ir.Model:
    """Return a model of so many layers."""
    codes = [", ".join(str((7 * i + 13 * j) % 127 - 63) for j in range(64)) for i in range(layers)]
    weights = "".join(f", int8[8,8] w{i} = {{{text}}}" for i, text in enumerate(codes))
    nodes = "\n".join(LAYER.format(i=i, n=i + 1) for i in range(layers))
    return ir.from_onnx_text(HEAD.format(layers=layers, weights=weights, nodes=nodes))


def seconds_of(source: Path | ir.Model, target: str | None, runs: int) -> tuple[float, int]:
    """Return the least processor time of several runs, and the number of findings."""
    best, found = float("inf"), 0
    for _ in range(runs):
        model = qgraph.load(source)
        start = time.process_time()
        found = len(lint(model, target))
        best = min(best, time.process_time() - start)
    return best, found


def time_folder(folder: Path, runs: int, fewest: int = 100) -> None:
    """Print the time of each model of more than ``fewest`` nodes."""
    for path in sorted(folder.rglob("*.onnx")):
        owned = owners(qgraph.load(path).ir)
        nodes = sum(1 for owner in owned for _ in nodes_of(owner))
        if nodes > fewest:
            each = [
                f"{target}: {1e3 * seconds_of(path, target, runs)[0] / nodes:.3f}"
                for target in TARGETS
            ]
            print(f"{path.stem} ({nodes} nodes), ms a node, {', '.join(each)}")
            sys.stdout.flush()


def main() -> None:
    """Time both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for target in TARGETS:
        lint(chain(1), target)  # imports, and reading the profile
    if options.folder is not None:
        time_folder(options.folder, options.runs)
        return
    for target in TARGETS:
        seconds, found = seconds_of(chain(options.layers), target, 1)
        number = 5 * options.layers
        each = 1e3 * seconds / number
        print(f"{number} nodes, target {target}: {each:.3f} ms a node, {found} found")
    with tempfile.TemporaryDirectory() as scratch:
        make_models(Path(scratch), options.models)
        seconds = cpu_seconds("lint", scratch, "--fail-on", "never", "--format", "json")
        print(
            f"{options.models} models in one process: {1e3 * seconds / options.models:.1f} ms each"
        )


if __name__ == "__main__":
    main()

"""Lint a large model and a folder of small ones: milliseconds for each node, and for each model.

The large model is a chain of quantized layers: five nodes each, two thirds of them quantizers. The
small models are those of ``bench_several.py``. Processor time, without reading the large model.

    python tests/benchmarks/bench_lint.py [--layers 2000] [--models 1000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import onnx_ir as ir
from bench_several import cpu_seconds, make_models

from qgraph.lint.engine import lint

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


def main() -> None:
    """Time both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--models", type=int, default=1000)
    options = parser.parse_args()
    for target in (None, "onnxruntime-cpu"):
        lint(chain(1), target)  # imports, and reading the profile
        model = chain(options.layers)
        start = time.process_time()
        findings = len(lint(model, target))
        each = 1e3 * (time.process_time() - start) / (5 * options.layers)
        print(
            f"{5 * options.layers} nodes, target {target}: {each:.3f} ms a node, {findings} found"
        )
    with tempfile.TemporaryDirectory() as scratch:
        make_models(Path(scratch), options.models)
        seconds = cpu_seconds("lint", scratch, "--fail-on", "never", "--format", "json")
        print(
            f"{options.models} models in one process: {1e3 * seconds / options.models:.1f} ms each"
        )


if __name__ == "__main__":
    main()

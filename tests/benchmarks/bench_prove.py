"""Time the proof of whole models against their Q/DQ forms, and one region input by input.

Three figures: a MobileNet-v1 of 4-bit weights and activations (``make_mobilenet.py``), a network of
fully connected layers, and one quantizer over all 2**32 inputs by NumPy alone, which is what a
proof saves. Reading the files counts, starting Python does not.

    python tests/benchmarks/bench_prove.py
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
from make_mobilenet import make_mobilenet

import qgraph
from qgraph import transforms

LAYERS = (784, 256, 256, 10)
CHUNK = 1 << 16


def make_mlp(seed: int = 0) -> ir.Model:
    """Return layers of 3-bit weights and activations."""
    rng = np.random.default_rng(seed)
    quant = "qonnx.custom_op.general.Quant"
    lines, weights = [], []
    for i in range(len(LAYERS) - 1):
        weights.append(f"float w{i} = {{0}}")
        lines.append(f"v{i} = {quant}<signed = 1, narrow = 1>(w{i}, s, z, b)")
        lines.append(f"a{i} = {quant}<signed = 1, narrow = 0>(x{i}, s, z, b)")
        lines.append(f"m{i} = MatMul(a{i}, v{i}) x{i + 1} = Relu(m{i})")
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        mlp (float[N,{LAYERS[0]}] x0) => (float[N,{LAYERS[-1]}] x{len(LAYERS) - 1})
        <float s = {{0.1}}, float z = {{0}}, float b = {{3}}, {", ".join(weights)}>
        {{ {" ".join(lines)} }}"""
    )
    for i, sizes in enumerate(itertools.pairwise(LAYERS)):
        value = model.graph.initializers[f"w{i}"]
        weight = rng.normal(0, 0.2, sizes).astype(np.float32)
        value.const_value = ir.tensor(weight, name=value.name)
        value.shape = ir.Shape(sizes)
    return model


def enumerate_all() -> int:
    """Return on how many of the 2**32 inputs an 8-bit Quant and its Q/DQ form differ."""
    s, low, high = np.float32(0.1), np.float32(-128), np.float32(127)
    differing = 0
    with np.errstate(all="ignore"):
        for start in range(0, 1 << 32, CHUNK):
            x = np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)
            q = np.divide(x, s)
            y = np.rint(np.minimum(np.maximum(q, low), high)) * s
            z = np.minimum(np.maximum(np.rint(q), low), high) * s
            differing += int(np.count_nonzero((y != z) & ~np.isnan(x)))
    return differing


def seconds(task: Callable[[], object]) -> float:
    """Return the wall time of a task."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def main() -> None:
    """Print medians and extremes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--exhaustive", action="store_true", help="also try 2**32 inputs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, made in (("MobileNet-v1", make_mobilenet()), ("MLP", make_mlp())):
            before, after = Path(folder, f"{name}.onnx"), Path(folder, f"{name}_qdq.onnx")
            ir.save(made, before)
            model = qgraph.load(before)
            model.apply(transforms.ConvertDialect(to="qdq"))
            model.save(after)
            found = qgraph.prove(before, after)
            times = [
                seconds(lambda: qgraph.prove(before, after))  # noqa: B023 - called at once
                for _ in range(options.runs)
            ]
            print(
                f"{name:13} {found.verdict}, {len(found.regions)} regions: median "
                f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"
            )
    if options.exhaustive:
        start = time.perf_counter()
        differing = enumerate_all()
        spent = time.perf_counter() - start
        print(f"one region, input by input: {spent:.1f} s, {differing} inputs differ")


if __name__ == "__main__":
    main()

"""Time the proof of whole models against their Q/DQ forms, and one region input by input.

Three figures: a MobileNet-v1 of 4-bit weights and activations (``make_mobilenet.py``) and a network
of fully connected layers, as multiples of reading both files with ``onnx.load`` and running each on
one random sample by qgraph; and functions over all float32 inputs, in NumPy and with numba, beside
one of them in plain NumPy. Reading the files counts, starting Python does not.

    python tests/benchmarks/bench_prove.py
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
from make_mobilenet import make_mobilenet

import qgraph
from qgraph import transforms
from qgraph.proof.functions import blocks
from qgraph.proof.functions.enumeration import enumerate_inputs
from qgraph.proof.functions.expression import Builder, Expr

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


def pair() -> tuple[Expr, Expr]:
    """Return an 8-bit Quant, which clips and rounds, and its Q/DQ form, which rounds and clips."""
    b = Builder()
    s, low, high = np.float32(0.1), np.float32(-128), np.float32(127)
    steps = b.Div(b.input, s)
    clipped = b.Mul(b.Round(b.Min(b.Max(steps, low), high)), s)
    code = b.Cast(b.Min(b.Max(b.Round(steps), low), high), to=onnx.TensorProto.INT8)
    return clipped, b.Mul(b.Cast(code, to=onnx.TensorProto.FLOAT), s)


def pairs() -> dict[str, tuple[Expr, Expr]]:
    """Return pairs of functions of which all inputs are tried."""
    b, s, bias = Builder(), np.float32(0.37), np.float32(0.11)
    x, nothing = b.input, np.float32(0)
    root = b.Mul(x, b.Sqrt(b.Abs(x)))
    return {
        "two quantizers": pair(),
        "a bias and Relu": (
            b.Relu(b.Add(b.Mul(x, s), bias)),
            b.Relu(b.Add(bias, b.Mul(s, x))),
        ),
        "a product and a quotient": (b.Mul(x, np.float32(0.1)), b.Div(x, np.float32(10))),
        "square roots": (b.Where(b.Less(x, nothing), b.Neg(root), root), b.Abs(root)),
    }


def by_numpy(share: int) -> float:
    """Return the seconds in which one thread of plain NumPy tries all inputs of the same pair.

    One block of ``share`` is tried, spread over all magnitudes, and the time is scaled.
    """
    s, low, high = np.float32(0.1), np.float32(-128), np.float32(127)
    starts = range(0, 1 << 32, CHUNK * share)
    begin = time.process_time()
    with np.errstate(all="ignore"):
        for start in starts:
            x = np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)
            q = np.divide(x, s)
            y = np.rint(np.minimum(np.maximum(q, low), high)) * s
            code = np.minimum(np.maximum(np.rint(q), low), high)
            z = np.nan_to_num(code).astype(np.int8).astype(np.float32) * s
            np.count_nonzero((y != z) & ~np.isnan(x))
    return (time.process_time() - begin) * (1 << 32) / (len(starts) * CHUNK)


def seconds(task: Callable[[], object]) -> float:
    """Return the wall time of a task."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def load_and_run(paths: Iterable[Path]) -> None:
    """Read models and run each on one sample, which says less than a proof."""
    for path in paths:
        onnx.load(path)
        model = qgraph.load(path)
        (value,) = model.inputs
        sizes = [size if isinstance(size, int) else 1 for size in value.shape or ()]
        sample = np.random.default_rng(0).normal(0, 1, sizes).astype(np.float32)
        model.run({str(value.name): sample})


def main() -> None:
    """Print medians and extremes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--exhaustive", action="store_true", help="also try 2**32 inputs")
    parser.add_argument("--share", type=int, default=64, help="NumPy tries one input of so many")
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
            least = [
                seconds(lambda: load_and_run((before, after)))  # noqa: B023 - called at once
                for _ in range(options.runs)
            ]
            print(
                f"{name:13} {found.verdict}, {len(found.regions)} regions: median "
                f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f}), "
                f"{statistics.median(times) / statistics.median(least):.1f} times loading and "
                f"running both ({statistics.median(least):.2f} s)"
            )
    if options.exhaustive:
        print(f"two quantizers, plain NumPy on one core: {by_numpy(options.share):.1f} s, scaled")
        with_numba = blocks.find_numba() is not None
        for name, functions in pairs().items():
            for numba in (False, True)[: 1 + with_numba]:
                find = blocks.find_numba if numba else lambda: None
                with patch.object(blocks, "find_numba", find):
                    wall, spent = time.perf_counter(), time.process_time()
                    found = enumerate_inputs(*functions)
                    wall, spent = time.perf_counter() - wall, time.process_time() - spent
                print(
                    f"{name}, {'numba' if numba else 'NumPy'}: {wall:.1f} s, {spent:.1f} s of "
                    f"processor time; {found.differing} inputs differ",
                    flush=True,
                )


if __name__ == "__main__":
    main()

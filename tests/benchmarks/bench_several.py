"""Convert, fold, deploy and describe many small models: one process, beside a process for each.

Every model is a linear layer with two quantizers; scales and weights of all models differ.
Processor time of whole processes and their children, imports included.

    python tests/benchmarks/bench_several.py [--models 1000] [--apart 10] [--jobs 2]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

COMMANDS = {
    "convert": ["--to", "qdq"],
    "fold": [],
    "info": [],
    "deploy": ["--target", "onnxruntime-cpu"],
}

TEXT = """
    <ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 2]>
    net (float[N,64] x) => (float[N,10] y)
    <float[64,10] w = {{{zeros}}}, float s = {{{scale}}}, float z = {{0}}, float b = {{4}}> {{
        [act] a = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
        [weight] q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 1, rounding_mode = "ROUND"> (w, s, z, b)
        y = MatMul (a, q)
    }}"""


def make_models(folder: Path, count: int, seed: int = 0) -> None:
    """Write ``count`` models."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        scale = float(np.float32(rng.uniform(0.01, 1)))
        model = ir.from_onnx_text(TEXT.format(scale=scale, zeros=", ".join(640 * "0")))
        weight = rng.standard_normal((64, 10)).astype(np.float32)
        model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
        ir.save(model, folder / f"m{number}.onnx")


def cpu_seconds(*arguments: object) -> float:
    """Return the processor time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "qgraph", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench(name: str, models: Path, apart: int, jobs: int, out: Path) -> None:
    """Time one command and print milliseconds for each model."""
    files = sorted(models.iterdir())

    def place(option: str, value: Path) -> Sequence[object]:
        return () if name == "info" else (option, value)

    each = sum(
        cpu_seconds(name, file, *place("-o", out / file.name), *COMMANDS[name])
        for file in files[:apart]
    )
    together = [
        cpu_seconds(
            name, models, *place("--output-dir", out / f"{name}{n}"), *COMMANDS[name], "--jobs", n
        )
        for n in (1, jobs)
    ]
    print(
        f"{name}: {1e3 * each / apart:.0f} ms in a process each, "
        f"{1e3 * together[0] / len(files):.0f} ms in one process, "
        f"{1e3 * together[1] / len(files):.0f} ms in {jobs}",
        flush=True,
    )


def main() -> None:
    """Time every command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--apart", type=int, default=10, help="models that get a process each")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models, out = Path(scratch, "models"), Path(scratch, "out")
        models.mkdir()
        out.mkdir()
        make_models(models, options.models)
        for name in options.commands:
            bench(name, models, options.apart, options.jobs, out)


if __name__ == "__main__":
    main()

"""Time what qgraph does with the weights of a big model, each in a process of its own.

Packed weights of MatMulNBits are lowered, proved and copied; float weights are described, compared,
quantized with a search for scales, and folded. Processor time and peak memory are those of whole
processes, start included; the last column is processor time for each GB of weights that are read.
Copying is the floor: it reads, writes, reads back, and computes the checksums.

    python tests/benchmarks/bench_stored.py [--gigabytes 1] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_quantize_weights import run

TOOL = "import sys; from qgraph.cli.main import main; sys.argv[0] = 'qgraph'; main()"
HERE = Path(__file__).parent


def make(script: str, *arguments: object) -> None:
    """Write a model in a process of its own: its memory would count as that of the commands."""
    subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def show(what: str, size: float, *arguments: object) -> None:
    """Run a command and print its cost."""
    cost = run(TOOL, *map(str, arguments), "--quiet")
    print(
        f"{what:28} {size:6.2f} {cost.processor:7.2f} {cost.resident / 1e6:6.0f} "
        f"{cost.processor / size:9.2f}",
        flush=True,
    )


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--gigabytes", type=float, default=1, help="of packed, and of float weights"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    print(f"{'':28} {'GB':>6} {'cpu s':>7} {'MB':>6} {'cpu s/GB':>9}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        source, out = folder / "source.onnx", folder / "out.onnx"
        size = given.gigabytes
        make("make_packed.py", source, "--gigabytes", size)
        show("copy (fold, nothing to do)", size, "fold", source, "-o", folder / "copy.onnx")
        show("lower", size, "transform", source, "-o", out, "-p", "lower-mat-mul-n-bits")
        show("prove", size, "prove", source, out)
        for path in folder.iterdir():
            path.unlink()
        for kind, opset in (("quant4", 21), ("quant4block", 21), ("mxfp4", 24), ("nvfp4", 24)):
            make("make_decoder.py", source, "--gigabytes", size, "--quantizer", kind)
            show(f"fold {kind}", size, "fold", source, "-o", out, "--opset", opset)
            for path in folder.glob("out.onnx*"):
                path.unlink()
            if kind == "quant4":
                shutil.copy(source, folder / "other.onnx")
                show("lock", size, "lock", source, "-o", folder / "lock")
                show("diff", 2 * size, "diff", source, folder / "other.onnx")
        make("make_decoder.py", source, "--gigabytes", size, "--quantizer", "float")
        for search in ("minmax", "mse"):
            spec = f"quantize-weights{{format=int4,scale={search},opset=25}}"
            show(f"quantize {search}", size, "transform", source, "-o", out, "-p", spec)


if __name__ == "__main__":
    main()

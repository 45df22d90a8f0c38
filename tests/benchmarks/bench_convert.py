"""Time ``qgraph convert`` against ``qonnx-convert``: whole processes, start-up included.

Both rewrite the same MobileNet (``make_mobilenet.py``) from Quant to QuantizeLinear and
DequantizeLinear. The two commands alternate, so that a change of the machine's load meets both.

    python tests/benchmarks/bench_convert.py --qonnx-python /path/to/environment/bin
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx_ir as ir
from make_mobilenet import make_mobilenet


def seconds(command: list[str]) -> float:
    """Run a command to its end and return the wall time."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return spent


def show(name: str, times: list[float]) -> None:
    """Print median and extremes."""
    spread = f"{min(times):.3f} to {max(times):.3f}"
    print(f"{name:16} median {statistics.median(times):.3f} s  ({spread}, {len(times)} runs)")


def main() -> None:
    """Convert alternately, print medians and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--qonnx-python", type=Path, help="bin folder that holds qonnx-convert")
    parser.add_argument("--model", type=Path, help="instead of the generated MobileNet")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = options.model or folder / "mobilenet.onnx"
        if options.model is None:
            ir.save(make_mobilenet(), model)
        qgraph = [str(Path(sys.executable).parent / "qgraph"), "convert", str(model)]
        qgraph += ["-o", str(folder / "qgraph.onnx"), "--to", "qdq"]
        commands = {"qgraph convert": qgraph}
        if options.qonnx_python is not None:
            qonnx = [str(options.qonnx_python / "qonnx-convert"), str(model)]
            qonnx += ["--output-style", "qcdq", "--output-file", str(folder / "qonnx.onnx")]
            commands["qonnx-convert"] = qonnx

        for command in commands.values():
            seconds(command)  # fills the file cache and writes the byte code
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.pairs):
            for name, command in commands.items():
                times[name].append(seconds(command))

    for name, values in times.items():
        show(name, values)
    if len(times) == 2:
        ours, theirs = times.values()
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        print(f"ratio            median {statistics.median(ratios):.2f} of {len(ratios)} pairs")


if __name__ == "__main__":
    main()

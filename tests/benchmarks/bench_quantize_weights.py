"""Time quantize-weights on a model with external data against ONNX Runtime's own quantizer.

Both make INT4 codes with a scale for each block of 32 weights, and DequantizeLinear. Each run is a
process of its own, from start to the written file, in turn; wall time, processor time and peak of
resident memory are those of the whole process. The floor is a process that reads the weights in
pieces and writes as many bytes as the result has.

    python tests/benchmarks/bench_quantize_weights.py [--gigabytes 1] [--rounds 3] [--format int4]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import make_decoder

OURS = """
import sys
from qgraph.transforms import parse_spec, rewrite
rewrite(sys.argv[1], sys.argv[2], parse_spec(sys.argv[3]))
"""

FLOOR = """
import os, sys
import numpy as np
buffer = np.empty(1 << 20, np.uint8)
with open(sys.argv[1] + ".data", "rb") as source, open(sys.argv[2], "wb") as target:
    while source.readinto(buffer):
        target.write(buffer[: len(buffer) * 5 // 32])
"""

PEER = """
import logging, sys
import onnx
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization import matmul_nbits_quantizer as peer
logging.disable(logging.INFO)
config = peer.DefaultWeightOnlyQuantConfig(
    block_size=32, is_symmetric=True, quant_format=QuantFormat.QDQ
)
quantizer = peer.MatMulNBitsQuantizer(onnx.load(sys.argv[1]), algo_config=config)
quantizer.process()
quantizer.model.save_model_to_file(sys.argv[2], True)
"""


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds, seconds of processors, bytes of resident memory."""

    wall: float
    processor: float
    resident: int


def run(code: str, *arguments: str) -> Cost:
    """Run Python code in a process of its own."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"a process failed: {code.split()[1]} ...")
    wall = time.perf_counter() - start
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def main() -> None:
    """Print the medians of all rounds, and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", default="int4")
    parser.add_argument("--without-peer", action="store_true")
    options = parser.parse_args()
    spec = f"quantize-weights{{format={options.format},opset=25}}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source.onnx"
        size = make_decoder.make(source, options.gigabytes, "float")
        runs = {"floor": (FLOOR, str(folder / "floor")), "qgraph": (OURS, "", spec)}
        if not options.without_peer:
            runs["onnxruntime"] = (PEER, "")
        found: dict[str, list[Cost]] = {program: [] for program in runs}
        for _ in range(options.rounds):
            for program, (code, target, *more) in runs.items():
                out = Path(name, program)
                out.mkdir(exist_ok=True) if not target else None
                where = target or str(out / "out.onnx")
                found[program].append(run(code, str(source), where, *more))
        print(f"{size / 1e9:.2f} GB of float32, {options.format}")
        print(f"{'':12} {'wall s':>7} {'GB/s':>6} {'cpu s':>7} {'MB':>6}")
        for program, costs in found.items():
            wall = statistics.median(cost.wall for cost in costs)
            cpu = statistics.median(cost.processor for cost in costs)
            peak = max(cost.resident for cost in costs) / 1e6
            print(f"{program:12} {wall:7.2f} {size / wall / 1e9:6.2f} {cpu:7.2f} {peak:6.0f}")
        if "onnxruntime" in found:
            pairs = list(zip(found["onnxruntime"], found["qgraph"], strict=True))
            wall = statistics.median(peer.wall / ours.wall for peer, ours in pairs)
            memory = statistics.median(peer.resident / ours.resident for peer, ours in pairs)
            print(f"onnxruntime / qgraph: time {wall:.1f}, memory {memory:.1f}")


if __name__ == "__main__":
    main()

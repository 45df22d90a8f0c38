"""Measure fold-weights on a big model: seconds, bytes per second, and memory of the whole process.

    python tests/benchmarks/bench_fold.py --gigabytes 4 [--quantizer quant4 mxfp4]

The floor is measured in the same run, right after: the same bytes read and written by as many
threads, without any computation. Needs 1.2 times the size of the model in ``--folder``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from make_decoder import make

OPSETS = {"quant4": 21, "quant4block": 21, "mxfp4": 24, "nvfp4": 24}

FOLD = """
import json, resource, sys, time
start = time.perf_counter()
import qgraph
from qgraph.transforms import FoldWeights
imported = time.perf_counter()
model = qgraph.load(sys.argv[1])
report = model.apply(FoldWeights(opset=int(sys.argv[3])))
planned = time.perf_counter()
model.save(sys.argv[2])
saved = time.perf_counter()
stored = report.stored()
assert stored["elements"] == stored["unchanged"] > 0
print(json.dumps({
    "import": imported - start, "plan": planned - imported, "save": saved - planned,
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, **stored}))
"""


def fold(source: Path, out: Path, opset: int) -> dict[str, float]:
    """Return what a process of its own tells about folding."""
    command = [sys.executable, "-c", FOLD, str(source), str(out), str(opset)]
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return found


def floor(source: Path, out: Path, written: int, piece: int = 1 << 20) -> float:
    """Return the seconds in which two threads read a file and write ``written`` bytes."""
    size = source.stat().st_size
    reading = os.open(source, os.O_RDONLY)
    writing = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.truncate(out, written)
    share = written / size

    def work(start: int) -> None:
        buffer, end = np.empty(piece, np.uint8), min(start + (64 << 20), size)
        for at in range(start, end, piece):
            count = os.preadv(reading, [memoryview(buffer)[: end - at]], at)
            place = int(at * share)
            os.pwrite(writing, memoryview(buffer)[: int((at + count) * share) - place], place)

    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(0, size, 64 << 20)))
    seconds = time.perf_counter() - began
    os.close(reading)
    os.close(writing)
    out.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--quantizer", nargs="+", choices=OPSETS, default=["quant4", "mxfp4"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print("quantizer    GB   save s   GB/s  floor GB/s  share  plan s  peak MB  packed GB")
    for kind in given.quantizer:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            source, out = Path(name, "in.onnx"), Path(name, "out.onnx")
            size = make(source, given.gigabytes, kind)
            data = source.with_name("in.onnx.data")
            for _ in range(given.runs):
                found = fold(source, out, OPSETS[kind])
                written = sum(path.stat().st_size for path in Path(name).glob("out.onnx*"))
                for path in Path(name).glob("out.onnx*"):
                    path.unlink()
                least = floor(data, Path(name, "floor"), written)
                speed, limit = size / found["save"] / 1e9, size / least / 1e9
                print(
                    f"{kind:11} {size / 1e9:4.1f} {found['save']:8.2f} {speed:6.2f} {limit:11.2f} "
                    f"{speed / limit:6.0%} {found['plan']:7.2f} {found['rss'] / 1e6:8.0f} "
                    f"{written / 1e9:10.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

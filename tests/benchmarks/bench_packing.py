"""Time packing, unpacking, rounding and decoding of narrow types on one core.

GB of float32 data per second: 4 bytes for each code. The cast of ml_dtypes, where there is one, is
timed in turn; the figures are medians of the rounds, the ratio is the median of theirs.

    python tests/benchmarks/bench_packing.py [--rounds 9] [--megabytes 64]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from qgraph.numerics.formats import pack, unpack
from qgraph.numerics.minifloat import DTYPES, MINIFLOATS, decode, encode

Call = Callable[[], Any]


def seconds(call: Call) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def report(name: str, size: int, rounds: int, call: Call, other: Call | None = None) -> None:
    """Print a line: GB/s of ``call``, and of ``other`` with the ratio."""
    calls = [call] if other is None else [call, other]
    for each in calls:
        each()
    times = [[seconds(each) for each in calls] for _ in range(rounds)]
    line = f"{name:28} {size / statistics.median(row[0] for row in times) / 1e9:7.2f}"
    if other is not None:
        rate = size / statistics.median(row[1] for row in times) / 1e9
        line += f" {rate:9.2f} {statistics.median(row[1] / row[0] for row in times):6.1f}"
    print(line)


def main() -> None:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=64, help="of float32 data")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    random = np.random.default_rng(0)
    count = options.megabytes << 18
    x = random.standard_normal(count, np.float32) * np.float32(2)
    print(f"{'':28} {'GB/s':>7} {'ml_dtypes':>9} {'ratio':>6}")
    for bits in (2, 4, 6):
        codes = random.integers(0, 1 << bits, count).astype(np.uint8)
        data = pack(codes, bits)
        report(f"pack, {bits} bits", x.nbytes, options.rounds, lambda: pack(codes, bits))  # noqa: B023
        report(
            f"unpack, {bits} bits",
            x.nbytes,
            options.rounds,
            lambda: unpack(data, bits, count),  # noqa: B023
        )
    for name in MINIFLOATS:
        found = encode(x, name)
        dtype = DTYPES[name]
        report(
            f"round to {name}",
            x.nbytes,
            options.rounds,
            lambda: encode(x, name),  # noqa: B023
            lambda: x.astype(dtype),  # noqa: B023
        )
        report(
            f"decode {name}",
            x.nbytes,
            options.rounds,
            lambda: decode(found),  # noqa: B023
            lambda: found.astype(np.float32),  # noqa: B023
        )


if __name__ == "__main__":
    main()

"""Time the quantizer kernels against the same operations, one whole-tensor ufunc at a time.

The rounds alternate between the two, and the ratio is the median of those of the rounds. Big
tensors: GB of float32 data per second, on one core and on all. Small tensors: microseconds a call,
also with half of the data beyond the range, as the processor does not learn which.

    python tests/benchmarks/bench_kernels.py [--rounds 15] [--megabytes 64]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.fake_quantize import fake_quantize
from qgraph.ops.definitions.float_quant import float_quant
from qgraph.ops.definitions.quant import bipolar_quant, quant

Array = npt.NDArray[Any]
Call = Callable[[], Array]
Pair = tuple[Call, Call]
"""Our kernel, and the plain spelling."""

F = np.float32
LEVELS = 256


def plain_quant(x: Array, s: Array, z: Array, b: Array) -> Array:
    """Return Quant, signed, as its formula reads."""
    lo, hi = -np.exp2(b - F(1)), np.exp2(b - F(1)) - F(1)
    y = np.minimum(np.maximum(x / s + z, lo), hi)
    return (np.rint(y) - z) * s


def plain_bipolar(x: Array, s: Array) -> Array:
    """Return BipolarQuant."""
    return np.where(x >= 0, F(1), F(-1)) * s


def plain_fake_quantize(x: Array, il: Array, ih: Array, ol: Array, oh: Array) -> Array:
    """Return FakeQuantize of 256 levels."""
    steps = F(LEVELS - 1)
    q = np.rint((x - il) / (ih - il) * steps)
    y = q / steps * (oh - ol) + ol
    return np.where(x <= np.minimum(il, ih), ol, np.where(x > np.maximum(il, ih), oh, y))


def plain_float_quant(x: Array, s: Array, e: Array, m: Array, bias: Array, top: Array) -> Array:
    """Return FloatQuant with the float logarithm of its page, which is not exact everywhere."""
    v = x / s
    k = np.floor(np.log2(np.abs(v) + F(2.0**-126))) - m
    step = np.exp2(np.maximum(k, F(1) - bias - m))
    limit = np.minimum((F(2) - np.exp2(-m)) * np.exp2(np.exp2(e) - F(1) - bias), top)
    return np.clip(np.rint(v / step) * step, -limit, limit) * s


def pairs(x: Array) -> dict[str, Pair]:
    """Return what is compared, per tensor and with one parameter for each row of ``x``."""
    scalar = lambda *numbers: [np.asarray(number, F) for number in numbers]  # noqa: E731
    s, z, b = scalar(0.02, 0, 8)
    rows = np.random.default_rng(1).uniform(0.5, 3, (len(x), 1)).astype(F)
    signed: dict[str, Any] = {"signed": True, "narrow": False, "rounding_mode": Rounding.ROUND}
    e4m3 = scalar(4, 3, 7, 448)
    overflow: dict[str, Any] = {"has_inf": False, "has_nan": False, "has_subnormal": True}
    overflow |= {"saturation": True, "rounding_mode": Rounding.ROUND}
    levels: dict[str, Any] = {"levels": LEVELS, "auto_broadcast": "numpy"}
    even, odd = (-rows, rows, -rows, rows), (-rows, rows * F(1.1), -rows, rows * F(1.1))
    steps = rows / F(100)
    return {
        "Quant, 8 bits": (lambda: quant(x, s, z, b, **signed), lambda: plain_quant(x, s, z, b)),
        "Quant, 8 bits, per channel": (
            lambda: quant(x, steps, z, b, **signed),
            lambda: plain_quant(x, steps, z, b),
        ),
        "BipolarQuant": (lambda: bipolar_quant(x, s), lambda: plain_bipolar(x, s)),
        "FakeQuantize, symmetric, per channel": (
            lambda: fake_quantize(x, *even, **levels),
            lambda: plain_fake_quantize(x, *even),
        ),
        "FakeQuantize, per channel": (
            lambda: fake_quantize(x, *odd, **levels),
            lambda: plain_fake_quantize(x, *odd),
        ),
        "FloatQuant, E4M3": (
            lambda: float_quant(x, s, *e4m3, **overflow),
            lambda: plain_float_quant(x, s, *e4m3),
        ),
        "FloatQuant, E4M3, per channel": (
            lambda: float_quant(x, rows, *e4m3, **overflow),
            lambda: plain_float_quant(x, rows, *e4m3),
        ),
    }


def seconds(call: Call, repeats: int) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def compare(pair: Pair, rounds: int, repeats: int) -> tuple[float, float, float]:
    """Return the medians of our time, of the plain time, and of plain by ours."""
    for call in pair:
        call()
    times = [[seconds(call, repeats) for call in pair] for _ in range(rounds)]
    ours, plain = zip(*times, strict=True)
    ratio = statistics.median(b / a for a, b in times)
    return statistics.median(ours), statistics.median(plain), ratio


def big(megabytes: int, rounds: int) -> None:
    """Print GB/s on one core and on all."""
    columns = 1 << 12
    x = np.random.default_rng(0).standard_normal((megabytes << 18) // columns * columns, F)
    x = x.reshape(-1, columns)
    cores = os.sched_getaffinity(0)
    for chosen in ({min(cores)}, cores) if len(cores) > 1 else (cores,):
        os.sched_setaffinity(0, chosen)
        print(f"\n{x.nbytes / 2**20:.0f} MiB of float32, {len(chosen)} core(s)")
        print(f"{'':38} {'GB/s':>6} {'plain':>6} {'ratio':>6}")
        for name, pair in pairs(x).items():
            ours, plain, ratio = compare(pair, rounds, 1)
            print(
                f"{name:38} {x.nbytes / ours / 1e9:6.2f} {x.nbytes / plain / 1e9:6.2f} {ratio:6.2f}"
            )
    os.sched_setaffinity(0, cores)


def small(shape: tuple[int, int], rounds: int) -> None:
    """Print microseconds a call."""
    x = np.random.default_rng(0).standard_normal(shape, F)
    print(f"\n{shape[0]} x {shape[1]} elements")
    print(f"{'':38} {'us':>6} {'plain':>6} {'ratio':>6}")
    with np.errstate(all="ignore"):
        for name, pair in pairs(x).items():
            ours, plain, ratio = compare(pair, rounds, 100)
            print(f"{name:38} {ours * 1e6:6.1f} {plain * 1e6:6.1f} {ratio:6.2f}")


def main() -> None:
    """Print the figures of all kernels, big tensors first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    big(options.megabytes, options.rounds)
    for shape in ((1, 64), (32, 64), (64, 784)):
        small(shape, options.rounds)


if __name__ == "__main__":
    main()

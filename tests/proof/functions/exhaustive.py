"""Compares pairs of functions on all finite float32 inputs, one by one, and with the engine.

The functions are written twice: as expressions for the engine, and in plain NumPy for the
enumeration. Run as a script, it checks every pair and says how long each way took (about half a
minute each).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qgraph.numerics import minifloat
from qgraph.proof.functions.decide import decide
from qgraph.proof.functions.expression import Builder, Expr

Float32 = npt.NDArray[np.float32]
Function = Callable[[Float32], Float32]

CHUNK = 1 << 16
FINITE = 0x7F800000
F = np.float32


@dataclass(frozen=True)
class Case:
    """Two functions; ``differing`` and ``zero_sign`` are known of them, or None.

    They were published, or found by this script's enumeration.
    """

    expressions: Callable[[Builder], tuple[Expr, Expr]]
    reference: Function
    candidate: Function
    differing: int | None = None
    zero_sign: int | None = None


def enumerate_all(case: Case) -> tuple[int, int]:
    """Count the finite inputs that differ in value, and those that differ in the sign of zero."""
    differing = zero_sign = 0
    with np.errstate(all="ignore"):
        for sign in (0, 1 << 31):
            for start in range(sign, sign + FINITE, CHUNK):
                x = np.arange(start, start + CHUNK, dtype=np.int64).astype(np.uint32)
                a, b = (f(x.view(np.float32)) for f in (case.reference, case.candidate))
                if a.tobytes() == b.tobytes():
                    continue
                unequal = ~((a == b) | (np.isnan(a) & np.isnan(b)))
                differing += int(np.count_nonzero(unequal))
                signs = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
                zero_sign += int(np.count_nonzero(signs))
    return differing, zero_sign


def prove(case: Case) -> tuple[int, int]:
    """Count the same with the engine."""
    finding = decide(*case.expressions(Builder()))
    if finding.undecided is not None:
        raise ValueError(finding.undecided)
    return finding.differing, finding.zero_sign


def _pair(scale: float, zero_point: float, lo: float, hi: float, to: str) -> Case:
    s, z = F(scale), F(zero_point)

    def expressions(b: Builder) -> tuple[Expr, Expr]:
        y = b.Round(b.Min(b.Max(b.Add(b.Div(b.input, s), z), lo), hi))
        q = b.Min(b.Max(b.Round(b.Div(b.input, s)), F(lo) - z), F(hi) - z)
        q = b.Cast(b.Cast(b.Add(q, z), to=to), to="FLOAT")
        return b.Mul(b.Sub(y, z), s), b.Mul(b.Sub(q, z), s)

    def quant(x: Float32) -> Float32:
        return (np.rint(np.clip(x / s + z, F(lo), F(hi))) - z) * s

    def qdq(x: Float32) -> Float32:
        codes = np.clip(np.rint(x / s), F(lo) - z, F(hi) - z).astype(np.int32) + int(z)
        return (codes - int(z)).astype(np.float32) * s

    return Case(expressions, quant, qdq)


def _published(case: Case, differing: int, zero_sign: int | None = None) -> Case:
    return Case(case.expressions, case.reference, case.candidate, differing, zero_sign)


def _gates() -> Case:
    """HardSwish written with a division, and with a multiplication, before 8-bit codes."""
    s = F(0.0371)

    def expressions(b: Builder) -> tuple[Expr, Expr]:
        x = b.input
        one = b.Div(b.Mul(x, b.Min(b.Max(b.Add(x, 3.0), 0.0), 6.0)), 6.0)
        gate = b.Min(b.Max(b.Add(b.Mul(x, F(1 / 6)), 0.5), 0.0), 1.0)
        other = b.Mul(x, gate)
        codes = [b.Round(b.Min(b.Max(b.Div(y, s), -128.0), 127.0)) for y in (one, other)]
        return codes[0], codes[1]

    def codes(y: Float32) -> Float32:
        return np.rint(np.clip(y / s, F(-128), F(127)))

    return Case(
        expressions,
        lambda x: codes(x * np.clip(x + F(3), F(0), F(6)) / F(6)),
        lambda x: codes(x * np.clip(x * F(1 / 6) + F(0.5), F(0), F(1))),
    )


def _away() -> Case:
    """Rounding half away from zero with |x| + 0.5, which is one too high below a half."""
    s = F(0.3)

    def expressions(b: Builder) -> tuple[Expr, Expr]:
        y = b.Min(b.Max(b.Div(b.input, s), -8.0), 7.0)
        away = b.Mul(b.Sign(y), b.Floor(b.Add(b.Abs(y), 0.5)))
        return b.Mul(b.Round(y), s), b.Mul(away, s)

    def steps(x: Float32) -> Float32:
        return np.clip(x / s, F(-8), F(7))

    return Case(
        expressions,
        lambda x: np.rint(steps(x)) * s,
        lambda x: np.sign(steps(x)) * np.floor(np.abs(steps(x)) + F(0.5)) * s,
    )


def _step(x: Float32) -> Float32:
    """Return the distance of the E4M3 numbers around ``x``, a power of two, from its exponent."""
    exponent = np.maximum(x.view(np.int32) >> 23 & 255, 127 - 6)
    return (exponent - 3 << 23).view(F)


def _float8() -> Case:
    """FloatQuant E4M3 rounding down, by an exact power of two, and the cast to the nearest."""

    def expressions(b: Builder) -> tuple[Expr, Expr]:
        power = b.Cast(b.Cast(b.Abs(b.input), to="FLOAT8E8M0", round_mode="down"), to="FLOAT")
        step = b.Mul(b.Max(power, 2.0**-6), 2.0**-3)
        floor = b.Mul(b.Floor(b.Div(b.input, step)), step)
        nearest = b.Cast(b.Cast(b.input, to="FLOAT8E4M3FN"), to="FLOAT")
        return b.Min(b.Max(floor, -448.0), 448.0), nearest

    def down(x: Float32) -> Float32:
        step = _step(x)
        return np.clip(np.floor(x / step) * step, F(-448), F(448))

    def nearest(x: Float32) -> Float32:
        bounded = np.clip(x, F(-448), F(448))
        return bounded.astype(minifloat.DTYPES["FLOAT8E4M3FN"]).astype(np.float32)

    return Case(expressions, down, nearest)


def _overflow() -> Case:
    """A cast that makes NaN of what is too large, and arithmetic that does so a step later."""

    def expressions(b: Builder) -> tuple[Expr, Expr]:
        power = b.Cast(b.Cast(b.Abs(b.input), to="FLOAT8E8M0", round_mode="down"), to="FLOAT")
        step = b.Mul(b.Max(power, 2.0**-6), 2.0**-3)
        rounded = b.Mul(b.Round(b.Div(b.input, step)), step)
        late = b.Where(b.Greater(b.Abs(rounded), 480.0), np.nan, rounded)
        return b.Cast(b.Cast(b.input, to="FLOAT8E4M3FN", saturate=0), to="FLOAT"), late

    def cast(x: Float32) -> Float32:
        return x.astype(minifloat.DTYPES["FLOAT8E4M3FN"]).astype(np.float32)

    def late(x: Float32) -> Float32:
        step = _step(x)
        rounded = np.rint(x / step) * step
        return np.where(np.abs(rounded) > F(480), F(np.nan), rounded)

    # Between 464, the last that is rounded to 448, and 496, the first that is rounded to 512.
    return Case(expressions, cast, late, differing=2 * (((496 - 464) << 15) - 1), zero_sign=0)


CASES = {
    "signed pair": _published(_pair(0.1, 0, -128, 127, "INT8"), 0, 1_028_443_341),
    "unsigned pair, zero point 127": _published(_pair(0.25, 127, 0, 255, "UINT8"), 1150),
    "unsigned pair, zero point 128": _published(_pair(0.1, 128, 0, 255, "UINT8"), 912),
    "hardswish in two ways": _published(_gates(), 43, 0),
    "half to even and half away": _published(_away(), 10, 1),
    "float8 down and to nearest": _published(_float8(), 1_138_753_410, 0),
    "float8 with overflow to NaN": _overflow(),
}


def main() -> int:
    """Check all cases; return how many fail."""
    failures = 0
    for name, case in CASES.items():
        start = time.perf_counter()
        proved = prove(case)
        middle = time.perf_counter()
        counted = enumerate_all(case)
        end = time.perf_counter()
        failures += proved != counted
        sys.stdout.write(
            f"{'agrees' if proved == counted else 'DISAGREES':9} {name}: differing and zero sign "
            f"{proved}, enumerated {counted}; {1e3 * (middle - start):.1f} ms, "
            f"{end - middle:.1f} s\n"
        )
    return failures


if __name__ == "__main__":
    sys.exit(main())

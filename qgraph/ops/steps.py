"""Steps that several definitions share, written over primitives."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from qgraph.numerics.rounding import Rounding


def round_to_integer(op: Any, y: Any, mode: Rounding) -> Any:
    """Round to whole numbers; the zero signs are those of the operations written."""
    match Rounding.parse(mode):
        case Rounding.ROUND:
            return op.Round(y)
        case Rounding.CEIL:
            return op.Ceil(y)
        case Rounding.FLOOR:
            return op.Floor(y)
        case Rounding.UP:
            return op.Mul(op.Sign(y), op.Ceil(op.Abs(y)))
        case Rounding.DOWN:
            # In this order: ONNX Runtime's Where makes +0 of a -0 in its first branch.
            return op.Where(op.Greater(y, 0.0), op.Floor(y), op.Ceil(y))
        case Rounding.HALF_UP:
            return op.Mul(op.Sign(y), op.Floor(op.Add(op.Abs(y), 0.5)))
        case Rounding.HALF_DOWN:
            return op.Mul(op.Sign(y), op.Ceil(op.Sub(op.Abs(y), 0.5)))


def clamp(op: Any, y: Any, lo: Any, hi: Any) -> Any:
    """Return ``min(max(y, lo), hi)``; NaN passes."""
    return op.Min(op.Max(y, lo), hi)


def clamp_by_comparison(op: Any, y: Any, lo: Any, hi: Any) -> Any:
    """Clamp so that a zero keeps its sign, of which Min and Max say nothing at a bound of zero."""
    y = op.Where(op.Greater(y, hi), hi, y)
    return op.Where(op.Less(y, lo), lo, y)


def code_range(op: Any, bits: Any, *, signed: bool, narrow: bool) -> tuple[Any, Any]:
    """Return the smallest and largest code of ``bits`` bits, each rounded once to float32."""
    if signed:
        half = op.Pow(2.0, op.Sub(bits, 1.0))
        return op.Sub(float(narrow), half), op.Sub(half, 1.0)
    return 0.0, op.Sub(op.Pow(2.0, bits), 2.0 if narrow else 1.0)


def floor_power_of_two(op: Any, v: Any) -> Any:
    """Return ``2 ** floor(log2(v))`` of a positive ``v``, exactly, within 2**-127 .. 2**127.

    A float32 logarithm is one too large just below powers of two; a cast to E8M0 is not.
    """
    power = op.Cast(v, to=ir.DataType.FLOAT8E8M0, round_mode="down")
    return op.Cast(power, to=ir.DataType.FLOAT)

"""Fixtures of the proof tests: quantizers written over any object of primitives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


def quant_codes(op: Any, x: Any, s: Any, z: Any, lo: float, hi: float) -> Any:
    y = op.Add(op.Div(x, s), z)
    return op.Round(op.Min(op.Max(y, lo), hi))


def quant(op: Any, x: Any, s: Any, z: Any, lo: float, hi: float) -> Any:
    """QONNX Quant, rounding mode ROUND."""
    return op.Mul(op.Sub(quant_codes(op, x, s, z, lo, hi), z), s)


def linear_codes(op: Any, x: Any, s: Any, z: Any, lo: float, hi: float) -> Any:
    """QuantizeLinear: saturate(round(x / s) + z), the clamp before the addition."""
    low, high = np.float32(lo) - np.float32(z), np.float32(hi) - np.float32(z)
    q = op.Min(op.Max(op.Round(op.Div(x, s)), low), high)
    return op.Add(q, z)


def qdq(op: Any, x: Any, s: Any, z: Any, lo: float, hi: float, to: str) -> Any:
    """QuantizeLinear to the type ``to``, then DequantizeLinear."""
    q = op.Cast(linear_codes(op, x, s, z, lo, hi), to=to)
    return op.Mul(op.Sub(op.Cast(q, to="FLOAT"), z), s)


def fake_quantize_codes(op: Any, x: Any, low: Any, high: Any, levels: int) -> Any:
    """The code of FakeQuantize, in the order of operations of its document."""
    steps = np.float32(levels - 1)
    q = op.Round(op.Mul(op.Div(op.Sub(x, low), op.Sub(high, low)), steps))
    return op.Where(op.LessOrEqual(x, low), 0.0, op.Where(op.Greater(x, high), steps, q))


@pytest.fixture(scope="session")
def cones() -> SimpleNamespace:
    return SimpleNamespace(
        quant=quant,
        quant_codes=quant_codes,
        linear_codes=linear_codes,
        qdq=qdq,
        fake_quantize_codes=fake_quantize_codes,
    )

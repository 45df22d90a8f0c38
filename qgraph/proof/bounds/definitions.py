"""Quantizers that compare the data with the ends of their range, written without comparisons.

What they compute is the same: a comparison chooses the first or the last code, as a clip of codes
does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.tracer import Event, Operand, Pending, QuantityTracer
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import NO_BOUND

Of = Callable[[ir.Value], Operand]


def _fake_quantize(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """``q = round((x - il) / (ih - il) * (L - 1))``, clipped to 0 .. L - 1."""
    x, low, high, bottom, top = _operands(node, tracer, of)
    if low.value is None or high.value is None or not (low.value < high.value).all():
        raise Undecidable(NO_BOUND("a FakeQuantize without an input range has no bound"))
    last = float(node.attributes.get_int("levels", 0) - 1)
    share: Any = tracer.Div(tracer.Sub(x, low), tracer.Sub(high, low))
    codes = tracer.Min(tracer.Max(tracer.Round(tracer.Mul(share, last)), 0.0), last)
    step = tracer.Sub(top, bottom)
    return tracer.Add(tracer.Mul(tracer.Div(codes, last), step), bottom)  # type: ignore[no-any-return]


def _bipolar(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """``y = scale if x >= 0 else -scale``."""
    x, scale = _operands(node, tracer, of)[:2]
    if x.value is not None:
        return tracer.Mul(np.where(x.value >= 0, 1.0, -1.0), scale)  # type: ignore[no-any-return]
    codes = Pending(Event("Sign", x, node), -np.ones(()), np.ones(()), np.zeros(()))
    return tracer.Mul(codes, scale)  # type: ignore[no-any-return]


def _operands(node: ir.Node, tracer: QuantityTracer, of: Of) -> list[Quantity]:
    return [tracer.quantity(of(value)) for value in node.inputs if value is not None]


DEFINITIONS: dict[str, Callable[[ir.Node, QuantityTracer, Of], Operand]] = {
    "FakeQuantize": _fake_quantize,
    "BipolarQuant": _bipolar,
}

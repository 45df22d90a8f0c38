"""The operator StepQuant: codes without a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from qgraph.plugin import Attribute, OpSchema, operator

DOMAIN, NAME = "com.example.mychip", "StepQuant"


def _code(value: int) -> int:
    if not -(2**15) <= value < 2**15:
        raise ValueError(f"a limit is {value}, expected 16 bits. Correct the model's exporter")
    return value


SCHEMA = OpSchema(
    name=NAME,
    domains=(DOMAIN,),
    inputs=("x", "step"),
    attributes=(Attribute("low", -128, parse=_code), Attribute("high", 127, parse=_code)),
)


def define(op: Any, x: Any, step: Any, *, low: int, high: int) -> Any:
    """Write the operator in primitives; proofs read this."""
    codes = op.Min(op.Max(op.Round(op.Div(x, step)), float(low)), float(high))
    return op.Mul(codes, step)


@operator(SCHEMA, define=define)
def step_quant(x: Any, step: Any, *, low: int, high: int) -> Any:
    """Round to codes: clip(round_half_even(x / step), low, high) * step, in float32."""
    codes = np.minimum(np.maximum(np.rint(x / step), np.float32(low)), np.float32(high))
    return codes * step

"""Functions of one value in real arithmetic: slope, range and the error of their computation.

How runtimes compute exp and its like is not defined; their results are taken to be within
:data:`FUNCTION_ERROR` of the function, which is a condition of the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import NO_BOUND

FUNCTION_ERROR = 2.0**-20
"""Largest error of an approximated function, absolute and relative."""


@dataclass(frozen=True)
class FunctionRule:
    """A function of one value.

    Attributes:
        slope: the largest magnitude of its slope.
        ends: returns bounds of its values between two arguments.
        roundings: number of its operations, if each is rounded once; None if it is approximated.
    """

    slope: Callable[[ir.Node], float]
    ends: Callable[[ir.Node, Float64, Float64], tuple[Float64, Float64]]
    roundings: int | None = None


def _rising(function: Callable[[Float64], Float64]) -> Callable[..., tuple[Float64, Float64]]:
    def ends(_: ir.Node, low: Float64, high: Float64) -> tuple[Float64, Float64]:
        # two neighbours wider, for the rounding of the function itself
        first, second = function(low), function(high)
        return np.nextafter(first, -np.inf) - 1e-14, np.nextafter(second, np.inf) + 1e-14

    return ends


def _logistic(x: Float64) -> Float64:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _leaky(node: ir.Node, low: Float64, high: Float64) -> tuple[Float64, Float64]:
    alpha = float(np.float32(node.attributes.get_float("alpha", 0.01)))
    ends = [np.where(x >= 0, x, alpha * x) for x in (low, high)]
    bottom, top = np.minimum(*ends), np.maximum(*ends)
    holds = (low <= 0) & (high >= 0)
    return np.where(holds, np.minimum(bottom, 0), bottom), np.where(holds, np.maximum(top, 0), top)


def _hard(node: ir.Node, low: Float64, high: Float64) -> tuple[Float64, Float64]:
    alpha = float(np.float32(node.attributes.get_float("alpha", 0.2)))
    beta = float(np.float32(node.attributes.get_float("beta", 0.5)))
    ends = [np.clip(alpha * x + beta, 0.0, 1.0) for x in (low, high)]
    return np.minimum(*ends), np.maximum(*ends)


def _dipping(lowest: float) -> Callable[..., tuple[Float64, Float64]]:
    """Return bounds of a function between ``min(0, x)``'s dip and ``max(0, x)``."""

    def ends(_: ir.Node, low: Float64, high: Float64) -> tuple[Float64, Float64]:
        return np.broadcast_to(-lowest, np.shape(low)).copy(), np.maximum(high, 0.0)

    return ends


def _erf(x: Float64) -> Float64:
    return np.asarray(np.vectorize(erf, otypes=[np.float64])(x))


CURVES: dict[str, FunctionRule] = {
    "Sigmoid": FunctionRule(lambda _: 0.25, _rising(_logistic)),
    "Tanh": FunctionRule(lambda _: 1.0, _rising(np.tanh)),
    "Erf": FunctionRule(lambda _: 1.1284, _rising(_erf)),
    "LeakyRelu": FunctionRule(
        lambda node: max(1.0, abs(node.attributes.get_float("alpha", 0.01))), _leaky, 1
    ),
    "HardSigmoid": FunctionRule(
        lambda node: abs(node.attributes.get_float("alpha", 0.2)), _hard, 2
    ),
    "HardSwish": FunctionRule(lambda _: 1.5, _dipping(0.376), 4),
    "Gelu": FunctionRule(lambda _: 1.1290, _dipping(0.1701)),
    "Swish": FunctionRule(lambda _: 1.0999, _dipping(0.2785)),
    "Mish": FunctionRule(lambda _: 1.0885, _dipping(0.3089)),
}


def apply(node: ir.Node, x: Quantity, tracer: QuantityTracer) -> Quantity:
    """Return a function of data."""
    curve = CURVES[node.op_type]
    if node.op_type == "Swish" and node.attributes.get_float("alpha", 1.0) != 1:
        raise Undecidable(NO_BOUND("a Swish with a factor has no bound"))
    low, high = curve.ends(node, x.low, x.high)
    slope = curve.slope(node) * (1 + 2.0**-20)
    attributes = tuple(sorted((name, repr(value.value)) for name, value in node.attributes.items()))
    atom = tracer.atoms.make(
        "function", (node.op_type, attributes), (x.meant,), (low, high), slope=slope
    )
    unit, tiny = tracer.arithmetic.unit, tracer.arithmetic.tiny
    share = FUNCTION_ERROR if curve.roundings is None else 2 * curve.roundings * unit
    largest = np.maximum(np.abs(low), np.abs(high))
    if curve.roundings is None:
        extra = FUNCTION_ERROR + (share + unit) * largest
    else:
        extra = share * (largest + slope * x.reach + 1) + curve.roundings * tiny
    return Quantity(Combination.of(atom), low, high, slope * x.error + extra)

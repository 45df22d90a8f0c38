"""Activation functions as the operators that define them in ONNX.

    HardSwish(x)            -> x * HardSigmoid(x, 1/6, 1/2)
    HardSigmoid(x, a, b)    -> Max(Min(x * a + b, 1), 0)
    LeakyRelu(x, a)         -> Where(x < 0, x * a, x)
    PRelu(x, s)             -> Where(x < 0, x * s, x)
    ThresholdedRelu(x, a)   -> Where(a < x, x, 0)
    Greater(a, b)           -> Less(b, a)              likewise GreaterOrEqual

These are the function bodies of the ONNX standard, one float32 operation each: equal bit for bit.
HardSigmoid keeps values only, as its bound of zero leaves the sign of a zero result open.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import Sizes, sizes_of


def write_activation(graph: Rewriter, node: ir.Node) -> bool:
    """Write an activation function as its definition."""
    write = _WRITERS.get(node.op_type)
    x = node.inputs[0] if node.inputs else None
    if write is None or node.domain or x is None or graph.known.has(node.outputs[0]):
        return False
    if x.dtype is not ir.DataType.FLOAT:
        return False
    result = write(_Scribe(graph, node), x)
    return result is not None and graph.replace(node.outputs[0], result)


def write_comparison(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Greater as a Less with its operands swapped."""
    names = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}
    if node.domain or node.op_type not in names or graph.known.has(node.outputs[0]):
        return False
    made = graph.node(
        node,
        names[node.op_type],
        node.inputs[::-1],
        dtype=ir.DataType.BOOL,
        sizes=sizes_of(node.outputs[0]),
    )
    return graph.replace(node.outputs[0], made)


class _Scribe:
    """Writes operators on data of one shape before a node."""

    def __init__(self, graph: Rewriter, node: ir.Node) -> None:
        self.graph, self.node = graph, node
        self._sizes: Sizes | None = sizes_of(node.outputs[0])

    def number(self, name: str, default: float) -> np.float32:
        return np.float32(self.node.attributes.get_float(name, default))

    def __call__(
        self,
        op_type: str,
        *operands: ir.Value | np.float32,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        values = [
            self.graph.constant(np.asarray(o), f"{op_type}_number")
            if isinstance(o, np.float32)
            else o
            for o in operands
        ]
        return self.graph.node(self.node, op_type, values, dtype=dtype, sizes=self._sizes)


_ZERO, _ONE = np.float32(0), np.float32(1)
_SIXTH = np.float32(1 / 6)


def _hard_sigmoid(op: _Scribe, x: ir.Value) -> ir.Value | None:
    alpha, beta = op.number("alpha", 0.2), op.number("beta", 0.5)
    return _bounded_line(op, x, alpha, beta)


def _hard_swish(op: _Scribe, x: ir.Value) -> ir.Value | None:
    if not op.graph.may_lose_zero_sign(op.node.outputs[0]):
        return None
    gate = _bounded_line(op, x, _SIXTH, np.float32(0.5))
    return None if gate is None else op("Mul", x, gate)


def _bounded_line(op: _Scribe, x: ir.Value, alpha: np.float32, beta: np.float32) -> ir.Value | None:
    if not op.graph.may_lose_zero_sign(op.node.outputs[0]):
        return None
    op.graph.lose_zero_sign()
    return op("Max", op("Min", op("Add", op("Mul", x, alpha), beta), _ONE), _ZERO)


def _leaky_relu(op: _Scribe, x: ir.Value) -> ir.Value | None:
    is_negative = op("Less", x, _ZERO, dtype=ir.DataType.BOOL)
    return op("Where", is_negative, op("Mul", x, op.number("alpha", 0.01)), x)


def _p_relu(op: _Scribe, x: ir.Value) -> ir.Value | None:
    slope = op.node.inputs[1]
    if slope is None:
        return None
    array = op.graph.array(slope)
    factor: ir.Value | np.float32 = slope
    if array is not None and array.size == 1 and array.dtype == np.float32:
        factor = np.float32(array.reshape(())[()])
    is_negative = op("Less", x, _ZERO, dtype=ir.DataType.BOOL)
    return op("Where", is_negative, op("Mul", x, factor), x)


def _thresholded_relu(op: _Scribe, x: ir.Value) -> ir.Value | None:
    is_above = op("Less", op.number("alpha", 1.0), x, dtype=ir.DataType.BOOL)
    return op("Where", is_above, x, _ZERO)


_WRITERS: dict[str, Callable[[_Scribe, ir.Value], ir.Value | None]] = {
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "PRelu": _p_relu,
    "ThresholdedRelu": _thresholded_relu,
}

"""Operators written by their definitions over float32.

    HardSwish(x)            -> x * HardSigmoid(x, 1/6, 1/2)
    HardSigmoid(x, a, b)    -> Max(Min(x * a + b, 1), 0)
    LeakyRelu(x, a)         -> Where(x < 0, x * a, x)
    PRelu(x, s)             -> Where(x < 0, x * s, x)
    ThresholdedRelu(x, a)   -> Where(a < x, x, 0)
    Greater(a, b)           -> Less(b, a)              likewise GreaterOrEqual

These are the function bodies of the ONNX standard, one float32 operation each: equal bit for bit.
HardSigmoid keeps values only, as its bound of zero leaves the sign of a zero result open.

    QLinearMul(a, b)
        -> QuantizeLinear((Cast(a) - z_a) * (Cast(b) - z_b) * m + z_y, 1, 0)
           with m = s_a * s_b / s_y
    QLinearGlobalAveragePool(x)
        -> QuantizeLinear(ReduceSum(Cast(x) - z_x) * m, 1, z_y)
           with m = s_x / (s_y * n), where the sums of n codes stay below 2**24

Exact to the bit: products and sums of codes less their zero points are whole numbers below 2**24,
which float32 has, in whatever order they are added. Each later operation is one of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.ops.integer.codes import ratio, single
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32
from qgraph.proof.normal.rewriter import Rewriter, Sizes, sizes_of

WHOLE_SUMS = (
    "sums of codes that stay below 2**24 are computed without rounding, in whatever order they are "
    "added"
)

_CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_MOST = 255
_AXES = 13
"""Opset since which a ReduceSum takes its axes as an input."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_SIXTH = np.float32(1 / 6)


class _Writer:
    """Writes operators before a node; by default on data of the shape of its result."""

    def __init__(self, graph: Rewriter, node: ir.Node) -> None:
        self.graph, self.node = graph, node

    def number(self, name: str, default: float) -> np.float32:
        return np.float32(self.node.attributes.get_float(name, default))

    def __call__(
        self,
        op_type: str,
        *operands: ir.Value | np.float32,
        dtype: ir.DataType | None = ir.DataType.FLOAT,
        sizes: Sizes | None = None,
    ) -> ir.Value:
        values = [
            o
            if isinstance(o, ir.Value)
            else self.graph.constant(np.asarray(o), f"{op_type}_number")
            for o in operands
        ]
        sizes = sizes_of(self.node.outputs[0]) if sizes is None else sizes
        return self.graph.node(self.node, op_type, values, dtype=dtype, sizes=sizes)

    def whole(self, codes: ir.Value, zero: Array) -> ir.Value:
        """Return codes less their zero point in float32."""
        to, sizes = {"to": ir.DataType.FLOAT.value}, sizes_of(codes)
        dtype = ir.DataType.FLOAT
        cast = self.graph.node(self.node, "Cast", [codes], to, dtype=dtype, sizes=sizes)
        shift = np.float32(zero.reshape(()))
        return self("Sub", cast, shift, sizes=sizes) if shift else cast

    def encoded(self, total: ir.Value, zero: Array) -> ir.Value:
        """Return the codes of whole steps."""
        point = self.graph.constant(zero.reshape(()), "zero_point")
        return self("QuantizeLinear", total, _ONE, point, dtype=self.node.outputs[0].dtype)


def write_activation(graph: Rewriter, node: ir.Node) -> bool:
    """Write an activation function as its definition."""
    write = _WRITERS.get(node.op_type)
    x = node.inputs[0] if node.inputs else None
    if write is None or node.domain or x is None or graph.known.has(node.outputs[0]):
        return False
    if x.dtype is not ir.DataType.FLOAT:
        return False
    result = write(_Writer(graph, node), x)
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


def _hard_sigmoid(op: _Writer, x: ir.Value) -> ir.Value | None:
    alpha, beta = op.number("alpha", 0.2), op.number("beta", 0.5)
    return _bounded_line(op, x, alpha, beta)


def _hard_swish(op: _Writer, x: ir.Value) -> ir.Value | None:
    if not op.graph.may_lose_zero_sign(op.node.outputs[0]):
        return None
    gate = _bounded_line(op, x, _SIXTH, np.float32(0.5))
    return None if gate is None else op("Mul", x, gate)


def _bounded_line(op: _Writer, x: ir.Value, alpha: np.float32, beta: np.float32) -> ir.Value | None:
    if not op.graph.may_lose_zero_sign(op.node.outputs[0]):
        return None
    op.graph.lose_zero_sign()
    return op("Max", op("Min", op("Add", op("Mul", x, alpha), beta), _ONE), _ZERO)


def _leaky_relu(op: _Writer, x: ir.Value) -> ir.Value | None:
    is_negative = op("Less", x, _ZERO, dtype=ir.DataType.BOOL)
    return op("Where", is_negative, op("Mul", x, op.number("alpha", 0.01)), x)


def _p_relu(op: _Writer, x: ir.Value) -> ir.Value | None:
    slope = op.node.inputs[1]
    if slope is None:
        return None
    array = op.graph.array(slope)
    factor: ir.Value | np.float32 = slope
    if array is not None and array.size == 1 and array.dtype == np.float32:
        factor = np.float32(array.reshape(())[()])
    is_negative = op("Less", x, _ZERO, dtype=ir.DataType.BOOL)
    return op("Where", is_negative, op("Mul", x, factor), x)


def _thresholded_relu(op: _Writer, x: ir.Value) -> ir.Value | None:
    is_above = op("Less", op.number("alpha", 1.0), x, dtype=ir.DataType.BOOL)
    return op("Where", is_above, x, _ZERO)


_WRITERS: dict[str, Callable[[_Writer, ir.Value], ir.Value | None]] = {
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "PRelu": _p_relu,
    "ThresholdedRelu": _thresholded_relu,
}


def write_code_product(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearMul as its definition."""
    if node.domain != "com.microsoft" or node.op_type != "QLinearMul":
        return False
    a, s_a, z_a, b, s_b, z_b, s_y, z_y = [*node.inputs, None][:8]
    if a is None or b is None or a.dtype not in _CODES or b.dtype not in _CODES:
        return False
    scales = [graph.array(value) for value in (s_a, s_b, s_y)]
    zeros = [
        np.zeros((), a.dtype.numpy()) if value is None else graph.array(value)
        for value in (z_a, z_b, z_y)
    ]
    if any(array is None or array.size != 1 for array in (*scales, *zeros)):
        return False
    m = ratio(*(single(array) for array in scales if array is not None))
    if not np.isfinite(m).all():
        return False
    op = _Writer(graph, node)
    first, second, last = map(np.asarray, zeros)
    product = op("Mul", op.whole(a, first), op.whole(b, second))
    total = op("Add", op("Mul", product, np.float32(m.reshape(()))), np.float32(last.reshape(())))
    return graph.replace(node.outputs[0], op.encoded(total, np.zeros((), last.dtype)))


def write_code_average(graph: Rewriter, node: ir.Node) -> bool:
    """Write a QLinearGlobalAveragePool as its definition."""
    if (node.domain, node.op_type) != ("com.microsoft", "QLinearGlobalAveragePool"):
        return False
    x, s_x, z_x, s_y, z_y = [*node.inputs, None][:5]
    sizes = None if x is None else sizes_of(x)
    arrays = [graph.array(value) for value in (s_x, z_x, s_y, z_y)]
    if x is None or sizes is None or x.dtype not in _CODES or graph.imports.get("", 1) < _AXES:
        return False
    if any(array is None or array.size != 1 for array in arrays):
        return False
    last = node.attributes.get_int("channels_last", 0)
    axes = list(range(1, len(sizes) - 1) if last else range(2, len(sizes)))
    counts = [size for axis in axes if isinstance(size := sizes[axis], int)]
    count = math.prod(counts)
    if len(counts) < len(axes) or not 0 < count * _MOST < EXACT_IN_FLOAT32:
        return False
    scale, zero, step, end = (np.asarray(array).reshape(()) for array in arrays)
    with np.errstate(all="ignore"):
        m = np.float32(scale) / (np.float32(step) * np.float32(count))
    if not np.isfinite(m):
        return False
    op = _Writer(graph, node)
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    total = graph.node(
        node,
        "ReduceSum",
        [op.whole(x, zero), graph.constant(np.asarray(axes, np.int64), "axes")],
        {"keepdims": 1},
        dtype=ir.DataType.FLOAT,
        sizes=result,
    )
    graph.conditions.add(WHOLE_SUMS)
    return graph.replace(node.outputs[0], op.encoded(op("Mul", total, m), end))

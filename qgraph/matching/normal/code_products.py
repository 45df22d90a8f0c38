"""Products and averages of codes as their definitions over float32.

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
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.parameters import ratio, single
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import sizes_of

Array = npt.NDArray[Any]

WHOLE_SUMS = (
    "sums of codes that stay below 2**24 are computed without rounding, in whatever order they are "
    "added"
)

_CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_MOST = 255
_AXES = 13
"""Opset since which a ReduceSum takes its axes as an input."""


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
    op = _Scribe(graph, node)
    factors = [op.whole(a, zeros[0]), op.whole(b, zeros[1])]
    total = op("Mul", op("Mul", *factors), np.float32(m.reshape(())))
    last = np.asarray(zeros[2])
    total = op("Add", total, np.float32(last.reshape(())))
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
    op = _Scribe(graph, node)
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


class _Scribe:
    """Writes float32 operators before a node."""

    def __init__(self, graph: Rewriter, node: ir.Node) -> None:
        self._graph, self._node = graph, node

    def __call__(self, name: str, value: ir.Value, other: ir.Value | np.float32) -> ir.Value:
        """Return the result of an operator on two operands, which has the shape of the result."""
        if not isinstance(other, ir.Value):
            other = self._graph.constant(np.asarray(other).reshape(()), f"{name}_number")
        alike = sizes_of(value) == sizes_of(other) or not sizes_of(other)
        sizes = sizes_of(value if alike else self._node.outputs[0])
        return self._graph.node(
            self._node, name, [value, other], dtype=ir.DataType.FLOAT, sizes=sizes
        )

    def whole(self, codes: ir.Value, zero: Array | None) -> ir.Value:
        """Return codes less their zero point in float32."""
        to = {"to": ir.DataType.FLOAT.value}
        sizes = sizes_of(codes)
        cast = self._graph.node(
            self._node, "Cast", [codes], to, dtype=ir.DataType.FLOAT, sizes=sizes
        )
        shift = np.float32(0) if zero is None else np.float32(zero.reshape(()))
        return self("Sub", cast, shift) if shift else cast

    def encoded(self, total: ir.Value, zero: Array) -> ir.Value:
        """Return the codes of whole steps."""
        one = self._graph.constant(np.ones((), np.float32), "one")
        none = self._graph.constant(zero.reshape(()), "zero_point")
        output = self._node.outputs[0]
        return self._graph.node(
            self._node,
            "QuantizeLinear",
            [total, one, none],
            dtype=output.dtype,
            sizes=sizes_of(output),
        )

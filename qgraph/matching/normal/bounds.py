"""Relu and Clip as Max and Min, with constant bounds in one order.

    Relu(x)                   -> Max(x, 0)
    Clip(x, low, high)        -> Min(Max(x, low), high)         a bound that is absent is left out
    Max(Max(x, a), b)         -> Max(x, max(a, b))              likewise Min
    Max(Min(x, b), a)         -> Min(Max(x, a), b)              for a <= b
    Max(x, -inf), Min(x, inf) -> x

The numbers are the same for every input. Where a bound is zero, ONNX leaves the sign of a zero
result open, and the rules keep values only. NaN stays NaN in all forms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import sizes_of


def write_relu(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Relu as a Max with zero."""
    x = _data(graph, node, "Relu")
    if x is None or x.dtype is None or not x.dtype.is_floating_point():
        return False
    if not _allows_zero(graph, node):
        return False
    zero = np.zeros((), x.dtype.numpy())
    return _replace(graph, node, [("Max", zero)], x)


def write_clip(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Clip with constant bounds as a Max and a Min."""
    x = _data(graph, node, "Clip")
    if x is None or node.attributes:
        return False
    steps: list[tuple[str, Any]] = []
    for name, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound is None:
            continue
        array = graph.array(bound)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return False
        steps.append((name, array.reshape(())))
    if any(np.isnan(bound.astype(np.float64)) for _, bound in steps):
        return False
    if any(bound == 0 for _, bound in steps) and not _allows_zero(graph, node):
        return False
    return _replace(graph, node, steps, x)


def join_bounds(graph: Rewriter, node: ir.Node) -> bool:
    """Join a bound with the bounds before it, or put them in order."""
    now = _bounded(graph, node)
    if now is None:
        return False
    x, bound = now
    if bound == (-np.inf if node.op_type == "Max" else np.inf):
        return graph.replace(node.outputs[0], x)
    inner = x.producer()
    before = None if inner is None or graph.known.has(x) else _bounded(graph, inner)
    if inner is None or before is None:
        return _bound_last(graph, node, x, bound)
    data, first = before
    if bound.dtype != first.dtype:
        return False
    if 0 in (bound, first) and not _allows_zero(graph, node):
        return False
    if inner.op_type == node.op_type:
        chosen = max(bound, first) if node.op_type == "Max" else min(bound, first)
        return _replace(graph, node, [(node.op_type, chosen)], data)
    if node.op_type == "Max" and bound <= first:
        return _replace(graph, node, [("Max", bound), ("Min", first)], data)
    return _bound_last(graph, node, x, bound)


def _bound_last(graph: Rewriter, node: ir.Node, x: ir.Value, bound: Any) -> bool:
    """Write the bound as a single number after the data."""
    last = node.inputs[1]
    if last is not None and last is not x and last.shape is not None and not last.shape.rank():
        return False
    return _replace(graph, node, [(node.op_type, bound)], x)


def _bounded(graph: Rewriter, node: ir.Node) -> tuple[ir.Value, Any] | None:
    """Return what a Max or Min with one constant number bounds, and the bound."""
    if node.domain or node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        if x is None or graph.known.has(x):
            continue
        array = graph.array(other)
        sizes = sizes_of(x)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        if array.ndim > len(sizes or ()) or np.isnan(array.astype(np.float64)).any():
            return None
        return x, array.reshape(())[()]
    return None


def _data(graph: Rewriter, node: ir.Node, name: str) -> ir.Value | None:
    if node.domain or node.op_type != name or graph.known.has(node.outputs[0]):
        return None
    return node.inputs[0]


def _allows_zero(graph: Rewriter, node: ir.Node) -> bool:
    if not graph.may_lose_zero_sign(node.outputs[0]):
        return False
    graph.lose_zero_sign()
    return True


def _replace(graph: Rewriter, node: ir.Node, steps: list[tuple[str, Any]], x: ir.Value) -> bool:
    dtype, sizes = node.outputs[0].dtype, sizes_of(node.outputs[0])
    for name, bound in steps:
        constant = graph.constant(np.asarray(bound).reshape(()), f"{name}_bound")
        x = graph.node(node, name, [x, constant], dtype=dtype, sizes=sizes)
    return graph.replace(node.outputs[0], x)

"""Operators that make one element of many along some axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from qgraph.graph.inference.arithmetic import calculated
from qgraph.graph.inference.dimensions import Dim, Size, add, bounds, multiply
from qgraph.graph.inference.facts import Fact, Items, as_items, range_of, wrapped
from qgraph.graph.inference.movement import shape_in
from qgraph.graph.inference.rules import Call, Unknown, places_of, rule

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_FOLDED: dict[str, tuple[int, Callable[[Any, Any], Dim]]] = {
    "ReduceProd": (1, multiply),
    "ReduceSum": (0, add),
}
"""Reductions of integers that are followed: their neutral element, and what joins two elements."""

_EXACT = 1 << 53


@rule(*(f"Reduce{name}" for name in _REDUCTIONS))
def reduction(call: Call) -> list[Fact]:
    """The data without the axes, or with 1 in their place if ``keepdims``; no axes are all."""
    x, shape = call[0], call.shape(0)
    keeps = bool(call.integer("keepdims", 1))
    try:
        axes = call.listed(1, "axes", 13 if call.node.op_type == "ReduceSum" else 18)
    except Unknown:
        return [Fact(x.dtype, [None] * len(shape) if keeps else None)]
    if not axes:
        if axes is not None and call.integer("noop_with_empty_axes", 0):
            raise Unknown
        if axes is None and call.integer("noop_with_empty_axes", 0):
            return [Fact(x.dtype, shape)]
        axes = list(range(len(shape)))
    gone = places_of(axes, len(shape))
    sizes: list[Dim] = [1 if axis in gone else size for axis, size in enumerate(shape)]
    if not keeps:
        sizes = [size for axis, size in enumerate(sizes) if axis not in gone]
    return [Fact(x.dtype, sizes, _reduced(call, x, sizes) if len(shape) == 1 else None)]


def _reduced(call: Call, x: Fact, sizes: list[Dim]) -> Items | None:
    """Return the one element that a vector of integers is reduced to."""
    items, known = x.items, _FOLDED.get(call.node.op_type)
    if items is None or range_of(x.dtype) is None:
        return None
    if known is None:
        name = {"ReduceMax": "Max", "ReduceMin": "Min"}.get(call.node.op_type)
        if name is None or not len(items):
            return None
        total = as_items([items[0]])
        for item in items[1:]:
            step = calculated(name, x.dtype, total, as_items([item]))
            if step is None:
                return None
            total = step
        return total.reshape([1] * len(sizes))
    neutral, join = known
    result: Dim = neutral
    for item in items:
        result = join(result, item)
        if result is None or not _is_exact(result, x.dtype):
            return None
    return as_items([result]).reshape([1] * len(sizes))


def _is_exact(number: int | Size, dtype: ir.DataType | None) -> bool:
    """Return whether every runtime has this number, also one that reduces in float64."""
    low, high = bounds(number)
    return wrapped(number, dtype) == number and -_EXACT < low <= high < _EXACT


@rule("ArgMax", "ArgMin")
def arg_max(call: Call) -> list[Fact]:
    """Places along ``axis``, int64, which has size 1 then or is gone."""
    shape = call.shape(0)
    axis = call.axis("axis", 0, len(shape))
    middle: list[Dim] = [1] if call.integer("keepdims", 1) else []
    return [Fact(ir.DataType.INT64, [*shape[:axis], *middle, *shape[axis + 1 :]])]


@rule("TopK")
def top_k(call: Call) -> list[Fact]:
    """The ``k`` largest along ``axis``, and their places as int64."""
    x, shape = call[0], call.shape(0)
    axis = call.axis("axis", -1, len(shape))
    count: Dim = call.integer("k", -1) if call.version < 10 else shape_in(call, 1)[0]
    if isinstance(count, int) and count < 0:
        raise Unknown
    sizes = [*shape[:axis], count, *shape[axis + 1 :]]
    return [Fact(x.dtype, sizes), Fact(ir.DataType.INT64, sizes)]

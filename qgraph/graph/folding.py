"""Values that are known because they are constants seen through shape-only operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.constants import constant, constant_elements
from qgraph.tensors.streaming import Stream

Array = npt.NDArray[Any]
Operands = Sequence[Array | None]
Rule = Callable[[ir.Node, Stream, Operands], Stream | None]


def constant_expression(value: ir.Value | None) -> Array | None:
    """Return the array that ``value`` always has, or None.

    Follows Identity, Transpose, Reshape, Flatten, Squeeze, Unsqueeze and Slice back to a constant.
    """
    known = constant(value)
    if known is not None or value is None:
        return known
    followed = _follow(value)
    return None if followed is None else followed.array()


def constant_stream(value: ir.Value | None) -> Stream | None:
    """Return the elements that ``value`` always has, as :func:`constant_expression` does.

    Those in a file are not read.
    """
    known = constant_elements(value)
    return known if known is not None or value is None else _follow(value)


def array_of(value: ir.Value | None) -> Array | None:
    """Return a constant's array, also that of a drafted constant, which no graph owns yet."""
    drafted = value is not None and value.graph is None and value.producer() is None
    if drafted and value is not None:
        return None if value.const_value is None else value.const_value.numpy()
    return constant_expression(value)


def _follow(value: ir.Value) -> Stream | None:
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in _RULES:
        return None
    data = constant_stream(node.inputs[0])
    if data is None:
        return None
    operands = [constant_expression(operand) for operand in node.inputs[1:]]
    if any(a is None and b is not None for a, b in zip(operands, node.inputs[1:], strict=True)):
        return None
    return _RULES[node.op_type](node, data, [*operands, None])


def _transpose(node: ir.Node, data: Stream, _: Operands) -> Stream:
    order = node.attributes.get("perm")
    return data.transposed(range(len(data.shape))[::-1] if order is None else order.as_ints())


def _reshape(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    if operands[0] is None:
        return None
    sizes = [int(size) for size in operands[0]]
    if not (zeros := node.attributes.get("allowzero")) or not zeros.as_int():
        sizes = [data.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    if -1 in sizes:
        sizes[sizes.index(-1)] = data.size // max(-math.prod(sizes), 1)
    return data.reshaped(sizes)


def _flatten(node: ir.Node, data: Stream, _: Operands) -> Stream | None:
    given = node.attributes.get("axis")
    axis = given.as_int() if given is not None else 1
    axis += len(data.shape) if axis < 0 else 0
    return data.reshaped((math.prod(data.shape[:axis]), math.prod(data.shape[axis:])))


def _axes(node: ir.Node, operands: Operands) -> list[int] | None:
    if operands[0] is not None:
        return [int(axis) for axis in operands[0]]
    given = node.attributes.get("axes")
    return None if given is None else list(given.as_ints())


def _squeeze(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    axes = _axes(node, operands)
    rank = len(data.shape)
    gone = {a % rank for a in axes} if axes is not None else set(range(rank))
    return data.reshaped(
        [size for axis, size in enumerate(data.shape) if axis not in gone or size != 1]
    )


def _unsqueeze(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    axes = _axes(node, operands)
    if axes is None:
        return None
    rank = len(data.shape) + len(axes)
    new = {axis % rank for axis in axes}
    sizes = iter(data.shape)
    return data.reshaped([1 if axis in new else next(sizes) for axis in range(rank)])


def _slice(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    attributes = (node.attributes.get(name) for name in ("starts", "ends", "axes"))
    given = [None if a is None else np.asarray(a.as_ints()) for a in attributes]
    starts, ends, axes, steps = (
        given[i] if i < len(given) and given[i] is not None else operand
        for i, operand in enumerate([*operands, None, None, None][:4])
    )
    if starts is None or ends is None:
        return None
    cuts = [slice(None)] * len(data.shape)
    places = range(len(starts)) if axes is None else axes.tolist()
    for i, axis in enumerate(places):
        step = 1 if steps is None else int(steps[i])
        cuts[axis] = _cut(int(starts[i]), int(ends[i]), step, data.shape[axis])
    return data.sliced(cuts)


def _cut(start: int, end: int, step: int, size: int) -> slice:
    """Return a slice; ends far outside mean all, also backwards, where -1 means no end."""
    if step < 0 and end < -size:
        return slice(start, None, step)
    return slice(start, end, step)


_RULES: dict[str, Rule] = {
    "Identity": lambda node, data, operands: data,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}

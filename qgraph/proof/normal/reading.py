"""Read data movements from nodes.

    Transpose(x, perm)                              Permutation, composed with one before it
    Reshape, Flatten, Squeeze, Unsqueeze            Reshaping; so is a Transpose that only moves
                                                    dimensions of size 1
    Slice, Split, Gather with constant indices      Selection
    Expand, Tile                                    Expansion, Tiling
    DepthToSpace, SpaceToDepth, and Pad and Resize  Rearrangement
    that repeat elements of the data

All are exact, because nothing is computed from the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import input_of
from qgraph.proof.normal.movements import (
    Expansion,
    Movement,
    Permutation,
    Rearrangement,
    Reshaping,
    Selection,
    Tiling,
)
from qgraph.proof.normal.rewriter import Rewriter, Sizes

_MOST_INDICES = 1 << 14

_Moves: TypeAlias = Sequence[Movement] | None


@dataclass(frozen=True)
class Move:
    """The movements from some data to a value, in the order of application."""

    data: ir.Value
    steps: tuple[Movement, ...]


def read(graph: Rewriter, value: ir.Value) -> Move | None:
    """Return the movements of the node of ``value``; None if it is not a data movement."""
    node = value.producer()
    if node is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    if node in graph.movements:
        return Move(node.inputs[0], (graph.movements[node],))
    reader, data = _READERS.get(node.op_type), node.inputs[0]
    steps = None if reader is None else reader(graph, value, node, stated_shape(data))
    return None if steps is None else Move(data, tuple(steps))


def _numbers(graph: Rewriter, value: ir.Value | None) -> list[int] | None:
    """Return the elements of a constant of integers; None for other values."""
    array = graph.array(value)
    return None if array is None else [int(number) for number in array.reshape(-1)]


def _transpose(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    attribute = node.attributes.get("perm")
    if attribute is None and sizes is None:
        return None
    order = (
        tuple(range(len(sizes or ())))[::-1] if attribute is None else tuple(attribute.as_ints())
    )
    if sorted(order) != list(range(len(order))) or (sizes and len(sizes) != len(order)):
        return None
    movement = Permutation(order)
    if sizes is not None:
        moved = [axis for axis in order if sizes[axis] != 1]
        reshaping = Reshaping(sizes, movement.result(sizes))
        if moved == sorted(moved) and reshaping.shape is not None:
            return [reshaping]
    return [movement]


def _reshape(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    target = stated_shape(value)
    if sizes is None or target is None:
        return None
    movement = Reshaping(sizes, target)
    return None if movement.shape is None else [movement]


def _slice(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    if sizes is None or "starts" in node.attributes:
        return None
    used = [*node.inputs[1:], None, None][:4]
    starts, ends, axes, steps = (_numbers(graph, operand) for operand in used)
    absent = [(axes, used[2]), (steps, used[3])]
    if starts is None or ends is None or any(a is None and v is not None for a, v in absent):
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    chosen: dict[int, tuple[int, ...]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index = axis % len(sizes) if -len(sizes) <= axis < len(sizes) else -1
        size = sizes[index] if index >= 0 else None
        if index < 0 or index in chosen:
            return None
        if not isinstance(size, int):
            if (start, step) == (0, 1) and end >= np.iinfo(np.int32).max:
                continue
            return None
        if size > _MOST_INDICES or (step < 0 and start < -size):
            return None  # such a start is clamped
        indices = _range(start, end, step, size)
        if indices != tuple(range(size)):
            chosen[index] = indices
    return [Selection(index, chosen[index]) for index in sorted(chosen)]


def _range(start: int, end: int, step: int, size: int) -> tuple[int, ...]:
    """Return the indices that a Slice selects, with ends clamped as ONNX defines it."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return tuple(range(min(max(start, 0), size), min(max(end, 0), size), step))
    return tuple(range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step))


def _split(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    if sizes is None or "split" in node.attributes:
        return None
    axis = node.attributes.get_int("axis", 0)
    if not -len(sizes) <= axis < len(sizes):
        return None
    axis %= len(sizes)
    size, count = sizes[axis], len(node.outputs)
    if not isinstance(size, int) or size > _MOST_INDICES:
        return None
    operand = input_of(node, 1)
    parts = _numbers(graph, operand)
    if parts is None:
        if operand is not None or ("num_outputs" not in node.attributes and size % count):
            return None
        chunk = -(-size // count)
        parts = [min(chunk, max(size - i * chunk, 0)) for i in range(count)]
    if sum(parts) != size or len(parts) != count or min(parts, default=-1) < 0:
        return None
    index = list(node.outputs).index(value)
    start = sum(parts[:index])
    indices = tuple(range(start, start + parts[index]))
    return [Selection(axis, indices)]


def _gather(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    indices = graph.array(node.inputs[1])
    axis = node.attributes.get_int("axis", 0)
    if sizes is None or indices is None or not -len(sizes) <= axis < len(sizes):
        return None
    axis %= len(sizes)
    size = sizes[axis]
    if not isinstance(size, int) or indices.ndim > 1 or indices.size > _MOST_INDICES:
        return None
    listed = [int(index) for index in indices.reshape(-1)]
    if any(not -size <= index < size for index in listed):
        return None
    chosen = tuple(index % size for index in listed)
    select = Selection(axis, chosen)
    if indices.ndim:
        return [select]
    kept = select.result(sizes)
    dropped = Reshaping(kept, kept[:axis] + kept[axis + 1 :])
    return None if dropped.shape is None else [select, dropped]


def _expand(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    target = stated_shape(value)
    if sizes is None or target is None or len(sizes) > len(target):
        return None
    own = (1,) * (len(target) - len(sizes)) + sizes
    # a symbolic dimension cannot be written as a number: only the data can have it
    if any(
        not isinstance(m, int) and (m is None or m != n) for m, n in zip(target, own, strict=True)
    ):
        return None
    return [Expansion(target)]


def _tile(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    repeats = _numbers(graph, node.inputs[1]) if len(node.inputs) > 1 else None
    if repeats is None or min(repeats, default=0) < 0:
        return None
    return [Tiling(tuple(repeats))]


def _rearranged(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    target = stated_shape(value)
    if target is None or (node.op_type in ("Pad", "Resize") and not _repeats(node)):
        return None
    rest = node.inputs[1:]
    arrays = [graph.array(operand) for operand in rest]
    if any(array is None for array, v in zip(arrays, rest, strict=True) if v is not None):
        return None
    operands = [None if a is None else (a.dtype.name, tuple(a.ravel().tolist())) for a in arrays]
    defaults: dict[str, object] = {"mode": "DCR"} if node.op_type == "DepthToSpace" else {}
    stated = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes = tuple(sorted((defaults | stated).items()))
    return [Rearrangement(node.op_type, attributes, tuple(operands), target)]


def _repeats(node: ir.Node) -> bool:
    """Return whether each result of a Pad or Resize is an element of its data."""
    if node.op_type == "Resize":
        crops = "tf_crop_and_resize"  # another number lies beyond the edges
        is_cropped = node.attributes.get_string("coordinate_transformation_mode", "") == crops
        return node.attributes.get_string("mode", "nearest") == "nearest" and not is_cropped
    mode = node.attributes.get_string("mode", "constant")
    return mode in ("edge", "reflect", "wrap") and len(node.inputs) == 2


_READERS: dict[str, Callable[[Rewriter, ir.Value, ir.Node, Sizes | None], _Moves]] = {
    "DepthToSpace": _rearranged,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Pad": _rearranged,
    "Reshape": _reshape,
    "Resize": _rearranged,
    "Slice": _slice,
    "SpaceToDepth": _rearranged,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}

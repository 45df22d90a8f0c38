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
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.rules import Unknown, given, require
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
    result_of,
)
from qgraph.proof.normal.rewriter import Rewriter, Sizes
from qgraph.records import dataclass

_MOST_INDICES = 1 << 14

_Moves: TypeAlias = Sequence[Movement]


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
    try:
        steps = given(reader)(graph, value, node, stated_shape(data))
    except Unknown:
        return None
    return Move(data, tuple(steps))


def _numbers(graph: Rewriter, value: ir.Value | None) -> list[int] | None:
    array = graph.array(value)
    return None if array is None else [int(number) for number in array.reshape(-1)]


def _transpose(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    attribute = node.attributes.get("perm")
    if attribute is None:
        order = tuple(range(len(given(sizes))))[::-1]
    else:
        order = tuple(attribute.as_ints())
    require(sorted(order) == list(range(len(order))) and (not sizes or len(sizes) == len(order)))
    movement = Permutation(order)
    if sizes is not None:
        moved = [axis for axis in order if sizes[axis] != 1]
        reshaping = Reshaping(sizes, result_of(movement, sizes))
        if moved == sorted(moved) and reshaping.shape is not None:
            return [reshaping]
    return [movement]


def _reshape(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    movement = Reshaping(given(sizes), given(stated_shape(value)))
    given(movement.shape)
    return [movement]


def _slice(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    require("starts" not in node.attributes)
    sizes, used = given(sizes), [*node.inputs[1:], None, None][:4]
    starts, ends = (given(_numbers(graph, operand)) for operand in used[:2])
    axes = list(range(len(starts))) if used[2] is None else given(_numbers(graph, used[2]))
    steps = [1] * len(starts) if used[3] is None else given(_numbers(graph, used[3]))
    require(len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps)
    chosen: dict[int, tuple[int, ...]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        require(-len(sizes) <= axis < len(sizes))
        index = axis % len(sizes)
        size = sizes[index]
        require(index not in chosen)
        if not isinstance(size, int):
            require((start, step) == (0, 1) and end >= np.iinfo(np.int32).max)
            continue
        require(size <= _MOST_INDICES and (step > 0 or start >= -size))  # else it is clamped
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


def _sized_axis(node: ir.Node, sizes: Sizes | None) -> tuple[int, int]:
    """Return the axis of a node, counted from the first one, and its size, which must be known."""
    rank, axis = len(given(sizes)), node.attributes.get_int("axis", 0)
    require(-rank <= axis < rank)
    size = given(sizes)[axis]
    if not isinstance(size, int):
        raise Unknown
    return axis % rank, size


def _split(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    (axis, size), count = _sized_axis(node, sizes), len(node.outputs)
    require("split" not in node.attributes and size <= _MOST_INDICES)
    operand = input_of(node, 1)
    parts = _numbers(graph, operand)
    if parts is None:
        require(operand is None and ("num_outputs" in node.attributes or size % count == 0))
        chunk = -(-size // count)
        parts = [min(chunk, max(size - i * chunk, 0)) for i in range(count)]
    require(sum(parts) == size and len(parts) == count and min(parts, default=-1) >= 0)
    index = list(node.outputs).index(value)
    start = sum(parts[:index])
    return [Selection(axis, tuple(range(start, start + parts[index])))]


def _gather(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    indices, (axis, size) = given(graph.array(node.inputs[1])), _sized_axis(node, sizes)
    require(indices.ndim <= 1 and indices.size <= _MOST_INDICES)
    listed = [int(index) for index in indices.reshape(-1)]
    require(all(-size <= index < size for index in listed))
    select = Selection(axis, tuple(index % size for index in listed))
    if indices.ndim:
        return [select]
    kept = result_of(select, given(sizes))
    dropped = Reshaping(kept, kept[:axis] + kept[axis + 1 :])
    given(dropped.shape)
    return [select, dropped]


def _expand(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    sizes, target = given(sizes), given(stated_shape(value))
    require(len(sizes) <= len(target))
    own = (1,) * (len(target) - len(sizes)) + sizes
    # a symbolic dimension cannot be written as a number: only the data can have it
    pairs = zip(target, own, strict=True)
    require(all(isinstance(m, int) or (m is not None and m == n) for m, n in pairs))
    return [Expansion(target)]


def _tile(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    repeats = given(_numbers(graph, input_of(node, 1)))
    require(min(repeats, default=0) >= 0)
    return [Tiling(tuple(repeats))]


def _rearranged(graph: Rewriter, value: ir.Value, node: ir.Node, sizes: Sizes | None) -> _Moves:
    target, rest = given(stated_shape(value)), node.inputs[1:]
    require(node.op_type not in ("Pad", "Resize") or _repeats(node))
    arrays = [None if operand is None else given(graph.array(operand)) for operand in rest]
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

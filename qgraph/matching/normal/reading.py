"""Which movement a node does, and nodes that do a movement.

    Transpose(x, perm)                              Permutation, composed with one before it
    Reshape, Flatten, Squeeze, Unsqueeze            Reshaping; so is a Transpose that only moves
                                                    dimensions of size 1
    Slice, Split, Gather with constant indices      Selection
    Expand, Tile, DepthToSpace, SpaceToDepth, and Pad that repeats elements of the data

All are exact: elements are moved and not computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.matching.normal.movements import (
    Expansion,
    Movement,
    Permutation,
    Rearrangement,
    Reshaping,
    Selection,
    Tiling,
)
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import Sizes, are_equal, sizes_of

_MOST_INDICES = 1 << 14


@dataclass(frozen=True)
class Move:
    """Movements that make a value of its data, the first one first."""

    data: ir.Value
    steps: tuple[Movement, ...]


def read(graph: Rewriter, value: ir.Value) -> Move | None:
    """Return the movement that makes ``value`` of data; None where it is another operator."""
    node = value.producer()
    if node is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    if node in graph.movements:
        return Move(node.inputs[0], (graph.movements[node],))
    reader = _READERS.get(node.op_type)
    if reader is None:
        return None
    steps = reader(graph, node, value)
    return None if steps is None else Move(node.inputs[0], tuple(steps))


def write(graph: Rewriter, movement: Movement, data: ir.Value, before: ir.Node) -> ir.Value:
    """Return ``movement`` of ``data``, by a node before another one, or by one that is there."""
    sizes = sizes_of(data)
    if _does_nothing(movement, sizes):
        return data
    key = "movement", movement, data, graph.is_delicate(before)
    known = graph.shared(key)
    if known is not None:
        return known
    result = None if sizes is None else movement.result(sizes)
    made = _WRITERS[type(movement)](graph, movement, data, before, result)
    node = made.producer()
    if node is not None:
        graph.movements[node] = movement
    return graph.share(key, made)


def _does_nothing(movement: Movement, sizes: Sizes | None) -> bool:
    match movement:
        case Permutation():
            return movement.is_identity
        case Reshaping():
            return are_equal(movement.source, movement.target)
        case Selection():
            size = None if sizes is None else sizes[movement.axis]
            return isinstance(size, int) and movement.chosen == tuple(range(size))
        case Expansion():
            return sizes is not None and are_equal(sizes, movement.target)
        case Tiling():
            return set(movement.repeats) <= {1}
    return False


def is_written(graph: Rewriter, node: ir.Node) -> bool:
    """Return whether a node was written for a movement."""
    return node in graph.movements


def _transpose(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    sizes = sizes_of(node.inputs[0]) if node.inputs[0] is not None else None
    given = node.attributes.get("perm")
    if given is None and sizes is None:
        return None
    order = tuple(range(len(sizes or ())))[::-1] if given is None else tuple(given.as_ints())
    if sorted(order) != list(range(len(order))) or (sizes and len(sizes) != len(order)):
        return None
    movement = Permutation(order)
    if sizes is not None:
        moved = [axis for axis in order if sizes[axis] != 1]
        reshaping = Reshaping(sizes, movement.result(sizes))
        if moved == sorted(moved) and reshaping.shape is not None:
            return [reshaping]
    return [movement]


def _reshape(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    source, target = sizes_of(node.inputs[0]) if node.inputs[0] else None, sizes_of(value)
    if source is None or target is None:
        return None
    movement = Reshaping(source, target)
    return None if movement.shape is None else [movement]


def _slice(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    sizes = sizes_of(node.inputs[0]) if node.inputs[0] else None
    names = ("starts", "ends", "axes", "steps")
    if sizes is None or "starts" in node.attributes:
        return None
    given = []
    for operand in [*node.inputs[1:], None, None][: len(names)]:
        array = graph.array(operand)
        if array is None and operand is not None:
            return None
        given.append(None if array is None else [int(number) for number in array.reshape(-1)])
    starts, ends, axes, steps = given
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    chosen: dict[int, tuple[int, ...]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % len(sizes) if -len(sizes) <= axis < len(sizes) else -1
        size = sizes[place] if place >= 0 else None
        if place < 0 or place in chosen:
            return None
        if not isinstance(size, int):
            if (start, step) == (0, 1) and end >= np.iinfo(np.int32).max:
                continue
            return None
        if size > _MOST_INDICES or (step < 0 and start < -size):
            return None  # such a start is clamped to the first element, or to none
        indices = _range(start, end, step, size)
        if indices != tuple(range(size)):
            chosen[place] = indices
    return [Selection(place, chosen[place]) for place in sorted(chosen)]


def _range(start: int, end: int, step: int, size: int) -> tuple[int, ...]:
    """Return the indices that a Slice takes, ends clamped as its definition has it."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return tuple(range(min(max(start, 0), size), min(max(end, 0), size), step))
    return tuple(range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step))


def _split(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    sizes = sizes_of(node.inputs[0]) if node.inputs[0] else None
    if sizes is None or "split" in node.attributes:
        return None
    axis = node.attributes.get_int("axis", 0)
    if not -len(sizes) <= axis < len(sizes):
        return None
    axis %= len(sizes)
    size, count = sizes[axis], len(node.outputs)
    if not isinstance(size, int) or size > _MOST_INDICES:
        return None
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    array = graph.array(operand)
    if operand is not None and array is None:
        return None
    chunk = -(-size // count)
    if array is None:
        parts = [min(chunk, max(size - i * chunk, 0)) for i in range(count)]
        if "num_outputs" not in node.attributes and size % count:
            return None
    else:
        parts = [int(part) for part in array.reshape(-1)]
    if sum(parts) != size or len(parts) != count or min(parts, default=-1) < 0:
        return None
    place = list(node.outputs).index(value)
    start = sum(parts[:place])
    indices = tuple(range(start, start + parts[place]))
    return [Selection(axis, indices)]


def _gather(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    sizes = sizes_of(node.inputs[0]) if node.inputs[0] else None
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


def _expand(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    source, target = sizes_of(node.inputs[0]) if node.inputs[0] else None, sizes_of(value)
    if source is None or target is None or len(source) > len(target):
        return None
    own = (1,) * (len(target) - len(source)) + source
    # an open size has no number to be written down: only the data can have it
    if any(
        not isinstance(m, int) and (m is None or m != n) for m, n in zip(target, own, strict=True)
    ):
        return None
    return [Expansion(target)]


def _tile(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    repeats = graph.array(node.inputs[1]) if len(node.inputs) > 1 else None
    if repeats is None or repeats.min(initial=0) < 0:
        return None
    return [Tiling(tuple(int(count) for count in repeats.reshape(-1)))]


def _rearranged(graph: Rewriter, node: ir.Node, value: ir.Value) -> Sequence[Movement] | None:
    target = sizes_of(value)
    if target is None or (node.op_type == "Pad" and not _repeats(node)):
        return None
    operands = []
    for operand in node.inputs[1:]:
        array = graph.array(operand)
        if array is None:
            return None
        operands.append(tuple(int(number) for number in array.reshape(-1)))
    defaults: dict[str, object] = {"mode": "DCR"} if node.op_type == "DepthToSpace" else {}
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes = tuple(sorted((defaults | given).items()))
    return [Rearrangement(node.op_type, attributes, tuple(operands), target)]


def _repeats(node: ir.Node) -> bool:
    mode = node.attributes.get_string("mode", "constant")
    return mode in ("edge", "reflect", "wrap") and len(node.inputs) == 2


_Reader = Callable[[Rewriter, ir.Node, ir.Value], "Sequence[Movement] | None"]

_READERS: dict[str, _Reader] = {
    "DepthToSpace": _rearranged,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Pad": _rearranged,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _rearranged,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}


def _write(
    graph: Rewriter,
    before: ir.Node,
    op_type: str,
    data: ir.Value,
    operands: Sequence[object],
    attributes: dict[str, object],
    sizes: Sizes | None,
) -> ir.Value:
    constants = [graph.constant(np.asarray(o, np.int64), f"{op_type}_operand") for o in operands]
    return graph.node(
        before, op_type, [data, *constants], attributes, dtype=data.dtype, sizes=sizes
    )


def _write_permutation(
    graph: Rewriter, m: Permutation, data: ir.Value, before: ir.Node, sizes: Sizes | None
) -> ir.Value:
    return _write(graph, before, "Transpose", data, [], {"perm": list(m.order)}, sizes)


def _write_reshaping(
    graph: Rewriter, m: Reshaping, data: ir.Value, before: ir.Node, sizes: Sizes | None
) -> ir.Value:
    return _write(graph, before, "Reshape", data, [m.shape], {}, sizes)


def _write_selection(
    graph: Rewriter, m: Selection, data: ir.Value, before: ir.Node, sizes: Sizes | None
) -> ir.Value:
    return _write(graph, before, "Gather", data, [m.chosen], {"axis": m.axis}, sizes)


def _write_expansion(
    graph: Rewriter, m: Expansion, data: ir.Value, before: ir.Node, sizes: Sizes | None
) -> ir.Value:
    # a size of 1 keeps that of the data
    shape = [size if isinstance(size, int) else 1 for size in m.target]
    return _write(graph, before, "Expand", data, [shape], {}, sizes)


def _write_tiling(
    graph: Rewriter, m: Tiling, data: ir.Value, before: ir.Node, sizes: Sizes | None
) -> ir.Value:
    return _write(graph, before, "Tile", data, [m.repeats], {}, sizes)


def _write_rearrangement(
    graph: Rewriter, m: Rearrangement, data: ir.Value, before: ir.Node, sizes: Sizes | None
) -> ir.Value:
    return _write(graph, before, m.op_type, data, m.operands, dict(m.attributes), sizes)


_WRITERS: dict[type, Callable[..., ir.Value]] = {
    Expansion: _write_expansion,
    Permutation: _write_permutation,
    Rearrangement: _write_rearrangement,
    Reshaping: _write_reshaping,
    Selection: _write_selection,
    Tiling: _write_tiling,
}

"""Data movements, independent of the operators that express them; read from nodes, and written.

A movement M copies one element of its data to each element of its result, whatever their values
are. So ``f(M(x)) = M(f(x))`` bit for bit for every elementwise ``f``, if M is also applied to the
parameters of ``f``, after broadcasting them to the data.

A Transpose that only moves dimensions of size 1 is read as a Reshaping. Pad and Resize are
movements if they repeat elements of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.scopes import input_of
from qgraph.graph.sizes import are_equal, have_equal_counts, stated_shape
from qgraph.numerics import Array
from qgraph.proof.normal.rewriter import Rewriter, Sizes
from qgraph.records import dataclass

Written = tuple[str, Sequence[object], dict[str, object]]
"""The operator, other operands and attributes of a movement."""

_LAID_OUT = 1 << 20
"""Maximum size of a parameter after broadcasting, to find its form after a Reshape."""


@dataclass(frozen=True)
class Permutation:
    """A transposition: dimension ``k`` of the result is dimension ``order[k]`` of the data."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Reshaping:
    """The elements in their order, in the shape ``target``."""

    source: Sizes
    target: Sizes

    @property
    def shape(self) -> list[int] | None:
        """The shape input of a Reshape with this effect; None if there is none."""
        if not have_equal_counts(self.source, self.target):
            return None
        shape: list[int] = []
        for index, size in enumerate(self.target):
            if isinstance(size, int):
                shape.append(size)
            elif index < len(self.source) and self.source[index] == size:
                shape.append(0)
            else:
                shape.append(-1)
        return shape if shape.count(-1) < 2 else None


@dataclass(frozen=True)
class Selection:
    """The elements whose indices along one axis are listed, in the order of the list."""

    axis: int
    chosen: tuple[int, ...]


@dataclass(frozen=True)
class Expansion:
    """The data broadcast to the shape ``target``."""

    target: Sizes


@dataclass(frozen=True)
class Tiling:
    """The data repeated along its axes."""

    repeats: tuple[int, ...]


@dataclass(frozen=True)
class Rearrangement:
    """The movement of an operator that keeps the rank, such as DepthToSpace."""

    op_type: str
    attributes: tuple[tuple[str, Any], ...]
    operands: tuple[tuple[str, tuple[float, ...]] | None, ...]
    target: Sizes


Movement: TypeAlias = Permutation | Reshaping | Selection | Expansion | Tiling | Rearrangement


def result_of(movement: Movement, sizes: Sizes) -> Sizes:
    """Return the sizes of the result of a movement of data of ``sizes``."""
    match movement:
        case Permutation(order):
            return tuple(sizes[axis] for axis in order)
        case Selection(axis, chosen):
            return (*sizes[:axis], len(chosen), *sizes[axis + 1 :])
        case Tiling(repeats):
            return tuple(
                size * count if isinstance(size, int) else size if count == 1 else None
                for size, count in zip(sizes, repeats, strict=True)
            )
    return movement.target


def moved_parameter(movement: Movement, array: Array) -> Array | None:
    """Return a parameter that broadcasts to the result as ``array`` does to the data.

    It has the rank of the data; each dimension is 1 or that of the data. The result has the rank of
    the moved data; None if there is no such form.
    """
    match movement:
        case Permutation(order):
            return array.transpose(order)
        case Reshaping():
            return _reshaped(array, movement.source, movement.target)
        case Selection(axis, chosen):
            return array if array.shape[axis] == 1 else array.take(list(chosen), axis=axis)
        case Expansion(target):
            return array.reshape((1,) * (len(target) - array.ndim) + array.shape)
        case Tiling(repeats):
            sizes = zip(array.shape, repeats, strict=True)
            return np.tile(array, [1 if size == 1 else count for size, count in sizes])
        case Rearrangement():
            return array if array.size == 1 else None


def _reshaped(array: Array, before: Sizes, after: Sizes) -> Array | None:
    if array.size == 1:
        return array.reshape((1,) * len(after))
    shared = 0
    for old, new in zip(before, after, strict=False):
        if old != new or old is None or array.shape[shared] != 1:
            break
        shared += 1
    sizes, target = ([n for n in each[shared:] if isinstance(n, int)] for each in (before, after))
    if len(sizes) + len(target) < len(before) + len(after) - 2 * shared:
        return None
    if math.prod(sizes) > _LAID_OUT:
        return None
    full = np.broadcast_to(array.reshape(array.shape[shared:]), sizes)
    moved = reduced(full.reshape(target))
    return moved.reshape((1,) * shared + moved.shape)


def _written(movement: Movement) -> Written:
    match movement:
        case Permutation(order):
            return "Transpose", [], {"perm": list(order)}
        case Reshaping():
            return "Reshape", [movement.shape], {}
        case Selection(axis, chosen):
            return "Gather", [chosen], {"axis": axis}
        case Expansion(target):  # a size of 1 keeps the size of the data
            return "Expand", [[n if isinstance(n, int) else 1 for n in target]], {}
        case Tiling(repeats):
            return "Tile", [repeats], {}
        case Rearrangement():
            arrays = [each and np.asarray(each[1], each[0]) for each in movement.operands]
            return movement.op_type, arrays, dict(movement.attributes)


def _does_nothing(movement: Movement, sizes: Sizes | None) -> bool:
    match movement:
        case Permutation(order):
            return order == tuple(range(len(order)))
        case Reshaping(source, target):
            return are_equal(source, target)
        case Selection(axis, chosen):
            is_whole = sizes is not None and sizes[axis] == len(chosen)
            return is_whole and chosen == tuple(range(len(chosen)))
        case Expansion(target):
            return sizes is not None and are_equal(sizes, target)
        case Tiling(repeats):
            return set(repeats) <= {1}
    return False


def reduced(array: Array) -> Array:
    """Return ``array`` with size 1 along the axes along which it does not vary."""
    for axis in range(array.ndim):
        if is_constant_along(array, axis):
            array = array.take([0], axis=axis)
    return array


def is_constant_along(array: Array, axis: int) -> bool:
    """Return whether the bits of an array do not vary along an axis."""
    same = np.broadcast_to(array.take([0], axis=axis), array.shape)
    return np.ascontiguousarray(same).tobytes() == np.ascontiguousarray(array).tobytes()


def write(graph: Rewriter, data: ir.Value, before: ir.Node, *movements: Movement) -> ir.Value:
    """Return ``data`` after movements, by existing nodes or new ones before ``before``."""
    for movement in movements:
        if not _does_nothing(movement, stated_shape(data)):
            data = _moved(graph, data, before, movement)
    return data


def _moved(graph: Rewriter, data: ir.Value, before: ir.Node, movement: Movement) -> ir.Value:
    key = "movement", movement, data, graph.is_delicate(before)
    shared = graph.shared(key)
    if shared is not None:
        return shared
    op_type, operands, attributes = _written(movement)
    arrays = [
        o if o is None or isinstance(o, np.ndarray) else np.asarray(o, np.int64) for o in operands
    ]
    constants = [None if a is None else graph.constant(a, f"{op_type}_operand") for a in arrays]
    sizes = stated_shape(data)
    sizes = None if sizes is None else result_of(movement, sizes)
    inputs = [data, *constants]
    result = graph.node(before, op_type, inputs, attributes, dtype=data.dtype, sizes=sizes)
    node = result.producer()
    if node is not None:
        graph.movements[node] = movement
    return graph.share(key, result)


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
        indices = tuple(range(size)[start:end:step])  # clamped as ONNX defines it
        if indices != tuple(range(size)):
            chosen[index] = indices
    return [Selection(index, chosen[index]) for index in sorted(chosen)]


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

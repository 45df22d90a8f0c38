"""Data movements, independent of the operators that express them.

A movement M copies one element of its data to each element of its result, whatever their values
are. So ``f(M(x)) = M(f(x))`` bit for bit for every elementwise ``f``, if M is also applied to the
parameters of ``f``, after broadcasting them to the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
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


def is_written(graph: Rewriter, node: ir.Node) -> bool:
    """Return whether a node was written for a movement."""
    return node in graph.movements


def are_equal(one: Sizes, other: Sizes) -> bool:
    """Return whether two shapes are known to be equal."""
    return one == other and None not in one


def have_equal_counts(one: Sizes, other: Sizes) -> bool:
    """Return whether two shapes are known to have the same number of elements."""
    if None in one or None in other or 0 in one or 0 in other:
        return False
    names = [Counter(size for size in sizes if isinstance(size, str)) for sizes in (one, other)]
    return names[0] == names[1] and static_count(one) == static_count(other)


def static_count(sizes: Sizes) -> int:
    """Return the product of the sizes that are numbers."""
    return math.prod(size for size in sizes if isinstance(size, int))


def has_elements(sizes: Sizes, axes: Sequence[int]) -> bool:
    """Return whether dimensions are known not to be empty; a symbolic dimension may be 0."""
    return all(isinstance(size := sizes[axis], int) and size > 0 for axis in axes)


def is_single(sizes: Sizes | None) -> bool:
    """Return whether a shape is known to have one element."""
    return sizes is not None and all(size == 1 for size in sizes)

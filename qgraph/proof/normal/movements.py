"""Data movements, independent of the operators that express them.

A movement M copies one element of its data to each element of its result, whatever their values
are. So ``f(M(x)) = M(f(x))`` bit for bit for every elementwise ``f``, if M is also applied to the
parameters of ``f``, after broadcasting them to the data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.numerics import Array
from qgraph.proof.normal.rewriter import Rewriter, Sizes

Written = tuple[str, Sequence[object], dict[str, object]]
"""The operator, other operands and attributes of a movement."""

_LAID_OUT = 1 << 20
"""Maximum size of a parameter after broadcasting, to find its form after a Reshape."""


class Movement(ABC):
    """A movement of data of a known rank. By default, the result has the shape ``target``."""

    target: Sizes

    def result(self, sizes: Sizes) -> Sizes:
        """Return the sizes of the result for data of ``sizes``."""
        return self.target

    @abstractmethod
    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return a parameter that broadcasts to the result as ``array`` does to data of ``sizes``.

        It has the rank of the data; each dimension is 1 or that of the data. The result has the
        rank of the moved data; None if there is no such form.
        """

    @abstractmethod
    def written(self) -> Written:
        """Return the operator that does the movement."""

    def does_nothing(self, sizes: Sizes | None) -> bool:
        """Return whether data of ``sizes`` stay as they are."""
        return False


@dataclass(frozen=True)
class Permutation(Movement):
    """A transposition: dimension ``k`` of the result is dimension ``order[k]`` of the data."""

    order: tuple[int, ...]

    def result(self, sizes: Sizes) -> Sizes:
        """Return the sizes of the result."""
        return tuple(sizes[axis] for axis in self.order)

    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return the parameter for the result."""
        return array.transpose(self.order)

    def after(self, first: Permutation) -> Permutation:
        """Return the permutation that equals ``first`` followed by this one."""
        return Permutation(tuple(first.order[axis] for axis in self.order))

    def written(self) -> Written:
        """Return the operator that does the movement."""
        return "Transpose", [], {"perm": list(self.order)}

    def does_nothing(self, sizes: Sizes | None) -> bool:
        """Return whether data of ``sizes`` stay as they are."""
        return self.order == tuple(range(len(self.order)))


@dataclass(frozen=True)
class Reshaping(Movement):
    """The elements in their order, in the shape ``target``."""

    source: Sizes
    target: Sizes

    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return the parameter for the result."""
        if array.size == 1:
            return array.reshape((1,) * len(self.target))
        shared = 0
        for old, new in zip(self.source, self.target, strict=False):
            if old != new or old is None or array.shape[shared] != 1:
                break
            shared += 1
        source, target = self.source[shared:], self.target[shared:]
        numbers = [size for size in source if isinstance(size, int)]
        if len(numbers) < len(source) or any(not isinstance(size, int) for size in target):
            return None
        if math.prod(numbers) > _LAID_OUT:
            return None
        full = np.broadcast_to(array.reshape(array.shape[shared:]), numbers)
        moved = full.reshape([int(size) for size in target if isinstance(size, int)])
        return reduced(moved).reshape((1,) * shared + reduced(moved).shape)

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

    def written(self) -> Written:
        """Return the operator that does the movement."""
        return "Reshape", [self.shape], {}

    def does_nothing(self, sizes: Sizes | None) -> bool:
        """Return whether data of ``sizes`` stay as they are."""
        return are_equal(self.source, self.target)


@dataclass(frozen=True)
class Selection(Movement):
    """The elements whose indices along one axis are listed, in the order of the list."""

    axis: int
    chosen: tuple[int, ...]

    def result(self, sizes: Sizes) -> Sizes:
        """Return the sizes of the result."""
        return (*sizes[: self.axis], len(self.chosen), *sizes[self.axis + 1 :])

    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return the parameter for the result."""
        if array.shape[self.axis] == 1:
            return array
        return array.take(list(self.chosen), axis=self.axis)

    def after(self, first: Selection) -> Selection:
        """Return the selection that equals ``first`` followed by this one, along the same axis."""
        return Selection(self.axis, tuple(first.chosen[index] for index in self.chosen))

    def written(self) -> Written:
        """Return the operator that does the movement."""
        return "Gather", [self.chosen], {"axis": self.axis}

    def does_nothing(self, sizes: Sizes | None) -> bool:
        """Return whether data of ``sizes`` stay as they are."""
        return (
            sizes is not None
            and sizes[self.axis] == len(self.chosen)
            and (self.chosen == tuple(range(len(self.chosen))))
        )


@dataclass(frozen=True)
class Expansion(Movement):
    """The data broadcast to the shape ``target``."""

    target: Sizes

    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return the parameter for the result."""
        return array.reshape((1,) * (len(self.target) - array.ndim) + array.shape)

    def written(self) -> Written:
        """Return the operator that does the movement."""
        return (
            "Expand",
            [[n if isinstance(n, int) else 1 for n in self.target]],
            {},
        )  # a size of 1 keeps the size of the data

    def does_nothing(self, sizes: Sizes | None) -> bool:
        """Return whether data of ``sizes`` stay as they are."""
        return sizes is not None and are_equal(sizes, self.target)


@dataclass(frozen=True)
class Tiling(Movement):
    """The data repeated along its axes."""

    repeats: tuple[int, ...]

    def result(self, sizes: Sizes) -> Sizes:
        """Return the sizes of the result."""
        return tuple(
            size * count if isinstance(size, int) else size if count == 1 else None
            for size, count in zip(sizes, self.repeats, strict=True)
        )

    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return the parameter for the result."""
        counts = [1 if size == 1 else n for size, n in zip(array.shape, self.repeats, strict=True)]
        return np.tile(array, counts)

    def written(self) -> Written:
        """Return the operator that does the movement."""
        return "Tile", [self.repeats], {}

    def does_nothing(self, sizes: Sizes | None) -> bool:
        """Return whether data of ``sizes`` stay as they are."""
        return set(self.repeats) <= {1}


@dataclass(frozen=True)
class Rearrangement(Movement):
    """The movement of an operator that keeps the rank, such as DepthToSpace."""

    op_type: str
    attributes: tuple[tuple[str, Any], ...]
    operands: tuple[tuple[str, tuple[float, ...]] | None, ...]
    target: Sizes

    def parameter(self, array: Array, sizes: Sizes) -> Array | None:
        """Return the parameter for the result."""
        return array if array.size == 1 else None

    def written(self) -> Written:
        """Return the operator that does the movement."""
        arrays = [each and np.asarray(each[1], each[0]) for each in self.operands]
        return self.op_type, arrays, dict(self.attributes)


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


def write(graph: Rewriter, movement: Movement, data: ir.Value, before: ir.Node) -> ir.Value:
    """Return ``data`` after ``movement``, from an existing node or a new one before ``before``."""
    sizes = stated_shape(data)
    if movement.does_nothing(sizes):
        return data
    key = "movement", movement, data, graph.is_delicate(before)
    shared = graph.shared(key)
    if shared is not None:
        return shared
    op_type, operands, attributes = movement.written()
    arrays = [
        o if o is None or isinstance(o, np.ndarray) else np.asarray(o, np.int64) for o in operands
    ]
    constants = [None if a is None else graph.constant(a, f"{op_type}_operand") for a in arrays]
    result = graph.node(
        before,
        op_type,
        [data, *constants],
        attributes,
        dtype=data.dtype,
        sizes=None if sizes is None else movement.result(sizes),
    )
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

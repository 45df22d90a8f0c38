"""Sizes of values: those that are fixed, and shapes as a model states them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import onnx_ir as ir


def static(dim: int | ir.SymbolicDim | None) -> int | None:
    """Return the size of a dimension; None if it is dynamic, which some exporters write as -1."""
    return dim if isinstance(dim, int) and dim >= 0 else None


def fixed_sizes(value: ir.Value) -> tuple[int | None, ...] | None:
    """Return the sizes of a value, None for a dynamic one; None if its rank is not known."""
    return None if value.shape is None else tuple(map(static, value.shape.dims))


def fits(shape: Sequence[int | None] | None, sizes: Sequence[int | None] | None) -> bool:
    """Return whether an array may have both shapes: sizes that both fix are equal."""
    if shape is None or sizes is None:
        return True
    pairs = zip(shape, sizes, strict=False)
    return len(shape) == len(sizes) and all(a == b or None in (a, b) for a, b in pairs)


StatedShape: TypeAlias = tuple[int | str | None, ...]
"""For each dimension a size, a name, or None if it has neither."""


def stated_shape(value: ir.Value) -> StatedShape | None:
    """Return the shape that a value states."""
    if value.shape is None:
        return None
    dims = value.shape.dims
    return tuple(static(size) if isinstance(size, int) else size.value for size in dims)


def are_equal(one: StatedShape, other: StatedShape) -> bool:
    """Return whether two shapes are known to be equal."""
    return one == other and None not in one


def have_equal_counts(one: StatedShape, other: StatedShape) -> bool:
    """Return whether two shapes are known to have the same number of elements."""
    if None in one or None in other or 0 in one or 0 in other:
        return False
    names = [Counter(size for size in sizes if isinstance(size, str)) for sizes in (one, other)]
    return names[0] == names[1] and static_count(one) == static_count(other)


def static_count(sizes: Iterable[object]) -> int:
    """Return the product of the sizes that are numbers."""
    return math.prod(size for size in sizes if isinstance(size, int))


def has_elements(sizes: StatedShape, axes: Sequence[int]) -> bool:
    """Return whether dimensions are known not to be empty; a symbolic dimension may be 0."""
    return all(isinstance(size := sizes[axis], int) and size > 0 for axis in axes)


def is_single(sizes: StatedShape | None) -> bool:
    """Return whether a shape is known to have one element."""
    return sizes is not None and all(size == 1 for size in sizes)

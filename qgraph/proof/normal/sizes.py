"""Sizes of values in models that are rewritten: numbers, names of dimensions, or unknown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import onnx_ir as ir

Size: TypeAlias = int | str | None
"""A number, the name of a symbolic dimension, or None if unknown."""

Sizes: TypeAlias = tuple[Size, ...]


def sizes_of(value: ir.Value) -> Sizes | None:
    """Return the sizes of a value's dimensions; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(
        int(dim) if isinstance(dim, int) else getattr(dim, "value", None)
        for dim in value.shape.dims
    )


def set_sizes(value: ir.Value, sizes: Sizes | None) -> None:
    """Set the shape of a new value."""
    value.shape = None if sizes is None else ir.Shape(list(sizes))


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

"""What is known of a value: its element type, its shape, and its elements if they are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.inference.dimensions import INT64, Dim, Size, bounds

Shape: TypeAlias = tuple[Dim, ...]

Items: TypeAlias = npt.NDArray[Any]
"""An array of objects: each element is a Python number, a :class:`Size`, or None if unknown."""

MOST_ITEMS = 1024
"""The elements of larger tensors are not followed."""

_INTEGERS = {
    kind: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name == "INT" else (0, (1 << bits) - 1)
    for bits in (8, 16, 32, 64)
    for name in ("INT", "UINT")
    for kind in (ir.DataType[f"{name}{bits}"],)
}

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Floating-point types whose elements are followed: NumPy computes them by IEEE 754."""


class Fact:
    """What holds of a value whenever the nodes that compute it succeed.

    Attributes:
        dtype: the element type, None if unknown.
        shape: its dimensions, None if not even their number is known.
    """

    __slots__ = ("_items", "_read", "dtype", "shape")

    def __init__(
        self,
        dtype: ir.DataType | None = None,
        shape: Sequence[Dim] | None = None,
        items: Items | None = None,
        read: Callable[[], Items | None] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)
        self._items = items
        self._read = read

    @property
    def items(self) -> Items | None:
        """The elements, in the shape of the value; None where they are not followed."""
        if self._read is not None:
            self._items, self._read = self._read(), None
        return self._items

    @property
    def rank(self) -> int | None:
        """The number of dimensions."""
        return None if self.shape is None else len(self.shape)

    @property
    def sizes(self) -> list[int | None] | None:
        """The shape with None for each dimension that is not a plain number."""
        if self.shape is None:
            return None
        return [size if isinstance(size, int) else None for size in self.shape]

    @property
    def array(self) -> npt.NDArray[Any] | None:
        """The elements as an array, None unless all of them are plain numbers."""
        items = self.items
        if items is None or self.dtype is None:
            return None
        if any(item is None or isinstance(item, Size) for item in items.flat):
            return None
        return np.array(items.tolist(), self.dtype.numpy()).reshape(items.shape)

    def __repr__(self) -> str:
        kind = "?" if self.dtype is None else self.dtype.name
        shape = "[...]" if self.shape is None else f"[{', '.join(map(_shown, self.shape))}]"
        items = self.items
        return f"{kind}{shape}" + ("" if items is None else f" = {items.tolist()}")


UNKNOWN = Fact()


def of_items(dtype: ir.DataType | None, items: Items) -> Fact:
    """Return the fact of a value with these elements."""
    return Fact(dtype, items.shape, items if items.size <= MOST_ITEMS else None)


def of_tensor(tensor: ir.TensorProtocol) -> Fact:
    """Return the fact of a constant; its elements are read when they are asked for."""
    shape = tuple(int(size) for size in tensor.shape.numpy())
    is_followed = tensor.dtype in _INTEGERS or tensor.dtype in {*FLOATS, ir.DataType.BOOL}
    if not is_followed or tensor.size > MOST_ITEMS:
        return Fact(tensor.dtype, shape)
    return Fact(tensor.dtype, shape, read=lambda: _items_of(tensor))


def _items_of(tensor: ir.TensorProtocol) -> Items | None:
    try:
        return tensor.numpy().astype(object)
    except (OSError, ValueError, TypeError):
        return None  # the file cannot be read, which is reported where it is needed


def as_items(elements: Sequence[Any], shape: Sequence[int] | None = None) -> Items:
    """Return elements as an array of objects, one-dimensional unless a shape is given."""
    items = np.empty(len(elements), object)
    items[:] = elements
    return items if shape is None else items.reshape(tuple(shape))


def joined(a: Fact, b: Fact) -> Fact:
    """Return what holds of a value that is one of two."""
    dtype = a.dtype if a.dtype == b.dtype else None
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))
    items = a.items
    other = b.items
    if dtype is None or items is None or other is None or items.shape != other.shape:
        return Fact(dtype, shape)
    pairs = zip(items.flat, other.flat, strict=True)
    same = [m if repr(m) == repr(n) else None for m, n in pairs]
    return Fact(dtype, shape, as_items(same, items.shape))


def range_of(dtype: ir.DataType | None) -> tuple[int, int] | None:
    """Return the least and the greatest number of an integer type, None for other types."""
    return None if dtype is None else _INTEGERS.get(dtype)


def wrapped(number: Dim, dtype: ir.DataType | None) -> Dim:
    """Return a result of integer arithmetic in its type: numbers wrap around.

    A polynomial is kept where it cannot leave int64, and is unknown elsewhere.
    """
    limits = range_of(dtype)
    if number is None or limits is None:
        return None
    low, high = limits
    if isinstance(number, int):
        return (number - low) % (high - low + 1) + low
    least, most = bounds(number)
    return number if dtype is ir.DataType.INT64 and INT64[0] <= least <= most <= INT64[1] else None


def _shown(dim: Dim) -> str:
    return "?" if dim is None else str(dim)

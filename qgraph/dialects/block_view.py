"""Parameters shared by blocks of elements, for operators whose parameters only broadcast.

Where the blocks divide an axis without a rest, the data is seen as [.., blocks, block size, ..], so
that no parameter has to be repeated for each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.graph.edit import Draft, Operand

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class BlockView:
    """The shape in which data is seen while parameters are applied.

    Attributes:
        data: shape of the data.
        axis: of the data, which becomes two; None where it stays as it is.
        size: elements in a block along ``axis``.
        fits: whether no parameter enlarges the data, as far as its shape is known.
    """

    data: Shape
    axis: int | None = None
    size: int = 1
    fits: bool = False

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of the view."""
        axis, sizes = self.axis or 0, [size or 0 for size in self.data]
        return (*sizes[:axis], sizes[axis] // self.size, self.size, *sizes[axis + 1 :])

    def enter(self, draft: Draft, x: Operand) -> Operand:
        """Return the data in the shape of the view."""
        return x if self.axis is None else _reshape(draft, x, self.seen)

    def leave(self, draft: Draft, y: Operand) -> Operand:
        """Return data of the view in its own shape."""
        if self.axis is None:
            return y
        return _reshape(draft, y, tuple(size or 0 for size in self.data))

    def lay(self, parameter: Array) -> Array:
        """Return a parameter that broadcasts to the data so that it broadcasts to the view."""
        plain = squeezed(parameter) if self.fits else parameter
        if self.axis is None:
            return plain
        if plain.size == 1:
            return plain.reshape(())
        plain = plain.reshape((1,) * (len(self.data) - plain.ndim) + plain.shape)
        if plain.shape[self.axis] != 1:
            plain = plain[(slice(None),) * self.axis + (slice(None, None, self.size),)]
        return np.ascontiguousarray(np.expand_dims(plain, self.axis + 1))


def view_of(shape: Shape, parameters: Sequence[Array]) -> BlockView:
    """Return the view in which no entry of ``parameters`` is repeated along a second axis.

    Args:
        shape: of the data, None for a dimension that is not known.
        parameters: arrays that broadcast to the data.
    """
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    fits = _fits(joint, shape)
    if not fits or None in shape:
        return BlockView(shape, fits=fits)
    arrays = [squeezed(parameter) for parameter in parameters]
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    varying = [axis for axis, size in enumerate(joint) if size != 1]
    for axis in varying if len(varying) > 1 and len(joint) == len(shape) else []:
        size = _run(arrays, axis - len(joint), joint[axis])
        if size > 1:
            return BlockView(shape, axis, size, fits)
    return BlockView(shape, fits=fits)


def enlarges(parameters: Sequence[Array], shape: Shape) -> bool:
    """Return whether ``parameters`` surely make data of ``shape`` larger by broadcasting."""
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    own = shape[len(shape) - len(joint) :]
    return len(joint) > len(shape) or any(
        length is not None and size not in (1, length)
        for size, length in zip(joint, own, strict=True)
    )


def squeezed(parameter: Array) -> Array:
    """Return ``parameter`` with a single entry along each axis on which it does not vary."""
    for axis, size in enumerate(parameter.shape):
        first = parameter[(slice(None),) * axis + (slice(1),)]
        if size > 1 and (parameter == first).all():
            parameter = first
    return parameter


def _fits(joint: tuple[int, ...], shape: Shape) -> bool:
    """Return whether parameters of shape ``joint`` leave the data as large as it is."""
    own = shape[len(shape) - len(joint) :]
    return len(joint) <= len(shape) and all(
        size in (1, length) for size, length in zip(joint, own, strict=True)
    )


def _run(arrays: Sequence[Array], axis: int, length: int) -> int:
    """Return the largest number of entries that divides ``length`` and all runs of equal ones."""
    size = length
    for array in arrays:
        if array.ndim < -axis or array.shape[axis] == 1:
            continue
        lines = np.moveaxis(array, axis, 0).reshape(length, -1)
        changes = np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1
        size = math.gcd(size, *changes.tolist())
    return size


def _reshape(draft: Draft, x: Operand, sizes: tuple[int, ...]) -> Operand:
    if isinstance(x, np.ndarray) or x in draft.constants:
        known = x if isinstance(x, np.ndarray) else draft.constants[x]
        return draft.constant(known.reshape(sizes), "weight")
    shape = draft.constant(np.array(sizes, np.int64), "shape")
    return draft.node("Reshape", [x, shape], dtype=x.dtype)

"""Scales and zero points per tensor, per axis or per block, made broadcastable to the data.

A :class:`BlockView` of the data splits an axis into blocks, so that parameters per block broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array
from qgraph.numerics.values import narrowed
from qgraph.records import dataclass

Scalar = TypeVar("Scalar", bound=np.generic)
Shape = tuple[int | None, ...]

_FEW = 1 << 14
"""Elements up to which repeating a parameter is as good as any other way."""


def align(
    param: npt.NDArray[Scalar],
    x_shape: Sequence[int],
    axis: int,
    block_size: int = 0,
    *,
    expands: bool = True,
) -> npt.NDArray[Scalar]:
    """Return ``param`` in an equivalent shape that broadcasts to ``x_shape``.

    one element      -> []
    [D], per axis    -> [1, .., D, .., 1] with D at ``axis``
    blocked          -> each entry repeated ``block_size`` times along ``axis``, cut to the data

    Args:
        param: scale or zero point.
        x_shape: shape of the data.
        axis: of the data; negative counts from the end. Ignored for one element.
        block_size: elements per entry along ``axis``; 0 when not blocked.
        expands: whether entries of blocks are repeated; otherwise they are only checked.

    Raises: ValueError if the shapes do not belong together.
    Source: ONNX QuantizeLinear, version 21.
    """
    if param.size == 1:
        return param.reshape(())
    rank = len(x_shape)
    if not -rank <= axis < rank:
        msg = (
            f"axis {axis} does not exist in data of shape {list(x_shape)}; "
            f"expected {-rank} to {rank - 1}"
        )
        raise ValueError(msg)
    axis %= rank
    length = x_shape[axis]
    if block_size > 0:
        expected = [*x_shape]
        expected[axis] = -(-length // block_size)
        _check_shape(param, expected, f"blocks of {block_size} along axis {axis}", x_shape)
        if not expands:
            return param
        bits = np.ascontiguousarray(param).view(f"u{param.itemsize}")
        if (bits == bits.flat[0]).all():
            return np.broadcast_to(param.reshape(-1)[:1], x_shape)
        inside = (slice(None),) * axis + (slice(length),)
        return np.repeat(param, block_size, axis=axis)[inside]
    _check_shape(param, [length], f"one entry per index of axis {axis}", x_shape)
    return param.reshape([length if i == axis else 1 for i in range(rank)])


@dataclass(frozen=True)
class Repeats:
    """How parameters of blocks of ``block_size`` elements lie along an axis of data."""

    sizes: tuple[int, ...]
    axis: int
    block_size: int

    def spread(self, param: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return a parameter so that it broadcasts to the data, see :func:`align`."""
        return align(param, self.sizes, self.axis, self.block_size)


def expect_one_shape(scale: Array, zero_point: Array) -> None:
    """Refuse a zero point of another shape than its scale, unless both have one element.

    Raises: ValueError.
    """
    if zero_point.shape != scale.shape and (zero_point.size, scale.size) != (1, 1):
        raise ValueError(
            f"its zero point has shape {list(zero_point.shape)}, expected the shape of its scale, "
            f"{list(scale.shape)}. Expand one of them"
        )


def align_views(
    params: Sequence[Array], x_shape: Sequence[int], axis: int, block_size: int = 0
) -> tuple[list[int], list[Array]]:
    """Return a shape for the data, and ``params`` in shapes that broadcast to it.

    Where blocks divide the axis without a rest it becomes two, [blocks, block_size], and no entry
    must be repeated. Otherwise the shape is that of the data. For arguments and errors see
    :func:`align`.
    """
    rank = len(x_shape)
    many = block_size > 0 and -rank <= axis < rank and math.prod(x_shape) > _FEW
    if many and x_shape[axis] % block_size == 0 and any(param.size != 1 for param in params):
        axis %= rank
        views = [align(param, x_shape, axis, block_size, expands=False) for param in params]
        views = [np.expand_dims(view, axis + 1) if view.ndim else view for view in views]
        count = x_shape[axis] // block_size
        return [*x_shape[:axis], count, block_size, *x_shape[axis + 1 :]], views
    return [*x_shape], [align(param, x_shape, axis, block_size) for param in params]


def blocks_of(scale_shape: Sequence[int], x_shape: Sequence[int]) -> tuple[int, int] | None:
    """Return axis and block size if a parameter of ``scale_shape`` divides exactly one axis.

    The block size is the smallest that gives this number of blocks; a ragged last block is allowed.
    None for another rank, for a second axis that differs, and where no axis is reduced.
    """
    if len(scale_shape) != len(x_shape):
        return None
    reduced = [i for i, (s, d) in enumerate(zip(scale_shape, x_shape, strict=True)) if s != d]
    if len(reduced) != 1:
        return None
    axis = reduced[0]
    count, length = scale_shape[axis], x_shape[axis]
    if not 0 < count < length:
        return None
    size = -(-length // count)
    return (axis, size) if -(-length // size) == count else None


def run_length(params: Sequence[Array], axis: int, length: int) -> int:
    """Return the largest block size along a negative axis such that no parameter varies in a block.

    The last block may be smaller. Parameters broadcast together; those that do not vary along the
    axis, of size ``length``, have 1 there.
    """
    changes: list[int] = []
    for param in params:
        if param.ndim >= -axis and param.shape[axis] != 1:
            lines = np.moveaxis(param, axis, 0).reshape(length, -1)
            changes += (np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1).tolist()
    return math.gcd(*changes) or length


def stretch(params: Sequence[Array], axis: int, repeats: Repeats | None = None) -> int:
    """Return the block size along an axis: the largest step at which a parameter changes.

    ``params`` have one shape. With ``repeats``, the block size counts in elements of the data.
    """
    size, each = int(params[0].shape[axis]), 1
    if repeats is not None and axis == repeats.axis and size > 1:
        size, each = repeats.sizes[axis], repeats.block_size
    for param in params:
        if param.strides[axis]:
            moved = np.moveaxis(param, axis, 0)
            changes = (moved[1:] != moved[:-1]).any(axis=tuple(range(1, param.ndim)))
            size = math.gcd(size, *((np.flatnonzero(changes) + 1) * each).tolist())
    return size


def fits(shape: Sequence[int], x_shape: Sequence[int | None]) -> bool:
    """Return whether a parameter of ``shape`` broadcasts to the data without enlarging it.

    Where a size of the data is not known, None, only 1 is sure to.
    """
    return len(shape) <= len(x_shape) and all(
        size in (1, length)
        for size, length in zip(reversed(shape), reversed(x_shape), strict=False)
    )


@dataclass(frozen=True)
class BlockView:
    """The shape to which data is reshaped while parameters are applied.

    Attributes:
        data: shape of the data.
        axis: axis of the data that is split in two; None if there is none.
        size: elements in a block along ``axis``.
        entry: elements along ``axis`` for each entry of a parameter.
        fits: whether no parameter enlarges the data, as far as its shape is known.
    """

    data: Shape
    axis: int | None = None
    size: int = 1
    fits: bool = False
    entry: int = 1

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of the view."""
        axis, sizes = self.axis or 0, [size or 0 for size in self.data]
        return (*sizes[:axis], sizes[axis] // self.size, self.size, *sizes[axis + 1 :])

    def lay(self, parameter: Array) -> Array:
        """Reshape a parameter that broadcasts to the data, so that it broadcasts to the view."""
        plain = narrowed(parameter) if self.fits else parameter
        if self.axis is None:
            return plain
        if plain.size == 1:
            return plain.reshape(())
        plain = plain.reshape((1,) * (len(self.data) - plain.ndim) + plain.shape)
        if plain.shape[self.axis] != 1:
            step = self.size // self.entry
            plain = plain[(slice(None),) * self.axis + (slice(None, None, step),)]
        return np.ascontiguousarray(np.expand_dims(plain, self.axis + 1))


def view_of(shape: Shape, parameters: Sequence[Array]) -> BlockView:
    """Return the view in which no entry of ``parameters`` is repeated along a second axis.

    The parameters broadcast to data of a shape with None for an unknown dimension.
    """
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    is_inside = fits(joint, shape)
    if not is_inside or None in shape:
        return BlockView(shape, fits=is_inside)
    arrays = [narrowed(parameter) for parameter in parameters]
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    varying = [axis for axis, size in enumerate(joint) if size != 1]
    for axis in varying if len(varying) > 1 and len(joint) == len(shape) else []:
        size = math.gcd(joint[axis], run_length(arrays, axis - len(joint), joint[axis]))
        if size > 1:
            return BlockView(shape, axis, size, is_inside)
    return BlockView(shape, fits=is_inside)


def view_of_blocks(parameters: Sequence[Array], repeats: Repeats) -> BlockView | None:
    """Return the same view as :func:`view_of`, for parameters with one entry per block.

    None if the last block is incomplete, or the view does not split the same axis into
    """
    arrays, shape = [narrowed(parameter) for parameter in parameters], repeats.sizes
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    count = shape[repeats.axis] // repeats.block_size
    if len(joint) < len(shape) or joint[repeats.axis] != count:
        return None
    whole = [*joint[: repeats.axis], shape[repeats.axis], *joint[repeats.axis + 1 :]]
    if shape[repeats.axis] % repeats.block_size or not fits(whole, shape):
        return None
    for axis in (axis for axis, size in enumerate(whole) if size != 1):
        size = run_length(arrays, axis - len(joint), joint[axis])
        size = math.gcd(joint[axis], size)
        if axis == repeats.axis and sum(size != 1 for size in joint) > 1:
            each = repeats.block_size
            return BlockView(shape, axis, size * each, fits=True, entry=each)
        if size > 1:
            return None
    return None


def enlarges(parameters: Sequence[Array], shape: Shape) -> bool:
    """Return whether ``parameters`` certainly enlarge data of ``shape`` by broadcasting."""
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    own = shape[len(shape) - len(joint) :]
    return len(joint) > len(shape) or any(
        length is not None and size not in (1, length)
        for size, length in zip(joint, own, strict=True)
    )


def _check_shape(
    param: npt.NDArray[Scalar], expected: Sequence[int], meaning: str, x_shape: Sequence[int]
) -> None:
    if list(param.shape) != list(expected):
        msg = (
            f"a parameter of shape {list(param.shape)} does not fit data of shape {list(x_shape)}: "
            f"{meaning} needs shape {list(expected)}; reshape it or correct the axis or block size"
        )
        raise ValueError(msg)

"""Scales and zero points per tensor, per axis or per block, made broadcastable to the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array
from qgraph.records import dataclass

Scalar = TypeVar("Scalar", bound=np.generic)

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


def _check_shape(
    param: npt.NDArray[Scalar], expected: Sequence[int], meaning: str, x_shape: Sequence[int]
) -> None:
    if list(param.shape) != list(expected):
        msg = (
            f"a parameter of shape {list(param.shape)} does not fit data of shape {list(x_shape)}: "
            f"{meaning} needs shape {list(expected)}; reshape it or correct the axis or block size"
        )
        raise ValueError(msg)

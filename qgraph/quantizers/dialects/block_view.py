"""Views of data that split an axis into blocks, so that parameters per block broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.edit import Draft, Operand
from qgraph.numerics import Array, blocks
from qgraph.numerics.values import narrowed
from qgraph.records import dataclass

Shape = tuple[int | None, ...]


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

    def enter(self, draft: Draft, x: Operand) -> Operand:
        """Return the data in the shape of the view."""
        return x if self.axis is None else _reshape(draft, x, self.seen)

    def leave(self, draft: Draft, y: Operand) -> Operand:
        """Return data of the view in its own shape."""
        if self.axis is None:
            return y
        return _reshape(draft, y, tuple(size or 0 for size in self.data))

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
    fits = blocks.fits(joint, shape)
    if not fits or None in shape:
        return BlockView(shape, fits=fits)
    arrays = [narrowed(parameter) for parameter in parameters]
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    varying = [axis for axis, size in enumerate(joint) if size != 1]
    for axis in varying if len(varying) > 1 and len(joint) == len(shape) else []:
        size = math.gcd(joint[axis], blocks.run_length(arrays, axis - len(joint), joint[axis]))
        if size > 1:
            return BlockView(shape, axis, size, fits)
    return BlockView(shape, fits=fits)


def view_of_blocks(parameters: Sequence[Array], repeats: blocks.Repeats) -> BlockView | None:
    """Return the same view as :func:`view_of`, for parameters with one entry per block.

    None if the last block is incomplete, or the view does not split the same axis into blocks.
    """
    arrays, shape = [narrowed(parameter) for parameter in parameters], repeats.sizes
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    count = shape[repeats.axis] // repeats.block_size
    if len(joint) < len(shape) or joint[repeats.axis] != count:
        return None
    whole = [*joint[: repeats.axis], shape[repeats.axis], *joint[repeats.axis + 1 :]]
    if shape[repeats.axis] % repeats.block_size or not blocks.fits(whole, shape):
        return None
    for axis in (axis for axis, size in enumerate(whole) if size != 1):
        size = blocks.run_length(arrays, axis - len(joint), joint[axis])
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


def _reshape(draft: Draft, x: Operand, sizes: tuple[int, ...]) -> Operand:
    if isinstance(x, ir.Value) and isinstance(tensor := draft.tensors.get(x), DeferredTensor):
        seen = DeferredTensor(tensor.job, tensor.place, tensor.dtype, sizes)
        return draft.stored(seen, "weight")
    if isinstance(x, np.ndarray) or x in draft.constants:
        array = x if isinstance(x, np.ndarray) else draft.constants[x]
        return draft.constant(array.reshape(sizes), "weight")
    shape = draft.constant(np.array(sizes, np.int64), "shape")
    return draft.node("Reshape", [x, shape], dtype=x.dtype)

"""Granularity of a scale (per tensor, per axis, per block), as QuantizeLinear expresses it.

A constant may be quantized in another shape than that in which it is used: two Reshapes make blocks
a separate axis. And a scale may have one entry per element. Both are blocks of DequantizeLinear::

    weight [4, 64] -> Reshape [4, 2, 32] -> Quant, scale [4, 2, 1] -> Reshape [4, 64]
    codes  [4, 64] -> DequantizeLinear, scale [4, 2], axis 1, block size 32
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qgraph.numerics import Array, blocks
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import arrays_of
from qgraph.quantizers.weights.piecewise import Parameter, reshaped
from qgraph.records import dataclass, replace

Shape = tuple[int, ...]
OpenShape = tuple[int | None, ...]


@dataclass(frozen=True)
class Layout:
    """Layout of a parameter along the data.

    Attributes:
        axis: None per tensor; else the axis along which it varies, or in which the blocks lie.
        block_size: elements that share an entry along ``axis``; 0 without blocks.
        shape: shape of scale and zero point in QuantizeLinear.
    """

    axis: int | None
    block_size: int
    shape: Shape

    def lay(self, parameter: Array) -> Array:
        """Return ``parameter``, which broadcasts to the data, in the shape of this layout."""
        if self.block_size:
            return np.asarray(np.broadcast_to(parameter, self.shape), order="C")
        if self.axis is None:
            return parameter.reshape(())
        return np.array(np.broadcast_to(parameter.reshape(-1), self.shape))

    @property
    def attributes(self) -> dict[str, int]:
        """Attributes of QuantizeLinear and DequantizeLinear."""
        axis = {} if self.axis is None else {"axis": self.axis}
        return axis | ({"block_size": self.block_size} if self.block_size else {})

    @property
    def opset(self) -> int:
        """First opset in which QuantizeLinear supports this granularity."""
        return 21 if self.block_size else 10 if self.axis is None else 13


def layout_of(data: OpenShape | None, *parameters: Array) -> Layout | None:
    """Return the common layout of all ``parameters``, or None if Q/DQ cannot express it.

    The parameters broadcast to the data. If the shape of the data is None, its rank is unknown, and
    the axis is counted from the end.
    """
    if not any(parameter.shape for parameter in parameters):
        return Layout(None, 0, ())
    joint = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    varying = [axis for axis, size in enumerate(joint) if size != 1]
    if not varying:
        return Layout(None, 0, ())
    offset = -len(joint) if data is None else len(data) - len(joint)
    if data is not None and offset < 0:
        return None
    if len(varying) == 1 and (data is None or joint[varying[0]] == data[offset + varying[0]]):
        return Layout(offset + varying[0], 0, (joint[varying[0]],))
    sizes = [size for size in data or () if size is not None]
    blocked = None if data is None or len(sizes) < len(data) else blocks.blocks_of(joint, sizes)
    return None if blocked is None else Layout(*blocked, joint)


@dataclass(frozen=True, eq=False)
class Placed:
    """Parameters of a quantizer along its codes.

    Attributes:
        arrays: broadcast to the codes, or have one entry per block.
        shape: of the codes.
        blocks: the layout of those that vary, if it is one of blocks.
    """

    arrays: Sequence[Array]
    shape: Shape
    blocks: Layout | None

    def layout(self, *more: Array) -> Layout | None:
        """Return the layout of all parameters, and of ``more`` derived parameters."""
        arrays = (*self.arrays, *more)
        return layout_of(self.shape, *arrays) if self.blocks is None else self.blocks

    def parameter(self, array: Array) -> Parameter:
        """Return a parameter that can be cut into pieces."""
        if array.size == 1 or self.blocks is None:
            return Parameter(array, self.shape)
        return Parameter(array, self.shape, self.blocks.axis, self.blocks.block_size)

    def spread(self, array: Array) -> Array:
        """Expand a parameter so that it broadcasts to the codes."""
        if array.size == 1 or self.blocks is None:
            return array
        return self.parameter(array).at([0] * len(self.shape), self.shape)


@dataclass(frozen=True)
class CodeLayout:
    """Shapes around a quantizer of a constant.

    Attributes:
        shape: of the codes.
        seen: shape of the data while it is quantized; parameters broadcast to it.
    """

    shape: Shape
    seen: Shape

    @property
    def box(self) -> tuple[list[int], list[int]]:
        """Corner and sizes of the whole."""
        return [0] * len(self.shape), [*self.shape]

    def place(self, *parameters: Array) -> Placed:
        """Return parameters along the codes, with one entry per block if there are blocks."""
        arrays = [_through(parameter, self.seen, self.shape) for parameter in parameters]
        if any(array is None for array in arrays):
            raise ValueError(f"parameters of data {self.seen} do not lie along {self.shape}")
        laid = [array for array in arrays if array is not None]
        joint = np.broadcast_shapes(*(array.shape for array in laid))
        layout = layout_of(self.shape, np.broadcast_to(np.int8(0), joint))
        blocked = None if layout is None or not layout.block_size else layout
        if layout is None:
            laid, blocked = _reduced(laid, self.shape)
        if blocked is not None:
            laid = [a if a.size == 1 else np.broadcast_to(a, blocked.shape) for a in laid]
        return Placed(laid, self.shape, blocked)


def laid_out(site: Site) -> CodeLayout | None:
    """Return the layout of the parameters of a constant quantizer; None if unknown."""
    if site.weight is None:
        return None
    shapes = [site.weight.shape]
    for node in site.nodes:
        if node.op_type == "Reshape" and not node.domain:
            target = reshaped(node, shapes[-1])
            if target is None:
                return None
            shapes.append(target)
    codes, arrays = shapes[-1], arrays_of(site.quantizer)
    seen = dict.fromkeys([codes, *shapes[::-1]])
    return next((CodeLayout(codes, each) for each in seen if _lie(arrays, each, codes)), None)


def through_reshape(site: Site) -> Site:
    """Return ``site`` with the following Reshape, if it merges the blocks into one axis again."""
    weight, uses = site.weight, site.y.uses()
    if weight is None or len(uses) != 1 or site.y.is_graph_output():
        return site
    ((node, index),) = uses
    arrays = arrays_of(site.quantizer)
    reshapes = [n for n in (*site.nodes, node) if n.op_type == "Reshape" and not n.domain]
    if reshapes != [node] or index != 0 or all(array.size == 1 for array in arrays):
        return site
    target = reshaped(node, weight.shape)
    if target is None or not _lie(arrays, weight.shape, target):
        return site
    return replace(site, y=node.outputs[0], nodes=(*site.nodes, node), form=None)


def _lie(arrays: Sequence[Array], seen: Shape, codes: Shape) -> bool:
    """Return whether parameters that broadcast to ``seen`` can be expressed along the codes."""
    return all(
        blocks.fits(array.shape, seen) and _through(array, seen, codes) is not None
        for array in arrays
    )


def _through(array: Array, seen: Shape, codes: Shape) -> Array | None:
    """Convert a parameter from the shape ``seen`` of the data to the shape ``codes``."""
    if array.size == 1 or seen == codes:
        return array
    full = array.reshape((1,) * (len(seen) - array.ndim) + array.shape)
    for axis in range(len(seen) - 1):
        merged = (*seen[:axis], seen[axis] * seen[axis + 1], *seen[axis + 2 :])
        if merged == codes and full.shape[axis + 1] == 1:
            return full.reshape((*full.shape[: axis + 1], *full.shape[axis + 2 :]))
    size = seen[-1] if seen else 1
    if codes and full.shape[-1] == 1 and codes[-1] % size == 0:
        spread = np.broadcast_to(full, (*seen[:-1], 1))
        return np.ascontiguousarray(spread).reshape((*codes[:-1], codes[-1] // size))
    return None


def _reduced(arrays: Sequence[Array], shape: Shape) -> tuple[list[Array], Layout | None]:
    """Return one entry for each run of equal entries; all runs along an axis are equally long.

    The last run may be shorter. Without such runs the parameters are unchanged.
    """
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    if len(joint) != len(shape):
        return list(arrays), None
    aligned = [array.reshape((1,) * (len(shape) - array.ndim) + array.shape) for array in arrays]
    runs: dict[int, int] = {}
    for axis, size in enumerate(joint):
        run = blocks.run_length(aligned, axis - len(joint), size)
        if size == shape[axis] and run == size:
            aligned = [array.take([0], axis) for array in aligned]
        elif size == shape[axis] and run > 1:
            runs[axis] = run
    joint = np.broadcast_shapes(*(array.shape for array in aligned))
    if len(runs) != 1 or layout_of(shape, np.broadcast_to(np.int8(0), joint)) is not None:
        return aligned, None
    ((axis, run),) = runs.items()
    cut = (slice(None),) * axis + (slice(None, None, run),)
    aligned = [array[cut] if array.shape[axis] != 1 else array for array in aligned]
    entries = tuple(-(-n // run) if a == axis else n for a, n in enumerate(shape))
    return aligned, Layout(axis, run, entries)

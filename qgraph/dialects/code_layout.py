"""How the parameters of a quantizer on a constant lie along the codes that are stored.

A quantizer may see its data in another shape than the graph uses afterwards: blocks as an axis of
their own between two Reshapes. And a scale may be spelled out for each element. Both are blocks of
DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.granularity import Layout, layout_of
from qgraph.dialects.site import Site
from qgraph.graph.folding import constant_expression
from qgraph.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged
from qgraph.weights.piecewise import Parameter

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Placed:
    """Parameters in terms of the codes.

    Attributes:
        arrays: they broadcast to the codes, or have an entry for each block.
        shape: of the codes.
        blocks: the layout of those that vary, if it is one of blocks.
    """

    arrays: Sequence[Array]
    shape: Shape
    blocks: Layout | None

    def layout(self, *more: Array) -> Layout | None:
        """Return the layout of all parameters, and of ``more`` that follow from them."""
        arrays = (*self.arrays, *more)
        return layout_of(self.shape, *arrays) if self.blocks is None else self.blocks

    def parameter(self, array: Array) -> Parameter:
        """Return a parameter, to be cut into pieces."""
        if array.size == 1 or self.blocks is None:
            return Parameter(array, self.shape)
        return Parameter(array, self.shape, self.blocks.axis, self.blocks.block_size)

    def spread(self, array: Array) -> Array:
        """Return a parameter so that it broadcasts to the codes."""
        if array.size == 1 or self.blocks is None:
            return array
        return self.parameter(array).at([0] * len(self.shape), self.shape)


@dataclass(frozen=True)
class CodeLayout:
    """Shapes around a quantizer of a constant.

    Attributes:
        shape: of the codes.
        seen: in which the quantizer sees its data; its parameters broadcast to it.
    """

    shape: Shape
    seen: Shape

    @property
    def box(self) -> tuple[list[int], list[int]]:
        """Corner and sizes of the whole."""
        return [0] * len(self.shape), [*self.shape]

    def place(self, *parameters: Array) -> Placed:
        """Lay parameters along the codes, with one entry for each block if there are any."""
        arrays = [self._relaid(parameter) for parameter in parameters]
        joint = np.broadcast_shapes(*(array.shape for array in arrays))
        known = layout_of(self.shape, np.broadcast_to(np.int8(0), joint))
        blocked = None if known is None or not known.block_size else known
        if known is None:
            arrays, blocked = _reduced(arrays, self.shape)
        if blocked is not None:
            arrays = [a if a.size == 1 else np.broadcast_to(a, blocked.shape) for a in arrays]
        return Placed(arrays, self.shape, blocked)

    def _relaid(self, array: Array) -> Array:
        if self.shape == self.seen or array.size == 1:
            return array
        found = _through(array, self.seen, self.shape)
        if found is None:
            raise ValueError(f"{array.shape} does not lie along {self.shape}")
        return found


def laid_out(site: Site) -> CodeLayout | None:
    """Return how the parameters of a constant quantizer lie; None where that is not known."""
    if site.weight is None:
        return None
    shapes = [site.weight.shape]
    for node in site.nodes:
        if node.op_type == "Reshape" and not node.domain:
            target = _target(node, shapes[-1])
            if target is None:
                return None
            shapes.append(target)
    codes = shapes[-1]
    arrays = parameters_of(site.quantizer)
    for seen in dict.fromkeys([codes, *shapes[::-1]]):
        if all(_fits(array, seen) and _through(array, seen, codes) is not None for array in arrays):
            return CodeLayout(codes, seen)
    return None


def through_reshape(site: Site) -> Site:
    """Return ``site`` with the Reshape that follows, if that makes its blocks one axis again."""
    weight, users = site.weight, site.y.uses()
    if weight is None or len(users) != 1 or site.y.is_graph_output():
        return site
    (use,) = users
    node = use.node
    arrays = parameters_of(site.quantizer)
    if (
        node.op_type != "Reshape"
        or node.domain
        or use.idx != 0
        or max((array.size for array in arrays), default=1) == 1
    ):
        return site
    target = _target(node, weight.shape)
    if target is None or any(n.op_type == "Reshape" for n in site.nodes):
        return site
    if any(not _fits(a, weight.shape) or _through(a, weight.shape, target) is None for a in arrays):
        return site
    return replace(site, y=node.outputs[0], nodes=(*site.nodes, node))


def parameters_of(quantizer: Quantizer) -> list[Array]:
    """Return the parameters that lie along the data."""
    match quantizer:
        case Affine(scale, zero_point):
            return [scale, zero_point]
        case Bipolar(scale) | Floating(scale):
            return [scale]
        case Ranged(low, high, below, above):
            return [low, high, below, above]
    return []


def _target(node: ir.Node, shape: Shape) -> Shape | None:
    sizes = constant_expression(node.inputs[1])
    if sizes is None:
        return None
    target = [int(size) for size in sizes]
    if not node.attributes.get_int("allowzero", 0):
        target = [shape[i] if size == 0 else size for i, size in enumerate(target)]
    if -1 in target:
        target[target.index(-1)] = math.prod(shape) // max(-math.prod(target), 1)
    return tuple(target) if math.prod(target) == math.prod(shape) else None


def _fits(array: Array, shape: Shape) -> bool:
    try:
        return np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        return False


def _through(array: Array, seen: Shape, codes: Shape) -> Array | None:
    """Return a parameter of data ``seen`` as one of the same data in the shape ``codes``."""
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
    """Return one entry for each run of equal ones, where runs along one axis are equally long.

    The last run may be shorter. Without such runs the parameters stay as they are.
    """
    joint = np.broadcast_shapes(*(array.shape for array in arrays))
    if len(joint) != len(shape):
        return list(arrays), None
    found = [array.reshape((1,) * (len(shape) - array.ndim) + array.shape) for array in arrays]
    runs: dict[int, int] = {}
    for axis, size in enumerate(joint):
        if size != shape[axis] or size == 1:
            continue
        places: list[int] = []
        for array in found:
            if array.shape[axis] == size:
                lines = np.moveaxis(array, axis, 0).reshape(size, -1)
                places += (np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1).tolist()
        run = math.gcd(*places) if places else size
        if run > 1:
            runs[axis] = run
    for axis in [axis for axis, run in runs.items() if run == shape[axis]]:
        # The same all along: no reason for an axis.
        found = [array.take([0], axis) for array in found]
        del runs[axis]
    joint = np.broadcast_shapes(*(array.shape for array in found))
    if len(runs) != 1 or layout_of(shape, np.broadcast_to(np.int8(0), joint)) is not None:
        return found, None
    ((axis, run),) = runs.items()
    cut = (slice(None),) * axis + (slice(None, None, run),)
    found = [array[cut] if array.shape[axis] != 1 else array for array in found]
    entries = tuple(-(-n // run) if a == axis else n for a, n in enumerate(shape))
    return found, Layout(axis, run, entries)

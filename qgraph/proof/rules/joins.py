"""Concat.

Each atom of a part becomes an atom of the whole that is 0 outside of the part. So each part keeps
its own scale, even if the result is multiplied by weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qgraph.numerics import Float64
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.places import placed, places, spread
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of, sizes_of


@bound_rule("Concat")
def concat(call: NodeCall) -> Operand:
    """Concat: the concatenated tensors."""
    values = [value for value in call.node.inputs if value is not None]
    rank = len(shape_of(values[0]))
    axis = call.place(call.whole("axis"), rank) - rank
    sizes = [sizes_of(value, [axis])[0] for value in values]
    return joined(call, [call.tracer.quantity(call.of(value)) for value in values], sizes, axis)


def joined(call: NodeCall, parts: Sequence[Quantity], sizes: Sequence[int], axis: int) -> Quantity:
    """Return the concatenation of tensors.

    Args:
        call: the node.
        parts: the tensors.
        sizes: their sizes along the axis.
        axis: the axis, counted from the last.
    """
    functions = [x.meant for x in parts]
    meant = placed(call.tracer.atoms, list(zip(places(sizes, axis), functions, strict=True)))
    names = "low", "high", "absolute", "relative"
    low, high, absolute, relative = (
        side_by_side([getattr(x, name) for x in parts], sizes, axis) for name in names
    )
    units = [x.granule for x in parts]
    granules = [unit for unit in units if unit is not None]
    unit = side_by_side(granules, sizes, axis) if len(granules) == len(parts) else None
    return Quantity(meant, low, high, absolute, relative, unit)


def side_by_side(arrays: Sequence[Float64], sizes: Sequence[int], axis: int) -> Float64:
    """Concatenate arrays that broadcast to the tensors of a concatenation."""
    first = arrays[0].reshape(-1)[0]
    if all(array.size == 1 and (array == first).all() for array in arrays):
        return arrays[0].reshape(())
    wide = [spread(array, size, axis) for array, size in zip(arrays, sizes, strict=True)]
    rank = max(array.ndim for array in wide)
    wide = [array.reshape(*(1,) * (rank - array.ndim), *array.shape) for array in wide]
    along = axis % rank
    shapes = [[size for at, size in enumerate(array.shape) if at != along] for array in wide]
    shape = np.broadcast_shapes(*map(tuple, shapes))
    full = [
        np.broadcast_to(array, (*shape[:along], array.shape[along], *shape[along:]))
        for array in wide
    ]
    return np.concatenate(full, axis=along)

"""Resizing images: each size times its scale, rounded down, or the sizes that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.facts import Fact, Shape
from qgraph.graph.inference.movement import shape_in
from qgraph.graph.inference.rules import Call, Unknown, places_of, rule


@rule("Resize")
def resize(call: Call) -> list[Fact]:
    """The wanted sizes, or each size times its scale, rounded down."""
    x = call.shape(0)
    if call.version < 11:
        return [Fact(call[0].dtype, _scaled(x, _scales(call, 1), range(len(x))))]
    axes = places_of(call.integers("axes") or range(len(x)), len(x))
    if call.has(3) and call[3].shape != (0,):
        sizes: list[Dim] = list(x)
        stretches = call.text("keep_aspect_ratio_policy", "stretch") == "stretch"
        for axis, size in zip(axes, shape_in(call, 3), strict=True):
            sizes[axis] = size if stretches else None
        return [Fact(call[0].dtype, sizes)]
    if call.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise Unknown
    return [Fact(call[0].dtype, _scaled(x, _scales(call, 2), axes))]


@rule("Upsample")
def upsample(call: Call) -> list[Fact]:
    """Each size times its scale, rounded down."""
    if call.version < 9:
        raise Unknown
    x = call.shape(0)
    return [Fact(call[0].dtype, _scaled(x, _scales(call, 1), range(len(x))))]


def _scales(call: Call, place: int) -> list[float] | None:
    array = call[place].array
    return None if array is None or array.dtype != np.float32 else [float(n) for n in array.flat]


def _scaled(shape: Shape, scales: list[float] | None, axes: Sequence[int]) -> list[Dim]:
    if scales is None:
        return [None] * len(shape)
    sizes = list(shape)
    for axis, scale in zip(axes, scales, strict=True):
        sizes[axis] = _times(sizes[axis], scale)
    return sizes


def _times(size: Dim, scale: float) -> Dim:
    """Return ``floor(size * scale)`` where exact, float32 and float64 products agree on it."""
    if scale == 1:
        return size
    if not isinstance(size, int) or not 0 < scale < 1 << 20:
        return None
    found = {
        int(Fraction(scale) * size // 1),
        int(np.floor(np.float32(size) * np.float32(scale))),
        int(np.floor(size * scale)),
    }
    return found.pop() if len(found) == 1 else None

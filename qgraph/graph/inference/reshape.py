"""Reshape and Slice, whose results depend on numbers that may be computed from sizes."""

from __future__ import annotations

from collections.abc import Sequence

from qgraph.graph.inference.dimensions import (
    LIMIT,
    Dim,
    Size,
    bounds,
    exact_divide,
    merged,
    product,
)
from qgraph.graph.inference.facts import Fact, Shape, as_items
from qgraph.graph.inference.movement import shape_in
from qgraph.graph.inference.rules import Call, Unknown, places_of, rule


@rule("Reshape")
def reshape(call: Call) -> list[Fact]:
    """The wanted shape: 0 keeps the size at its place, -1 stands for what is left.

    With ``allowzero`` a 0 is a size like others. A wanted size that is open may be 0 as well, and
    stands for itself only if that makes no difference.
    """
    x = call[0]
    if call.version < 5:
        listed = call.integers("shape")
        if listed is None:
            raise Unknown
        wanted: Shape = tuple(listed)
    else:
        wanted = shape_in(call, 1)
    if wanted.count(-1) > 1 or any(isinstance(size, int) and size < -1 for size in wanted):
        raise Unknown
    wanted = tuple(None if _may_be_negative(size) else size for size in wanted)
    shape = _reshaped(x.shape, wanted, allows_zero=bool(call.integer("allowzero", 0)))
    if x.shape is not None:
        merged(product(x.shape), product(shape))
    known = [size for size in shape if isinstance(size, int)]
    items = x.items
    if items is None or len(known) < len(shape):
        return [Fact(x.dtype, shape)]
    return [Fact(x.dtype, shape, items.reshape(known))]


def _may_be_negative(size: Dim) -> bool:
    return isinstance(size, Size) and bounds(size)[0] < 0


def _reshaped(shape: Shape | None, wanted: Shape, *, allows_zero: bool) -> list[Dim]:
    if allows_zero and 0 in wanted and -1 in wanted:
        raise Unknown
    sizes: list[Dim] = []
    kept: list[int] = []
    for place, size in enumerate(wanted):
        if size == 0 and not allows_zero:
            kept.append(place)
            if shape is not None and place >= len(shape):
                raise Unknown
            sizes.append(None if shape is None else shape[place])
        elif isinstance(size, Size) and not allows_zero:
            sizes.append(size if _stands_for_itself(shape, wanted, place) else None)
        else:
            sizes.append(None if size == -1 else size)
    if -1 in wanted and shape is not None:
        # sizes that are kept cancel, also unknown ones
        total = product(size for place, size in enumerate(shape) if place not in kept)
        others = [
            size for place, size in enumerate(sizes) if place not in kept and wanted[place] != -1
        ]
        known = product(others)
        if known == 0:
            raise Unknown
        sizes[wanted.index(-1)] = None if None in others else exact_divide(total, known)
    return sizes


def _stands_for_itself(shape: Shape | None, wanted: Shape, place: int) -> bool:
    """Return whether an open size in a wanted shape is that of the result, even where it is 0.

    A 0 keeps the size of the data at its place. If that is the same open size, it is 0 as well.
    Else the data has no elements, if its size is a multiple of the open one; so has the result
    only where the size that is kept is 0, if all the other sizes are numbers above 0.
    """
    size = wanted[place]
    if isinstance(size, Size) and bounds(size)[0] > 0:
        return True
    if shape is None:
        return False
    if place < len(shape) and shape[place] == size:
        return True
    others = (*wanted[:place], *wanted[place + 1 :])
    if any(not isinstance(other, int) or other < 1 for other in others):
        return False
    return exact_divide(product(shape), size) is not None


@rule("Slice")
def slice_(call: Call) -> list[Fact]:
    """Along each axis the number of steps from start to end, both clamped to the data."""
    x, shape = call[0], call.shape(0)
    if call.version < 10:
        starts, ends, axes = (_dims(call.integers(name)) for name in ("starts", "ends", "axes"))
        steps: list[Dim] | None = None
    else:
        starts, ends = list(shape_in(call, 1)), list(shape_in(call, 2))
        axes = _dims(call.numbers(3) if call.has(3) else None)
        steps = list(shape_in(call, 4)) if call.has(4) else None
    if starts is None or ends is None:
        raise Unknown
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    places = places_of([axis for axis in axes if isinstance(axis, int)], len(shape))
    if not len(starts) == len(ends) == len(places) == len(steps):
        raise Unknown
    sizes = list(shape)
    cuts: list[slice | None] = [slice(None)] * len(shape)
    for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
        if step == 0:
            raise Unknown
        cut, size = _cut(shape[axis], start, end, step)
        cuts[axis], sizes[axis] = cut, size
    items = x.items
    if items is None or None in cuts:
        return [Fact(x.dtype, sizes)]
    found = items[tuple(cut for cut in cuts if cut is not None)]
    return [Fact(x.dtype, sizes, as_items(list(found.flat), found.shape))]


def _cut(size: Dim, start: Dim, end: Dim, step: Dim) -> tuple[slice | None, Dim]:
    """Return how Python cuts one dimension, if that is known, and the size that is left."""
    if not (isinstance(start, int) and isinstance(step, int)):
        return None, None
    if isinstance(size, int) and isinstance(end, int):
        if step < 0 and start < -size:
            return None, None  # clamped to 0 by the definition, and to -1 by NumPy
        first, last, step = slice(start, end, step).indices(size)
        stop = None if last < 0 else last
        return slice(first, stop, step), len(range(first, last, step))
    is_whole = start == 0 and step == 1 and end is not None
    is_whole = is_whole and (end == size or (isinstance(end, int) and end >= LIMIT))
    is_reversed = start == -1 and step == -1 and isinstance(end, int) and end <= -LIMIT
    return None, size if is_whole or is_reversed else None


def _dims(numbers: Sequence[int] | None) -> list[Dim] | None:
    return None if numbers is None else list(numbers)

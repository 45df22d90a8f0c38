"""Looking at large arrays piece by piece, so that what is computed of them stays small."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import EllipsisType

AT_ONCE = 1 << 20
"""Elements of a piece; comparisons hold several float64 arrays of its size."""

Index = tuple[slice | EllipsisType, ...]


def pieces(shape: Sequence[int], at_once: int = AT_ONCE) -> Iterator[Index]:
    """Yield indices that cut an array into pieces of up to ``at_once`` elements, in order.

    Args:
        shape: of the array; one that is empty gives no pieces, one without axes a single one.
        at_once: elements of a piece.
    """
    size = math.prod(shape)
    if size <= at_once:
        if size:
            yield (...,)
        return
    # all axes before the first that has to be cut are walked one by one
    axis = next(n for n in range(len(shape)) if math.prod(shape[n + 1 :]) <= at_once)
    inner = math.prod(shape[axis + 1 :])
    step = max(1, at_once // inner)
    for outer in itertools.product(*map(range, shape[:axis])):
        place = tuple(slice(at, at + 1) for at in outer)
        for first in range(0, shape[axis], step):
            yield (*place, slice(first, first + step))

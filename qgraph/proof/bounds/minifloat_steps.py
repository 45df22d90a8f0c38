"""Distances of numbers before rounding to a minifloat, in steps of the format.

The steps of a minifloat double at each power of two. An error that is small relative to a number is
small relative to its step. So errors are computed for each range between two powers of two, and
divided by the smallest step that an interval of that length can touch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import product
from qgraph.proof.bounds.distances import distance
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.segment import RoundedData

Window = tuple[Float64, Float64]


class Apart(NamedTuple):
    """Largest errors of two models, and the largest distance of their ideal values, in steps."""

    reference_error: Float64
    candidate_error: Float64
    shift: Float64


def error_within(before: Quantity, window: Window) -> Float64:
    """Return the largest error of data whose ideal values lie in a window."""
    reach = np.minimum(np.maximum(*map(np.abs, window)), before.largest)
    return before.absolute + product(before.relative, reach)


def apart_in_steps(one: RoundedData, other: RoundedData, window: Window) -> Apart:
    """Return the distance, before rounding, of two roundings to one minifloat.

    Args:
        one: the rounding of the reference.
        other: the rounding of the candidate.
        window: interval of numbers to compare, in smallest steps.
    """
    mantissa = one.event.mantissa or 0
    reach = np.maximum(*map(np.abs, window))
    binades = _ranges(mantissa, float(np.max(reach)))
    parts = zip(*(_apart(one, other, window, ends) for ends in binades), strict=True)
    return Apart(*(np.max(np.broadcast_arrays(*part), axis=0) for part in parts))


def _apart(
    one: RoundedData, other: RoundedData, window: Window, ends: tuple[float, float]
) -> Apart:
    bottom, top = ends
    inside = np.maximum(window[0], -top), np.minimum(window[1], top)
    shift = distance(one.function, other.function, inside)
    moved = inside[0] - shift, inside[1] + shift
    parts = error_within(one.event.before, inside), error_within(other.event.before, moved), shift
    least = np.maximum(bottom - sum(parts), 0.0)
    return Apart(*(np.asarray(part / one.event.spacing(least)) for part in parts))


def _ranges(mantissa: int, last: float) -> Iterator[tuple[float, float]]:
    """Yield the ranges of magnitudes that have one step each, in smallest steps."""
    bottom, top = 0.0, 2.0 ** (mantissa + 1)
    yield bottom, top
    while top < last:
        bottom, top = top, 2 * top
        yield bottom, top

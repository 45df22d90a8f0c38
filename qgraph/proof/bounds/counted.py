"""Execute both models on every whole number that may occur, and count different results.

Monotone functions are compared on intervals of whole numbers. An interval is halved until each
function has equal results at both ends. Other functions are compared number by number, if there are
few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.executed import (
    Pick,
    Program,
    Whole,
    arrays_of,
    is_monotone,
    run,
    wholes_of,
)

_MOST = 1 << 21
"""Maximum number of points to evaluate at once."""
_MOST_ENUMERATED = 1 << 22
"""Maximum number of points to evaluate one by one."""

Results = Callable[[Mapping[Hashable, Float64], Pick], Array]
"""Returns the results of a model for some whole numbers."""


@dataclass(frozen=True)
class Counted:
    """Comparison of two models on all whole numbers that may occur, and possibly on more.

    The number of differing results is summed over channels. The others describe the whole number
    with the largest difference.
    """

    differing: int = 0
    largest: float = 0.0
    channel: int = 0
    at: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0


@dataclass(frozen=True)
class Finished:
    """A program, a function from its values to results, and the arrays that the function reads."""

    program: Program
    finish: Callable[[Array, Pick], Array] = lambda values, _: values
    arrays: tuple[Array, ...] = ()

    def __call__(self, points: Mapping[Hashable, Float64], pick: Pick) -> Float64:
        """Return the results for some whole numbers."""
        with np.errstate(all="ignore"):
            values = run(self.program, points, pick)
            return np.asarray(self.finish(values, pick), np.float64)


def compare(ours: Finished, theirs: Finished, *, has_steps: bool = True) -> Counted | None:
    """Return where the results of two models differ; None if there are too many numbers to compare.

    Both are functions of the same whole numbers. If ``has_steps``, their results are codes: few
    distinct whole numbers.
    """
    models = ours, theirs
    wholes = {whole.key: whole for model in models for whole in wholes_of(model.program)}
    arrays = [a for model in models for a in (*arrays_of(model.program), *model.arrays)]
    numbers = [
        a for model in models for a in (*arrays_of(model.program, ranges=False), *model.arrays)
    ]
    try:
        shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    except ValueError:
        return None
    if all(np.size(number) == 1 for number in numbers):
        shape = ()  # channels have one function, and only the ranges differ
    if math.prod(shape) > _MOST:
        return None
    if len(wholes) == 1 and has_steps and all(is_monotone(m.program) for m in models):
        (whole,) = wholes.values()
        return _halved(models, whole, shape)
    return _enumerated(models, list(wholes.values()), shape)


def _ends(whole: Whole, shape: tuple[int, ...]) -> tuple[Float64, Float64]:
    """Return the range of a whole number, by channel."""
    if not shape:
        return np.reshape(whole.low.min(), 1), np.reshape(whole.high.max(), 1)
    low, high = (np.broadcast_to(end, shape).reshape(-1) for end in (whole.low, whole.high))
    return low, high


def _picking(shape: tuple[int, ...], channels: Array) -> Pick:
    def pick(array: Array) -> Array:
        if np.size(array) == 1:
            return np.reshape(array, ())
        return np.asarray(np.broadcast_to(array, shape).reshape(-1)[channels])

    return pick


def _halved(
    models: tuple[Finished, Finished], whole: Whole, shape: tuple[int, ...]
) -> Counted | None:
    low, high = _ends(whole, shape)
    channels = np.arange(low.size)

    def at(points: Float64, channels: Array) -> tuple[Float64, Float64]:
        pick = _picking(shape, channels)
        a, b = (np.broadcast_to(m({whole.key: points}, pick), points.shape) for m in models)
        return a, b

    first, last = at(low, channels), at(high, channels)
    counted = _tallied(Counted(), high, channels, last, np.ones(high.size))
    while low.size:
        if low.size > _MOST or np.isnan([*first, *last]).any():
            return None
        done = (first[0] == last[0]) & (first[1] == last[1]) | (high - low <= 1)
        parts = low[done], channels[done], (first[0][done], first[1][done])
        counted = _tallied(counted, *parts, (high - low)[done])
        low, high, channels = low[~done], high[~done], channels[~done]
        first, last = ((a[~done], b[~done]) for a, b in (first, last))
        middle = np.floor((low + high) / 2)
        between = at(middle, channels)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        channels = np.tile(channels, 2)
        first, last = (
            (np.concatenate([a, c]), np.concatenate([b, d]))
            for (a, b), (c, d) in ((first, between), (between, last))
        )
    return counted


def _tallied(
    before: Counted,
    points: Float64,
    channels: Array,
    results: tuple[Float64, Float64],
    counts: Float64,
) -> Counted:
    """Return the counts, increased by those of points that each represent many whole numbers."""
    ours, theirs = results
    apart = np.where((ours != theirs) & (counts > 0), np.abs(ours - theirs), 0.0)
    if not apart.any():
        return before
    total = before.differing + int(counts[apart > 0].sum())
    i = int(np.argmax(apart))
    if apart[i] <= before.largest:
        return Counted(total, *list(vars(before).values())[1:])
    channel = int(channels[i])
    numbers = (float(array[i]) for array in (apart, points, ours, theirs))
    largest, point, a, b = numbers
    return Counted(total, largest, channel, point, a, b)


def _enumerated(
    models: tuple[Finished, Finished], wholes: list[Whole], shape: tuple[int, ...]
) -> Counted | None:
    ends = [_ends(whole, shape) for whole in wholes]
    sizes = [int((high - low).max()) + 1 for low, high in ends]
    channels = math.prod(shape)
    if not wholes or math.prod(sizes) * channels > _MOST_ENUMERATED:
        return None
    counted = Counted()
    for channel, points, is_inside in _points(ends, sizes, channels):
        pick = _picking(shape, channel)
        keyed = {whole.key: p for whole, p in zip(wholes, points, strict=True)}
        a, b = (np.broadcast_to(m(keyed, pick), channel.shape) for m in models)
        if np.isnan([a, b]).any():
            return None
        counted = _tallied(counted, points[0], channel, (a, b), is_inside.astype(np.float64))
    return counted


def _points(
    ends: list[tuple[Float64, Float64]], sizes: list[int], channels: int
) -> Iterator[tuple[Array, list[Float64], Array]]:
    """Yield blocks of channels, whole numbers, and masks of the numbers within their ranges."""
    total = math.prod(sizes) * channels
    for start in range(0, total, _MOST):
        numbers = np.arange(start, min(start + _MOST, total))
        channel, *offsets = np.unravel_index(numbers, (channels, *sizes))
        points = [low[channel] + at for (low, _), at in zip(ends, offsets, strict=True)]
        inside = [p <= high[channel] for (_, high), p in zip(ends, points, strict=True)]
        yield channel, points, np.logical_and.reduce(inside)

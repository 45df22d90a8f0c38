"""Search the scale of each group of weights with the least squared error.

The errors of a tile are computed for one candidate after the other. NumPy executes one operation at
a time. If numba is installed and there is much to do, it compiles all operations to one loop. Both
round each operation separately, and add the squares in the same order, so both choose the same
scale.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qgraph.numerics import Array, Float32
from qgraph.numerics.chunks import find_numba
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.quantizers.weights.scheme import (
    E8M0,
    ONE,
    Parameters,
    ScaleSearch,
    Scheme,
    extremes,
    parameters,
    quantize,
    spanned,
)

_STEP = 0.96
"""Ratio of consecutive candidate scales."""

_HIGHEST = 1.05
_LOWEST = {2: 0.2}
_USUAL_LOWEST = 0.4
"""Range of candidate scales, relative to the scale of the extreme values; fewer bits allow more
clipping."""

_POWERS = (0.5, 2.0)

_STRIP = 256
"""Number of columns whose sums are in the cache nearest to the processor."""

_TOGETHER = 8
"""Number of candidates that are computed at a time: most searches end before the last one."""

_COMPARED = 2 * _TOGETHER
"""Number of candidates that are compared at a time, if scales repeat."""

_WORTH = 1 << 24
"""Number of elements for which NumPy takes as long as it takes to compile a loop."""

_IN_STEPS = np.float32(1.5 * 2**23)
"""The last bit of such a float32 number is 1."""


def choices(
    low: Float32, high: Float32, scheme: Scheme, unit: np.float32 = ONE
) -> Iterator[Parameters]:
    """Yield the candidate parameters of a search by squared error, first those by range."""
    yield parameters(low, high, scheme, unit)
    if scheme.search is ScaleSearch.MSE:
        factors = _POWERS if scheme.scales == E8M0 else _factors(FORMATS[scheme.codes].bits)
        for first in range(0, len(factors), _TOGETHER):
            some = np.asarray(factors[first : first + _TOGETHER], np.float32)
            offered = parameters(low, high, scheme, unit, some.reshape(-1, *(1,) * high.ndim))
            for i, scale in enumerate(offered.scale):
                yield Parameters(
                    scale, None if offered.zero_point is None else offered.zero_point[i]
                )


@functools.cache
def _factors(bits: int) -> list[float]:
    factors = [_HIGHEST]
    while factors[-1] > _LOWEST.get(bits, _USUAL_LOWEST):
        factors.append(factors[-1] * _STEP)
    return factors


def distinct(offers: Iterator[Parameters]) -> Iterator[Parameters]:
    """Yield candidates without scales that repeat within a group, in order.

    Scales of few bits repeat: consecutive candidates are rounded to one. A group with fewer scales
    than others gets the first one again. The candidates have no zero points, and their scales
    decrease from the second one on.
    """
    first = last = next(offers)
    yield first
    column = np.arange(first.scale.size)
    while some := list(itertools.islice(offers, _COMPARED)):
        scales = np.stack([offer.scale.reshape(-1) for offer in (last, *some)])
        is_new = scales[1:] != scales[:-1]
        is_new &= scales[1:] != first.scale.reshape(-1)
        row = np.full(column.size, -1)
        kept = np.repeat(first.scale.reshape(1, -1), is_new.sum(axis=0).max(initial=0), axis=0)
        for is_other, scale in zip(is_new, scales[1:], strict=True):
            row += is_other
            at = np.flatnonzero(is_other)
            kept[row[at], column[at]] = scale[at]
        yield from (Parameters(scale.reshape(first.scale.shape)) for scale in kept)
        last = some[-1]


def noise(
    w: Float32, chosen: Parameters, scheme: Scheme, axes: tuple[int, ...], y: Float32
) -> Float32:
    """Return the sum of the squared errors of each group.

    ``y``, in the shape of ``w``, is overwritten.
    """
    by_columns = (
        w.shape[-1] > 1 if axes == (2,) else axes == (0, 2) and w.shape[-1] == 1 < w.shape[1]
    )
    loops, form = _loops(scheme.codes), FORMATS[scheme.codes]
    if loops is None:
        quantize(w, chosen, scheme, y)
        np.subtract(y, w, out=y)
    else:
        tile, scale, point = _laid_out(w, chosen, by_columns)
        out = np.empty_like(scale) if by_columns else y.reshape(tile.shape)
        loop = loops.add if by_columns else loops.write
        loop(tile, scale, point, np.float32(form.lo), np.float32(form.hi), out)
        if by_columns:
            return out.reshape(chosen.scale.shape)
    if axes == (2,) and not by_columns:
        squares: Float32 = np.einsum("rgsc,rgsc->rgc", y, y)[:, :, None]
        return squares
    np.square(y, out=y)
    added: Float32 = np.sum(y, axis=axes, keepdims=True)
    return added


def best(
    w: Float32, scheme: Scheme, axes: tuple[int, ...], unit: np.float32, y: Float32
) -> Parameters:
    """Return the parameters of each group by the search method of the scheme.

    ``y``, in the shape of ``w``, is overwritten.
    """
    ends = extremes(w, axes, y)
    offers = choices(*spanned(*ends, scheme), scheme, unit)
    if scheme.search is ScaleSearch.MINMAX:
        return next(offers)
    w = np.ascontiguousarray(w)
    if w.shape[-1] > 1 and (loops := _loops(scheme.codes)) is not None:
        return _by_columns(w, offers, scheme, ends, loops.improve)
    if scheme.scales not in ("FLOAT", E8M0) and not scheme.has_zero_point:
        offers = distinct(offers)
    chosen = next(offers)
    scale, zero_point = chosen.scale.copy(), chosen.zero_point
    zero_point = None if zero_point is None else zero_point.copy()
    least = noise(w, chosen, scheme, axes, y)
    for offer in offers:
        if scheme.scales != E8M0 and not may_be_better(*ends, offer, scheme, least):
            break
        error = noise(w, offer, scheme, axes, y)
        better = error < least
        np.copyto(least, error, where=better)
        np.copyto(scale, offer.scale, where=better)
        if zero_point is not None and offer.zero_point is not None:
            np.copyto(zero_point, offer.zero_point, where=better)
    return Parameters(scale, zero_point)


def _by_columns(
    w: Float32,
    offers: Iterator[Parameters],
    scheme: Scheme,
    ends: Sequence[Float32],
    improve: Callable[..., bool],
) -> Parameters:
    """Return what :func:`best` does, found by a compiled loop."""

    def rows(array: Float32) -> Float32:
        return np.ascontiguousarray(array).reshape(-1, w.shape[-1])

    first, form = next(offers), FORMATS[scheme.codes]
    zeros = np.zeros_like(first.scale)
    scale, point = first.scale.copy(), zeros
    if first.zero_point is not None:
        point = first.zero_point.copy()
    found = *map(rows, ends), np.full_like(rows(scale), np.inf), rows(scale), rows(point)
    tile, limits = w.reshape(-1, *w.shape[2:]), (np.float32(form.lo), np.float32(form.hi))
    for offer in itertools.chain([first], offers):
        zero = zeros if offer.zero_point is None else offer.zero_point
        is_possible = improve(tile, rows(offer.scale), rows(zero), *limits, *found)
        if scheme.scales != E8M0 and not is_possible:
            break
    return Parameters(scale, None if point is zeros else point)


def may_be_better(
    low: Float32, high: Float32, offer: Parameters, scheme: Scheme, least: Array
) -> bool:
    """Return whether a candidate may have less noise than ``least``, for some group.

    The noise of clipping alone is less than the noise of a group, and grows as scales become
    smaller.
    """
    form = FORMATS[scheme.codes]
    point = np.float32(0) if offer.zero_point is None else offer.zero_point
    above = high - (np.float32(form.hi) - point) * offer.scale
    below = (np.float32(form.lo) - point) * offer.scale - low
    lost = np.square(np.maximum(np.maximum(above, below), np.float32(0)))
    return not (lost > least).all()


class _Loops(NamedTuple):
    """Compiled loops.

    Their first arguments are the weights, the scales and zero points of each column or group, and
    the lowest and the highest code.

    Attributes:
        add: writes the sums of the squared errors of ``[groups, size, columns]``.
        write: writes the errors of ``[groups, size]``.
        improve: replaces, by those of a candidate, the least noise, scale and zero point of each
            column, whose smallest and largest weight are given before them. Returns whether the
            candidate may be better for some column: see :func:`may_be_better`.
    """

    add: Callable[..., None]
    write: Callable[..., None]
    improve: Callable[..., bool]


class _Work:
    """Number of elements whose scales this process searches, by rounding of the codes."""

    def __init__(self) -> None:
        self.expected = 0
        self.lock = threading.Lock()


@functools.cache
def _work(family: str) -> _Work:
    return _Work()


def expect(scheme: Scheme, elements: int) -> None:
    """Say of how many more elements the scales will be found, so that a loop may be compiled."""
    if scheme.search is ScaleSearch.MSE:
        _work(_family(scheme.codes)).expected += elements


def _loops(codes: str) -> _Loops | None:
    """Return compiled loops; None if compilation would not pay off."""
    family = _family(codes)
    work = _work(family)
    if work.expected < _WORTH:
        return None
    with work.lock:  # one thread compiles, the others wait
        return _compiled(family)


def _family(codes: str) -> str:
    return "INTEGER" if isinstance(FORMATS[codes], IntFormat) else codes


@functools.cache
def _compiled(family: str) -> _Loops | None:
    """Return the loops for a rounding; each is compiled when it is first called."""
    numba = find_numba()
    if numba is None:
        return None
    compile_ = numba.njit(error_model="numpy", nogil=True, fastmath=False)
    rounded = compile_(_rounding(family))

    def add(w: Any, scale: Any, point: Any, lowest: Any, highest: Any, total: Any) -> None:
        groups, size, columns = w.shape
        for g in range(groups):
            total[g, :] = 0
            for i in range(size):
                for j in range(columns):
                    s, z = scale[g, j], point[g, j]
                    q = rounded(min(max(w[g, i, j] / s, lowest - z), highest - z))
                    error = q * s - w[g, i, j]
                    total[g, j] += error * error

    def write(w: Any, scale: Any, point: Any, lowest: Any, highest: Any, y: Any) -> None:
        groups, size = w.shape
        for g in range(groups):
            s, low, high = scale[g], lowest - point[g], highest - point[g]
            for i in range(size):
                q = rounded(min(max(w[g, i] / s, low), high))
                y[g, i] = q * s - w[g, i]

    def improve(
        w: Any,
        scale: Any,
        point: Any,
        lowest: Any,
        highest: Any,
        low: Any,
        high: Any,
        least: Any,
        best: Any,
        zero: Any,
    ) -> bool:
        groups, size, columns = w.shape
        total = np.empty(_STRIP, np.float32)
        found = False
        for g in range(groups):
            for first in range(0, columns, _STRIP):
                at = slice(first, min(first + _STRIP, columns))
                s, z, now = scale[g, at], point[g, at], least[g, at]
                down, up = low[g, at], high[g, at]
                is_possible = False
                for j in range(s.size):
                    lost = max(up[j] - (highest - z[j]) * s[j], (lowest - z[j]) * s[j] - down[j])
                    is_possible |= not (lost > 0 and lost * lost > now[j])
                if not is_possible:
                    continue
                found = True
                total[:] = 0
                for i in range(size):
                    x = w[g, i, at]
                    for j in range(s.size):
                        q = rounded(min(max(x[j] / s[j], lowest - z[j]), highest - z[j]))
                        error = q * s[j] - x[j]
                        total[j] += error * error
                chosen, offset = best[g, at], zero[g, at]
                for j in range(s.size):
                    if total[j] < now[j]:
                        now[j], chosen[j], offset[j] = total[j], s[j], z[j]
        return found

    return _Loops(compile_(add), compile_(write), compile_(improve))


def _rounding(family: str) -> Callable[[Any], Any]:
    """Return the function, to be compiled, that rounds numbers within the limits to codes."""
    if family == "INTEGER":
        return lambda number: np.rint(number)
    form = MINIFLOATS[family]
    exponent = np.uint32(0x7F800000)
    least = np.uint32((128 - form.bias) << 23)
    fraction = np.uint32(form.mantissa_bits << 23)

    def rounded(number: Any) -> Any:
        bits = max(np.float32(number).view(np.uint32) & exponent, least)
        # Numbers as large as this one are multiples of the step.
        large = np.uint32(bits - fraction).view(np.float32) * _IN_STEPS
        return (number + large) - large

    return rounded


def _laid_out(w: Float32, chosen: Parameters, by_columns: bool) -> tuple[Float32, Float32, Float32]:
    """Return weights, scales and zero points for a compiled loop."""
    scale, point = chosen.scale, chosen.zero_point
    if w.ndim == 3 and not by_columns and scale.size > 1:
        scale = np.repeat(scale, w.shape[0], axis=0)
        point = None if point is None else np.repeat(point, w.shape[0], axis=0)
    point = np.zeros_like(scale) if point is None else point
    shape: tuple[int, ...] = (scale.size, -1)
    if by_columns:
        shape = (-1, *w.shape[2:]) if w.ndim == 4 else (1, *w.shape[:2])
    rows = (-1, shape[-1]) if by_columns else (-1,)
    scale, point = (np.ascontiguousarray(each).reshape(rows) for each in (scale, point))
    return w.reshape(shape), scale, point

"""Count constant codes while they are read piece by piece."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qgraph.graph.streaming import PIECE, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat

_MOST_BITS = 8
_FAR = 1 << 14
"""Smaller zero points can be subtracted from codes of 8 bits in int16."""


@dataclass(frozen=True, eq=False)
class CodeCounts:
    """Counts of the codes of a constant.

    Attributes:
        histogram: ``[256]`` number of occurrences of each code from ``first`` on; None above 8
            bits.
        first: smallest code of the type.
        reach: ``[channels]`` sum of absolute codes without zero point, for each channel.
        peak: ``[channels]`` largest of them.
    """

    kind: str
    size: int
    low: int
    high: int
    histogram: Array | None
    first: int
    reach: Array
    peak: Array

    @property
    def used(self) -> int:
        """Number of different codes; 0 if they were not counted."""
        return 0 if self.histogram is None else int(np.count_nonzero(self.histogram))


def count_codes(codes: Stream, zero: Array | None, axis: int | None) -> CodeCounts | None:
    """Count the codes of a constant; None if they are not integers, or there are none.

    Channels lie along ``axis``; None is one channel. There is one zero point for all, or one for
    each channel; other shapes count as 0.
    """
    form = FORMATS.get(codes.kind)
    if not isinstance(form, IntFormat) or not codes.size:
        return None
    number = 1 if axis is None else codes.shape[axis]
    inner = 1 if axis is None else math.prod(codes.shape[axis + 1 :])
    offsets: Array = np.zeros(number, np.int64)
    if zero is not None and zero.size in (1, number):
        offsets[:] = zero.reshape(-1).astype(np.int64)
    is_narrow = form.bits <= _MOST_BITS and np.abs(offsets).max() < _FAR
    wide = np.int16 if is_narrow else np.int64  # four times as fast as int64
    offsets = offsets.astype(wide)
    reach, peak = np.zeros(number, np.float64), np.zeros(number, np.int64)
    first, width = int(form.lo), int(form.hi - form.lo) + 1
    histogram = np.zeros(width, np.int64) if form.bits <= _MOST_BITS else None
    low, high = int(form.hi), first
    whole = number * inner  # elements of all channels, which a piece has several times, or in part
    step = PIECE // whole * whole or PIECE
    for start in range(0, codes.size, step):
        piece: Array = codes.read(start, min(start + step, codes.size)).astype(wide)
        low, high = min(low, int(piece.min())), max(high, int(piece.max()))
        if histogram is not None:
            histogram += np.bincount(piece - first, minlength=width)
        if step % whole == 0:
            size = np.abs(piece.reshape(-1, number, inner) - offsets[:, None])
            reach += size.sum((0, 2))
            np.maximum(peak, size.max((0, 2)), out=peak)
            continue
        runs = np.arange(start // inner, (start + piece.size - 1) // inner + 1)
        begins = np.maximum(runs * inner - start, 0)
        channels = runs % number
        size = np.abs(piece - np.repeat(offsets[channels], np.diff(begins, append=piece.size)))
        reach += np.bincount(channels, np.add.reduceat(size, begins, dtype=np.int64), number)
        np.maximum.at(peak, channels, np.maximum.reduceat(size, begins))
    return CodeCounts(codes.kind, codes.size, low, high, histogram, first, reach, peak)

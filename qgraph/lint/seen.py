"""Statistics of constant codes, and of quantizers and layers in runs of a model."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qgraph.graph.streaming import PIECE, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Quantizer, Ranged
from qgraph.records import dataclass, field


@dataclass(frozen=True)
class Saturation:
    """Channels of a layer that saturate, and one example.

    Attributes:
        channels: number of saturating channels of the result.
        channel: the channel with the largest sum.
        batch, row: batch, and row of the flattened data, of the example.
        pair: index of the first of the two elements along the summed axis.
        codes, weights: the two codes and weights.
        total: their sum of products.
    """

    channels: int
    channel: int
    batch: int
    row: int
    pair: int
    codes: tuple[int, int]
    weights: tuple[int, int]
    total: int


@dataclass
class SeenQuantizer:
    """Statistics of the data of a quantizer, over all batches.

    Attributes:
        not_finite: number of NaN and infinite values.
        below, above: numbers of values clipped at each limit.
        ties: number of values exactly between two codes.
        low, high: ``[channels]`` range of each channel of axis 1; None for data with one axis.
    """

    site: Site
    levels: int
    values: int = 0
    not_finite: int = 0
    below: int = 0
    above: int = 0
    ties: int = 0
    codes: set[int] = field(default_factory=set)
    low: Array | None = None
    high: Array | None = None
    zero_is_lowest: bool = False

    def add(self, x: Array) -> None:
        """Add the data of one batch."""
        data = x.astype(np.float32, copy=False)
        steps = _places(self.site.quantizer, data)
        if steps is None:
            return
        q, lo, hi = steps
        finite = np.isfinite(data)
        self.values += data.size
        self.not_finite += int(data.size - np.count_nonzero(finite))
        with np.errstate(invalid="ignore"):
            self.below += int(np.count_nonzero(finite & (q < lo - 0.5)))
            self.above += int(np.count_nonzero(finite & (q > hi + 0.5)))
            inside = finite & (q > lo - 0.5) & (q < hi + 0.5)
            # A code is the nearest whole number; between two lies a half.
            self.ties += int(np.count_nonzero(inside & (q - np.floor(q) == 0.5)))
        codes = np.clip(np.rint(q[finite] if q.shape == finite.shape else q), lo.min(), hi.max())
        self.codes.update(np.unique(codes).astype(np.int64).tolist())
        self._add_channels(data, finite)

    def _add_channels(self, data: Array, finite: Array) -> None:
        if data.ndim < 2 or not data.size:
            return
        axes = tuple(axis for axis in range(data.ndim) if axis != 1)
        # The range of a channel with NaN or infinite values is infinite.
        low = np.where(finite, data, -np.inf).min(axes)
        high = np.where(finite, data, np.inf).max(axes)
        if self.low is None or self.high is None or self.low.shape != low.shape:
            self.low, self.high = low, high
        else:
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)


@dataclass
class Observation:
    """Statistics of a model over some batches.

    Attributes:
        quantizers: statistics of each quantizer of data in the main graph.
        saturated: products of codes that saturate, by their layer.
    """

    batches: int = 0
    quantizers: list[SeenQuantizer] = field(default_factory=list)
    saturated: dict[ir.Node, Saturation] = field(default_factory=dict)


def _places(quantizer: Quantizer, x: Array) -> tuple[Array, Array, Array] | None:
    """Return the data in units of codes, and the first and last code."""
    with np.errstate(all="ignore"):
        if isinstance(quantizer, Affine):
            q = x / quantizer.scale + quantizer.zero_point
            return q, np.asarray(quantizer.lo), np.asarray(quantizer.hi)
        if isinstance(quantizer, Ranged):
            low, high = quantizer.input_low, quantizer.input_high
            top = np.float32(quantizer.levels - 1)
            return (x - low) / (high - low) * top, np.zeros(()), np.asarray(top)
    return None


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

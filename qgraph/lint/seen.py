"""Statistics of quantizers and layers in runs of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Quantizer, Ranged


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

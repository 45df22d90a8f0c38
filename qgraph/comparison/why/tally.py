"""Count the codes of one quantizer on data: differing codes, unused codes, clipping."""

from __future__ import annotations

from typing import Any

import numpy as np

from qgraph.inventory.statistics import codes_of, is_clipped, levels_of
from qgraph.numerics import Array
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Ranged, Truncating, Unnamed, arrays_of

_MOST_COUNTED = 1 << 24
"""Largest product of channels and levels for which codes are counted by channel."""


class CodeTally:
    """Counts the codes of a quantizer, over any number of batches.

    Channels are those of the scale, otherwise those of the data: axis 1, or axis 0 of weights.

    Args:
        site: the quantizer. Stored codes are never clipped.

    Attributes:
        elements, differing: number of codes, and number of those that are not the code of the
            reference's value.
    """

    def __init__(self, site: Site) -> None:
        self._quantizer = quantizer = site.quantizer
        self._is_weight, self._is_decoder = site.weight is not None, site.is_decoder
        self.elements = self.differing = 0
        self._levels: int | None = None
        if isinstance(quantizer, Affine | Ranged):
            self._levels = levels_of(quantizer)
        low = quantizer.lo.min() if isinstance(quantizer, Affine) else 0.0
        self._low = float(low)
        self._used: Array | None = None
        self._crossed: Array | None = None
        self._clipped: Array | None = None
        self._inputs = 0

    def add(self, x: Array, y: Array, reference: Array | None) -> None:
        """Count a batch.

        Args:
            x: the data of the quantizer.
            y: its output.
            reference: the value of the reference; None if it has another shape.
        """
        own = y.astype(np.float32, copy=False)
        with np.errstate(all="ignore"):
            codes = codes_of(self._quantizer, own)
            self._count(codes)
            if not self._is_decoder:
                self._count_clipped(x.astype(np.float32, copy=False))
            if reference is not None and not isinstance(self._quantizer, Truncating | Unnamed):
                there = codes_of(self._quantizer, reference.astype(np.float32, copy=False))
                self._compare(codes, there)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report; None if codes are not counted."""
        used, crossed, clipped = self._used, self._crossed, self._clipped
        unused = None if used is None else (~used).sum(axis=1)
        shares = None if clipped is None else clipped / max(self._inputs // len(clipped), 1)
        return {
            "codes_that_differ": self.differing / self.elements if self.elements else None,
            "thresholds_crossed": None if crossed is None else int(np.count_nonzero(crossed)),
            "levels": self._levels,
            "clipped": None if clipped is None else float(clipped.sum() / max(self._inputs, 1)),
            "unused_codes": None if used is None else int((~used.any(axis=0)).sum()),
            "channels": None
            if unused is None or len(unused) < 2
            else {
                "count": len(unused),
                "clipped": None if shares is None else shares.tolist(),
                "unused_codes": unused.tolist(),
                "most_clipped": None
                if shares is None
                else {"channel": int(shares.argmax()), "share": float(shares.max())},
                "fewest_codes": {"channel": int(unused.argmax()), "unused": int(unused.max())},
            },
        }

    def _rows(self, array: Array) -> Array:
        """Return the elements by channel, ``[channels, elements]``."""
        axis = self._axis(array.ndim)
        if axis is None:
            return array.reshape(1, -1)
        return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)

    def _axis(self, rank: int) -> int | None:
        for parameter in arrays_of(self._quantizer):
            wide = [n - parameter.ndim for n, size in enumerate(parameter.shape) if size > 1]
            if len(wide) == 1 and -wide[0] <= rank:
                return wide[0] % rank
        axis = 0 if self._is_weight else 1
        return axis if rank > max(axis, 1) else None

    def _count(self, codes: Array) -> None:
        rows = self._rows(codes)
        if self._levels is None or self._levels * len(rows) > _MOST_COUNTED:
            return
        if self._used is None:
            self._used = np.zeros((len(rows), self._levels), np.bool_)
            self._crossed = np.zeros(self._levels - 1, np.bool_)
        if len(rows) != len(self._used):
            return
        levels = np.nan_to_num(rows - self._low).astype(np.int64).clip(0, self._levels - 1)
        self._used[np.arange(len(rows))[:, None], levels] = True

    def _count_clipped(self, x: Array) -> None:
        rows = self._rows(is_clipped(self._quantizer, x))
        counts = np.count_nonzero(rows, axis=1)
        if self._clipped is None or len(self._clipped) != len(counts):
            self._clipped, self._inputs = np.zeros(len(counts), np.int64), 0
        self._clipped = self._clipped + counts
        self._inputs += x.size

    def _compare(self, codes: Array, there: Array) -> None:
        differ = ~((codes == there) | (np.isnan(codes) & np.isnan(there)))
        self.elements += codes.size
        self.differing += int(np.count_nonzero(differ))
        if self._crossed is None or not differ.any():
            return
        pair = np.nan_to_num(np.stack([codes[differ], there[differ]]) - self._low).astype(np.int64)
        first, last = pair.min(axis=0), pair.max(axis=0)
        ends = np.zeros(len(self._crossed) + 1, np.int64)
        np.add.at(ends, first.clip(0, len(self._crossed)), 1)
        np.add.at(ends, last.clip(0, len(self._crossed)), -1)
        self._crossed |= np.cumsum(ends)[:-1] > 0

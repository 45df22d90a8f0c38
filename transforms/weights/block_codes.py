"""Work on the packed weights of a MatMulNBits: the codes, scales and zero points, transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import Sink, Stream
from qgraph.numerics import Array
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.quantizers.weights.job import CodeWriter, JobPart

_PART_BYTES = 1 << 25
"""Packed codes that a part holds in memory."""

_TILE_BYTES = 32
"""Bytes of each row of packed codes that are transposed at a time; more fall out of the cache."""


@dataclass(frozen=True, eq=False)
class BlockCodes:
    """Writes weights ``[K, N]``, their scales and their zero points while a model is saved.

    Packed codes are unpacked again and compared.

    Attributes:
        form: how the weights are stored.
        codes, scale: as they are stored.
        points: zero points as they are stored, or None.
        kind: ONNX type of the codes and zero points to write.
        middle: what is subtracted from both.
        order: of the rows of the codes; None if they do not move.
    """

    form: Weights
    codes: Stream
    scale: Stream
    points: Array | None
    kind: str
    middle: int = 0
    order: Array | None = None

    def tensors(self, shape: tuple[int, ...]) -> tuple[DeferredTensor, ...]:
        """Return the tensors: codes ``[K, N]``, scales and zero points, both of ``shape``."""
        codes, real = ir.DataType[self.kind], ir.DataType.FLOAT
        forms = ((codes, (self.form.k, self.form.n)), (real, shape), (codes, shape))
        return tuple(DeferredTensor(self, place, *form) for place, form in enumerate(forms))

    def parts(self) -> Sequence[JobPart]:
        """Return parts: one for all parameters, and strips of rows of the codes."""
        k, nbytes = self.form.k, self.codes.nbytes
        step = k
        if self.order is None:
            strips = max(-(-nbytes // _PART_BYTES), 1)
            step = -(-k // strips // self._tile) * self._tile
        spans = [(start, min(start + step, k)) for start in range(0, k, step)]
        tables = JobPart(self.write_tables, None, self.scale.nbytes)
        reads = nbytes // max(len(spans), 1)
        return [tables, *(JobPart(self.write_rows, span, reads) for span in spans)]

    def conclude(self, results: Sequence[Any]) -> None:
        """Do nothing: each part compares what it writes."""

    def write_tables(self, _: None, sinks: Sequence[Sink]) -> None:
        """Write scales and zero points."""
        sinks[1].write(0, np.ascontiguousarray(self.form.scales(self.scale.array()).T))
        zero = self.form.zero_points(self.points).T - np.float32(self.middle)
        writer = CodeWriter(sinks[2], self.kind, 0, "The zero points")
        writer.write(zero.astype(np.int16).astype(np.uint8, order="C"), is_last=True, checks=True)

    def write_rows(self, span: tuple[int, int], sinks: Sequence[Sink]) -> None:
        """Write the rows of codes from the first to before the second."""
        start, stop = span
        writer = CodeWriter(sinks[0], self.kind, start * self.form.n)
        packed = self._packed(start, stop)
        for first in range(start, stop, self._tile):
            last = min(first + self._tile, stop)
            writer.write(self._rows(packed, start, first, last), is_last=last == stop, checks=True)

    @property
    def _tile(self) -> int:
        return _TILE_BYTES * 8 // self.form.bits

    def _packed(self, start: int, stop: int) -> Array:
        """Return the bytes ``[N, ...]`` that hold rows of codes; all if their order changes."""
        width, bits = self.codes.size // self.form.n, self.form.bits
        first, last = start * bits // 8, -(-stop * bits // 8)
        if self.order is not None:
            first, last = 0, width
        packed = np.empty((self.form.n, last - first), np.uint8)
        for place, piece in self.codes.pieces(multiple=width):
            rows = piece.reshape(-1, width)
            packed[place // width : place // width + len(rows)] = rows[:, first:last]
        return packed

    def _rows(self, packed: Array, start: int, first: int, last: int) -> Array:
        """Return rows of codes, ``[last - first, N]``, a byte each."""
        bits, each = self.form.bits, 8 // self.form.bits
        mask = np.uint8((1 << bits) - 1)
        if self.order is not None:
            at = self.order[first:last] * bits
            codes = (packed[:, at // 8] >> (at % 8).astype(np.uint8) & mask).T
        else:
            place = (first - start) // each
            part = np.ascontiguousarray(packed[:, place : place + _TILE_BYTES])
            data = np.ascontiguousarray(part.T)
            codes = np.empty((len(data) * each, self.form.n), np.uint8)
            for shift in range(each):
                rows = codes[shift::each]
                np.right_shift(data, np.uint8(shift * bits), out=rows)
                np.bitwise_and(rows, mask, out=rows)
            codes = codes[: last - first]
        # Differences wrap around in a byte, and the low bits are those of the narrow type.
        return np.ascontiguousarray(codes) - np.uint8(self.middle) if self.middle else codes

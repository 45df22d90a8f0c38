"""Transpose the packed codes, scales and zero points of a MatMulNBits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.deferred import DeferredTensor, NoSink
from qgraph.graph.streaming import Sink, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, unpack
from qgraph.numerics.packed_matrix import transpose, transpose_packed
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.quantizers.weights.job import CodeWriter, JobPart

_PART_BYTES = 1 << 24
"""Maximum number of packed codes of a part in memory."""

_TILE_BYTES = 512
"""Bytes of each row of packed codes that are transposed at a time."""


@dataclass(frozen=True, eq=False)
class BlockCodes:
    """Writes weights ``[K, N]``, their scales and their zero points while a model is saved.

    Codes stay packed if possible. Codes that are repacked are unpacked again and compared. Of codes
    that stay packed, one column of each tile is compared.

    Attributes:
        form: layout of the stored weights.
        codes, scale: stored codes and scales.
        points: stored zero points, or None.
        kind: ONNX type of the codes and zero points to write.
        middle: number that is subtracted from both.
        order: new order of the rows of the codes; None if it does not change.
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
        return tuple(DeferredTensor(self, index, *form) for index, form in enumerate(forms))

    def parts(self) -> Sequence[JobPart]:
        """Return parts: one for all parameters, and strips of rows of the codes."""
        k, nbytes = self.form.k, self.codes.nbytes
        step = k
        if self.order is None:
            strips = max(-(-nbytes // _PART_BYTES), 1)
            tile = _TILE_BYTES * 8 // self.form.bits
            step = -(-k // strips // tile) * tile
        spans = [(start, min(start + step, k)) for start in range(0, k, step)]
        tables = JobPart(self.write_tables, None, self.scale.nbytes)
        reads = nbytes // max(len(spans), 1)
        return [tables, *(JobPart(self.write_rows, span, reads) for span in spans)]

    def conclude(self, results: Sequence[Any]) -> None:
        """Do nothing: each part compares what it writes."""

    def write_tables(self, _: None, sinks: Sequence[Sink]) -> None:
        """Write scales and zero points."""
        form = self.form
        if not isinstance(sinks[1], NoSink):
            scale = np.empty((form.blocks, form.n), np.float32)
            transpose(form.scales(self.scale.array()), scale)
            sinks[1].write(0, scale)
        if isinstance(sinks[2], NoSink):
            return
        writer = CodeWriter(sinks[2], self.kind, 0, "The zero points")
        if self.points is not None and not form.has_packed_points(self.points):
            zero = form.zero_points(self.points).T - np.float32(self.middle)
            codes = zero.astype(np.int16).astype(np.uint8, order="C")
            writer.write(codes, is_last=True, checks=True)
            return
        width = -(-form.blocks * form.bits // 8)
        packed = np.full((form.n, width), everywhere(1 << (form.bits - 1), form.bits))
        if self.points is not None:
            packed = self.points.reshape(form.n, width)
        rows = np.empty((width * 8 // form.bits, self._row), np.uint8)
        _transpose(packed, form.bits, rows)
        self._write(writer, rows[: form.blocks], is_last=True)

    def write_rows(self, span: tuple[int, int], sinks: Sequence[Sink]) -> None:
        """Write the rows of codes from the first to before the second.

        Raises:
            ModelError: the codes were not packed as they should be.
        """
        start, stop = span
        if isinstance(sinks[0], NoSink):
            return
        writer = CodeWriter(sinks[0], self.kind, start * self.form.n)
        for rows in self._rows(start, stop):
            start += len(rows)
            self._write(writer, rows, is_last=start == stop)

    def _write(self, writer: CodeWriter, rows: Array, *, is_last: bool) -> None:
        """Write packed rows of codes minus the middle; the rows are overwritten."""
        bits, n = self.form.bits, self.form.n
        if FORMATS[self.kind].bits == bits and n * bits % 8 == 0:
            # The middle is the highest bit of a code, which a subtraction inverts.
            middle = everywhere(self.middle, bits)
            rows = np.ascontiguousarray(rows[:, : n * bits // 8])
            writer.write_packed(np.bitwise_xor(rows, middle, out=rows) if middle else rows)
            return
        codes = rows if bits == 8 else unpack(rows.reshape(-1), bits, rows.size * 8 // bits)
        codes = codes.reshape(len(rows), -1)[:, :n] - np.uint8(self.middle)
        writer.write(codes, is_last=is_last, checks=True)

    def _rows(self, start: int, stop: int) -> Iterator[Array]:
        """Yield packed rows of codes, ``[rows, ...]``; their memory is reused.

        Codes of columns that are not there may follow in each row.
        """
        bits, each = self.form.bits, 8 // self.form.bits
        packed = self._packed(start, stop)
        height = packed.shape[1] if self.order is not None else _TILE_BYTES
        tile = np.empty((min(height, packed.shape[1]) * each, self._row), np.uint8)
        for left in range(0, packed.shape[1], height):
            part = packed[:, left : left + height]
            rows = tile[: part.shape[1] * each]
            _transpose(part, bits, rows)
            if self.order is None:
                yield rows[: stop - start - left * each]
        for first in range(0, 0 if self.order is None else stop, _TILE_BYTES):
            yield tile[np.asarray(self.order)[first : first + _TILE_BYTES]]

    @property
    def _row(self) -> int:
        """Bytes of a row of codes that is filled up to whole words."""
        return -(-self.form.n * self.form.bits // 64) * 8

    def _packed(self, start: int, stop: int) -> Array:
        """Return the bytes ``[N, ...]`` that hold rows of codes; all if their order changes."""
        n, bits = self.form.n, self.form.bits
        width = self.codes.size // n
        first, last = start * bits // 8, -(-stop * bits // 8)
        if self.order is not None:
            first, last = 0, width
        packed = np.empty((n, last - first), np.uint8)
        if (first, last) == (0, width):
            self.codes.read(out=packed.reshape(-1))
            return packed
        for first_row, piece in self.codes.pieces(multiple=width):
            rows = piece.reshape(-1, width)
            packed[first_row // width : first_row // width + len(rows)] = rows[:, first:last]
        return packed


def _transpose(packed: Array, bits: int, rows: Array) -> None:
    if not transpose_packed(packed, bits, rows):
        raise ModelError("codes: its codes are not packed as they should be.")


def everywhere(code: int, bits: int) -> np.uint8:
    """Return a byte that repeats a code at all its bit positions."""
    return np.uint8(code * (255 // ((1 << bits) - 1)))

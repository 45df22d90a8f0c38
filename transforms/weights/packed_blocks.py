"""Pack stored codes in the layout of MatMulNBits, while a model is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.deferred import DeferredTensor, NoSink
from qgraph.graph.streaming import FileRange, Sink, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, pack
from qgraph.numerics.packed_matrix import transpose_packed
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.quantizers.weights.job import JobPart
from qgraph.transforms.weights.block_codes import everywhere

_PART_BYTES = 1 << 25
"""Maximum number of packed codes of a part in memory."""


@dataclass(frozen=True, eq=False)
class PackedBlocks:
    """Writes codes, scales and zero points of a matrix as a MatMulNBits stores them.

    Signed codes and zero points become unsigned ones. Codes stay packed if possible. Of transposed
    codes, one column of each tile is compared.

    Attributes:
        form: layout of the written weights.
        codes: ``[K, N]``, or ``[N, K]`` if ``turned``, of the width of ``form``.
        scale: for all codes, for each column, or for each block of rows.
        points: zero points of the shape of ``scale``; None for 0.
        turned: whether codes and parameters are transposed.
        times: blocks of ``form`` in a block as stored; 0 if there are no blocks.
    """

    form: Weights
    codes: Stream
    scale: Stream
    points: Stream | None
    turned: bool
    times: int

    def tensors(self) -> tuple[DeferredTensor, ...]:
        """Return the tensors: codes, scales, and zero points if these are not the default."""
        form, byte = self.form, ir.DataType.UINT8
        n, row = form.n, form.size * form.bits // 8
        forms = [(byte, (n, form.blocks, row)), (ir.DataType[self.scale.kind], (n, form.blocks))]
        if self._has_points():
            forms.append((byte, (n, -(-form.blocks * form.bits // 8))))
        return tuple(DeferredTensor(self, index, *each) for index, each in enumerate(forms))

    def _has_points(self) -> bool:
        """Return whether a zero point is not the middle code."""
        if self.points is None:
            return self._middle == 0
        codes = self.points.array().astype(np.int16) + self._middle
        return bool((codes != 1 << (self.form.bits - 1)).any())

    @property
    def _middle(self) -> int:
        """Mask that inverts the highest bit, which makes signed codes unsigned."""
        form = FORMATS[self.codes.kind]
        is_signed = isinstance(form, IntFormat) and form.signed
        return 1 << (self.form.bits - 1) if is_signed else 0

    def parts(self) -> Sequence[JobPart]:
        """Return parts: one for all parameters, and strips of columns."""
        n, nbytes = self.form.n, self.codes.nbytes
        strips = max(-(-nbytes // _PART_BYTES), 1)
        step = -(-n // strips // 8) * 8
        spans = [(start, min(start + step, n)) for start in range(0, n, step)]
        tables = JobPart(self.write_tables, None, self.scale.nbytes)
        return [tables, *(JobPart(self.write_columns, s, nbytes // len(spans)) for s in spans)]

    def conclude(self, results: Sequence[Any]) -> None:
        """Do nothing: each part compares what it writes."""

    def write_tables(self, _: None, sinks: Sequence[Sink]) -> None:
        """Write scales and zero points."""
        form = self.form
        if not isinstance(sinks[1], NoSink):
            sinks[1].write(0, self._by_column(self.scale.array()))
        if not isinstance(sinks[2], NoSink):
            points = np.zeros((), np.int8) if self.points is None else self.points.array()
            codes = (points.astype(np.int16) + self._middle).astype(np.uint8)
            sinks[2].write(0, form.pack_zero_points(self._by_column(codes)))

    def _by_column(self, parameter: Array) -> Array:
        """Return a parameter as ``[N, blocks]``."""
        form = self.form
        if parameter.size == 1:
            parameter = parameter.reshape(1, 1)
        elif not self.times:
            parameter = parameter.reshape(-1, 1)
        else:
            rows = parameter if self.turned else parameter.T
            parameter = np.repeat(rows, self.times, axis=1)[:, : form.blocks]
        return np.ascontiguousarray(np.broadcast_to(parameter, (form.n, form.blocks)))

    def write_columns(self, span: tuple[int, int], sinks: Sequence[Sink]) -> None:
        """Write the codes of columns from the first to before the second.

        Raises:
            ModelError: the codes were not packed as they should be.
        """
        if isinstance(sinks[0], NoSink):
            return
        start, stop = span
        form, count = self.form, stop - start
        width = form.blocks * form.size * form.bits // 8
        if self.turned:
            columns = np.zeros((count, width), np.uint8)
            rows = self._packed(span, form.k)
            columns[:, : rows.shape[1]] = rows
        else:
            rows = self._packed((0, form.k), count, start)
            words = -(-form.k * form.bits // 64) * 8
            columns = np.zeros((rows.shape[1] * 8 // form.bits, max(width, words)), np.uint8)
            if not transpose_packed(rows, form.bits, columns[:, :words]):
                raise ModelError("codes: its codes are not packed as they should be.")
            columns = np.ascontiguousarray(columns[:count, :width])
        sinks[0].write(start * width, columns)

    def _packed(self, rows: tuple[int, int], count: int, left: int = 0) -> Array:
        """Return bytes of ``count`` unsigned codes from the column ``left`` on, ``[rows, ...]``."""
        bits, codes = self.form.bits, self.codes
        out = np.empty((rows[1] - rows[0], -(-count * bits // 8)), np.uint8)
        source = codes.packed()
        is_packed = source is not None
        if source is None:
            in_file = isinstance(codes.stored, FileRange)
            source = codes if in_file else Stream(codes.kind, codes.shape, codes.array())
        length, first = source.shape[1], left * bits // 8 if is_packed else left
        between = rows[0] * length, rows[1] * length
        for start, piece in source.pieces(multiple=length, between=between):
            top = start // length - rows[0]
            part = piece.view(np.uint8).reshape(-1, length)[:, first:]
            if is_packed:
                part = part[:, : out.shape[1]] ^ everywhere(self._middle, bits)
            else:
                part = _joined(part[:, :count] ^ np.uint8(self._middle), bits)
            out[top : top + len(part)] = part
        return out


def _joined(codes: Array, bits: int) -> Array:
    """Pack rows of codes, each filled up to whole bytes."""
    if bits == 8:
        return codes
    each = 8 // bits
    rows = np.zeros((len(codes), -(-codes.shape[1] // each) * each), np.uint8)
    rows[:, : codes.shape[1]] = codes & np.uint8((1 << bits) - 1)
    return pack(rows, bits).reshape(len(rows), -1)

"""Write codes of DequantizeLinear in the layout of MatMulNBits, and back, in parts of any size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError, OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.deferred import DeferredTensor, NoSink, Part
from qgraph.graph.streaming import PIECE, FileRange, Sink, Stream, box_at
from qgraph.numerics import Array
from qgraph.numerics.chunks import transpose, transpose_packed
from qgraph.numerics.formats import FORMATS, IntFormat, container, pack, unpack
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.quantizers.weights.job import CodeWriter
from qgraph.quantizers.weights.level_table import numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, pieces
from qgraph.records import dataclass

Compute = Callable[[tuple[int, int], Sequence[Sink]], None]

_PART_BYTES = 1 << 25
"""Maximum bytes of packed codes of a part in memory."""

_TILE_BYTES = 512
"""Bytes of each row of packed codes that are transposed at a time."""


@dataclass(frozen=True, eq=False)
class _PackedJob:
    """Writes packed codes in parts, and their parameters in another one."""

    form: Weights
    codes: Stream
    scale: Stream

    def _parts(self, write: Compute, length: int, step: int) -> list[Part]:
        """Return a part for all parameters, and strips of rows or columns of the codes."""
        spans = [(start, min(start + step, length)) for start in range(0, length, step)]
        tables = Part(self.write_tables, None, self.scale.nbytes)
        reads = self.codes.nbytes // max(len(spans), 1)
        return [tables, *(Part(write, span, reads) for span in spans)]

    @abstractmethod
    def write_tables(self, _: None, sinks: Sequence[Sink]) -> None:
        """Write scales and zero points."""

    def conclude(self, results: Sequence[Any]) -> None:
        """Do nothing: each part compares what it writes."""


@dataclass(frozen=True, eq=False)
class PackedBlocks(_PackedJob):
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

    def compared(self, decode: ir.Node) -> Verdict:
        """Compare the weights of a DequantizeLinear with those of a MatMulNBits.

        Both are ``(code - zero_point) * scale``, and the difference is exact. MatMulNBits rounds
        the product to float32, the other one to its own type.
        """
        codes, x, y = self.codes, decode.inputs[0], decode.outputs[0]
        is_float = decode.attributes.get_int("output_dtype", 0) in (0, ir.DataType.FLOAT.value)
        if self.scale.kind == "FLOAT" and is_float:
            return Verdict(Exactness.BITS, Method.CONGRUENCE)
        program = None if x is None else ElementProgram.of([decode], x, y, codes.shape)
        if program is None:
            raise OperatorError(
                f"{where(decode)}: its weights cannot be compared; use float32 scales"
            )
        scale, *points = program.parameters
        differing, witness = 0, None
        for first, last in pieces(program.shapes, 0, codes.size, PIECE):
            corner, sizes = box_at(codes.shape, first, last - first)
            numbers = numbers_of(codes.read(first, last).view(container(codes.kind)), codes.kind)
            before = program(numbers, first).astype(np.float32)
            steps = numbers.reshape(sizes).astype(np.float32)
            after = (steps - sum(p.at(corner, sizes) for p in points)) * scale.at(corner, sizes)
            wrong = np.flatnonzero(before != after.reshape(-1))
            if wrong.size and witness is None:
                at = int(wrong[0])
                witness = Witness(float(first + at), float(before[at]), float(after.flat[at]))
            differing += wrong.size
        if witness is None:
            return Verdict(Exactness.BITS, Method.CONSTANT)
        reason = f"only DequantizeLinear rounds {differing} weights to its 16 bits"
        return Verdict(Exactness.CODES, Method.CONSTANT, differing, witness=witness, reason=reason)

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

    def parts(self) -> Sequence[Part]:
        """Return parts: one for all parameters, and strips of columns."""
        n, strips = self.form.n, max(-(-self.codes.nbytes // _PART_BYTES), 1)
        return self._parts(self.write_columns, n, -(-n // strips // 8) * 8)

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
            _transpose(rows, form.bits, columns[:, :words])
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


@dataclass(frozen=True, eq=False)
class BlockCodes(_PackedJob):
    """Writes weights ``[K, N]``, their scales and their zero points while a model is saved.

    Codes stay packed if possible. Codes that are repacked are unpacked again and compared. Of codes
    that stay packed, one column of each tile is compared.

    Attributes:
        form: layout of the stored weights.
        points: stored zero points, or None.
        kind: ONNX type of the codes and zero points to write.
        middle: number that is subtracted from both.
        order: new order of the rows of the codes; None if it does not change.
    """

    points: Array | None
    kind: str
    middle: int = 0
    order: Array | None = None

    def tensors(self, shape: tuple[int, ...]) -> tuple[DeferredTensor, ...]:
        """Return the tensors: codes ``[K, N]``, scales and zero points, both of ``shape``."""
        codes, real = ir.DataType[self.kind], ir.DataType.FLOAT
        forms = ((codes, (self.form.k, self.form.n)), (real, shape), (codes, shape))
        return tuple(DeferredTensor(self, index, *form) for index, form in enumerate(forms))

    def parts(self) -> Sequence[Part]:
        """Return parts: one for all parameters, and strips of rows of the codes."""
        k = step = self.form.k
        if self.order is None:
            strips = max(-(-self.codes.nbytes // _PART_BYTES), 1)
            tile = _TILE_BYTES * 8 // self.form.bits
            step = -(-k // strips // tile) * tile
        return self._parts(self.write_rows, k, step)

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

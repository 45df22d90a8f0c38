"""Jobs on one weight of any size, in parts that run in any process while a model is saved.

A part is a run of consecutive elements (:func:`flat_parts`), or a box of whole groups of elements
that share a scale (:class:`Groups`). Codes of a part begin at a whole byte.

Three jobs have this form. They differ in what they compute of a piece:

* :mod:`codes_job` writes the codes of the values that a quantizer gives;
* :mod:`weight_job` chooses scales for a float weight and quantizes it;
* :class:`RepackJob` writes stored codes in another type: the same numbers, from another zero point
  or in other units. Every element is compared: the new code must represent the number of the old
  code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.deferred import PART_BYTES, Job, MemorySink, Part
from qgraph.graph.draft_parts import Tally
from qgraph.graph.streaming import Sink, Stream, box_at
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype, pack, unpack
from qgraph.numerics.minifloat import DTYPES, decode, encode
from qgraph.quantizers.weights import job
from qgraph.quantizers.weights.piecewise import Parameter, pieces
from qgraph.records import dataclass, field

PIECE = 1 << 18
"""Number of elements that are read at a time."""

_ALIGNED = 8
"""Codes of any width fill whole bytes after a multiple of this number of elements."""


def flat_parts(
    stream: Stream, compute: Callable[[tuple[int, int], Sequence[Sink]], Any]
) -> list[Part]:
    """Return parts of consecutive elements of a stream, from ``start`` to before ``stop`` each."""
    step = max(PART_BYTES // max(stream.dtype.itemsize, 4) // _ALIGNED, 1) * _ALIGNED
    spans = [(at, min(at + step, stream.size)) for at in range(0, stream.size, step)]
    each = stream.nbytes, max(stream.size, 1)
    return [Part(compute, span, each[0] * (span[1] - span[0]) // each[1]) for span in spans]


def run_now(job: Job, sizes: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """Do all work of a job in memory; return the bytes of each tensor.

    Raises:
        ModelError: ``job.conclude`` raises it.
    """
    sinks = [MemorySink(size) for size in sizes]
    job.conclude([part(sinks) for part in job.parts()])
    return [sink.data for sink in sinks]


class Workspace:
    """Memory for intermediate results, used again for each piece."""

    def __init__(self) -> None:
        self._buffers: dict[object, Array] = {}

    def of(
        self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32, use: object = None
    ) -> Array:
        """Return an array with unset elements, in the memory of the last one for this ``use``."""
        count = math.prod(shape)
        buffer = self._buffers.get(use)
        if buffer is None or buffer.size < count:
            buffer = self._buffers[use] = np.empty(count, dtype)
        return buffer[:count].reshape(shape)


class CodeWriter:
    """Packs consecutive codes and writes them to a sink.

    Args:
        sink: takes the bytes of all codes.
        kind: ONNX type of the codes.
        start: index of the first code; its place is a whole byte.
        label: names the codes in the message of :meth:`write`.
    """

    def __init__(self, sink: Sink, type_name: str, start: int, label: str = "codes") -> None:
        self._sink, self._label = sink, label
        self._bits = ir.DataType[type_name].bitwidth
        self._byte = start * self._bits // 8
        self._rest = np.empty(0, np.uint8)

    def write(self, codes: Array, *, is_last: bool, checks: bool = False) -> None:
        """Write codes, one in each element; an incomplete byte is kept unless they are the last.

        Raises:
            ModelError: ``checks`` is set, and the codes were not packed as they should be.
        """
        if self._bits >= 8:
            self.write_packed(codes.reshape(-1))
            return
        flat = codes.reshape(-1).view(np.uint8)
        flat = np.concatenate([self._rest, flat]) if self._rest.size else flat
        count = flat.size if is_last else flat.size - flat.size % _ALIGNED
        packed, self._rest = pack(flat[:count], self._bits), flat[count:].copy()
        if checks:
            mask = np.uint8((1 << self._bits) - 1)
            if not np.array_equal(unpack(packed, self._bits, count), flat[:count] & mask):
                raise ModelError(f"{self._label}: its codes are not packed as they should be.")
        self.write_packed(packed)

    def write_packed(self, data: Array) -> None:
        """Write bytes of packed codes, each piece from a whole byte on."""
        self._sink.write(self._byte, data)
        self._byte += data.nbytes


@dataclass(frozen=True)
class Groups:
    """The elements that share a scale, in a weight of shape ``[outer, length, inner]``.

    Attributes:
        outer, length, inner: sizes.
        size: elements along ``length`` that share a scale; the last ones may be fewer.
        spread: whether all outer and inner indices at one index of ``length`` are one group, as
            for scales of the whole tensor or of an axis.
    """

    outer: int
    length: int
    inner: int
    size: int
    spread: bool = False

    @classmethod
    def blocks(cls, shape: Sequence[int], axis: int, size: int) -> Groups:
        """Return blocks of ``size`` elements along ``axis``."""
        return cls(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), size)

    @classmethod
    def channels(cls, shape: Sequence[int], axis: int) -> Groups:
        """Return one group for each index of ``axis``."""
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if shape[axis] == 1:
            return cls.tensor(shape)
        if outer == 1:
            return cls(shape[axis], inner, 1, max(inner, 1))
        return cls(outer, shape[axis], inner, 1, spread=True)

    @classmethod
    def tensor(cls, shape: Sequence[int]) -> Groups:
        """Return one group of all elements."""
        count = math.prod(shape)
        return cls(1, count, 1, count, spread=True)

    @property
    def count(self) -> int:
        """Groups along ``length``."""
        return -(-self.length // self.size)

    @property
    def scales(self) -> int:
        """Number of scales."""
        return self.count if self.spread else self.outer * self.count * self.inner

    @property
    def whole(self) -> Box:
        """The box of all elements."""
        return Box(0, self.outer, 0, self.length)

    def size_of(self, box: Box) -> int:
        """Return the number of elements of a box."""
        return (box.bottom - box.top) * (box.last - box.first) * self.inner

    def offset(self, box: Box) -> int:
        """Return the index of the first element of a box."""
        return (box.top * self.length + box.first) * self.inner

    def pieces(self, part: Box, elements: int) -> Iterator[Box]:
        """Cut a box into boxes of about ``elements``, each of whole groups in a row."""
        row = self.length * self.inner
        if self.spread and self.count == 1:
            # One group of everything is cut anywhere.
            for start in range(part.first, part.last, elements):
                yield Box(0, 1, start, min(start + elements, part.last))
            return
        block = self.size * self.inner
        if row <= elements and (part.first, part.last) == (0, self.length):
            step = max(elements // max(row, 1), 1)
            for top in range(part.top, part.bottom, step):
                yield Box(top, min(top + step, part.bottom), 0, self.length)
            return
        step = max(elements // max(block, 1), 1) * self.size
        for top in range(part.top, part.bottom):
            for start in range(part.first, part.last, step):
                yield Box(top, top + 1, start, min(start + step, part.last))

    def parts(self, elements: int) -> list[Box]:
        """Cut everything into boxes of about ``elements`` whose codes begin at whole bytes."""
        row = self.length * self.inner
        single = self.spread and self.count == 1
        if self.outer == 1 or (row > elements and row % _ALIGNED == 0 and self.size % 4 == 0):
            unit = _ALIGNED * (1 if single else self.size)
            step = max(elements // max(unit * self.inner, 1), 1) * unit
            if self.outer == 1 or (self.count * self.inner) % _ALIGNED == 0:
                return [
                    Box(top, top + 1, start, min(start + step, self.length))
                    for top in range(self.outer)
                    for start in range(0, self.length, step)
                ]
        rows = max(elements // max(row * _ALIGNED, 1), 1) * _ALIGNED
        return [
            Box(top, min(top + rows, self.outer), 0, self.length)
            for top in range(0, self.outer, rows)
        ]


@dataclass(frozen=True)
class Box:
    """Outer indices from ``top`` to before ``bottom``, and a range of indices along the length."""

    top: int
    bottom: int
    first: int
    last: int


@dataclass(frozen=True)
class NumberRange:
    """The range of the numbers that codes represent.

    Attributes:
        low, high: of all codes.
        low_centred, high_centred: of all codes minus their zero points.
        used: the occurring numbers of a minifloat; empty for integers.
    """

    low: float
    high: float
    low_centred: float
    high_centred: float
    used: frozenset[float] = frozenset()


@dataclass(frozen=True, eq=False)
class Source:
    """The stored codes.

    Attributes:
        bounds: of a Clip that follows, or None.
        shift: the subtracted zero points, or one number for all; None for 0.
    """

    stream: Stream
    bounds: tuple[float, float] | None = None
    shift: Parameter | None = None

    def numbers(self, start: int, stop: int) -> Iterator[tuple[int, Array, Array]]:
        """Yield ``(index, numbers, numbers - shift)`` piece by piece, as int32 or float32.

        ``index`` is that of the first element. Pieces are boxes of the codes.
        """
        stream, shape = self.stream.in_memory(), self.stream.shape
        for first, last in pieces([shape], start, stop, job.PIECE):
            numbers = numbers_of(stream.read(first, last), stream.kind)
            if self.bounds is not None:
                low, high = (numbers.dtype.type(bound) for bound in self.bounds)
                np.clip(numbers, low, high, out=numbers)
            centred = numbers
            if self.shift is not None:
                corner, sizes = box_at(shape, first, last - first)
                shift = self.shift.at(corner, sizes)
                centred = (numbers.reshape(sizes) - shift.astype(numbers.dtype)).reshape(-1)
            yield first, numbers, centred

    def survey(self) -> NumberRange:
        """Read all codes, of which there is one at least; return the range of their numbers."""
        ends: list[tuple[float, float, float, float]] = []
        used: set[float] = set()
        for _, numbers, centred in self.numbers(0, self.stream.size):
            low, high = float(numbers.min()), float(numbers.max())
            ends.append((low, high, float(centred.min()), float(centred.max())))
            if numbers.dtype == np.float32:
                used.update(np.unique(numbers).tolist())
        lows, highs, low_centred, high_centred = zip(*ends, strict=True)
        ends_centred = min(low_centred), max(high_centred)
        return NumberRange(min(lows), max(highs), *ends_centred, frozenset(used))


def numbers_of(codes: Array, type_name: str) -> Array:
    """Return the numbers of codes without scale and zero point, as int32 or float32."""
    return decode(codes) if type_name in DTYPES else codes.astype(np.int32)


@dataclass(frozen=True, eq=False)
class Recoder:
    """Writes codes of type ``kind`` for ``(number - shift) * factor``.

    Attributes:
        source: the codes now, with the shift.
        kind: ONNX type of the new codes.
    """

    source: Source
    kind: str
    factor: float = 1.0

    def compute(self, span: tuple[int, int], sinks: Sequence[Sink]) -> tuple[int, int]:
        """Write new codes; return the number of elements, and how many would change."""
        start, stop = span
        writer = CodeWriter(sinks[0], self.kind, start, "The tensor")
        wrong = 0
        for first, _, numbers in self.source.numbers(start, stop):
            wanted = numbers if self.factor == 1 else numbers * np.float32(self.factor)
            codes = codes_of(wanted, self.kind)
            wrong += int(np.count_nonzero(numbers_of(codes, self.kind) != wanted))
            writer.write(codes, is_last=first + codes.size == stop, checks=True)
        return stop - start, wrong


@dataclass(eq=False)
class RepackJob:
    """Writes stored codes in another type.

    Attributes:
        name: name of the tensor, for messages.
        listeners: called with the counts when all elements are done.
    """

    name: str
    recoder: Recoder
    listeners: list[Callable[[Tally], None]] = field(default_factory=list)
    _tally: Tally | None = None

    def parts(self) -> Sequence[Part]:
        """Return the parts, which begin at whole bytes of codes."""
        return flat_parts(self.recoder.source.stream, self.recoder.compute)

    def conclude(self, results: Sequence[tuple[int, int]]) -> None:
        """Add up the counts of all parts; ModelError if an element would change."""
        wrong = sum(wrong for _, wrong in results)
        if wrong:
            raise ModelError(
                f"Codes {self.name!r}: {wrong} elements would change as {self.recoder.kind}, "
                "expected none; the data file may have changed meanwhile. Try again."
            )
        count = sum(count for count, _ in results)
        self._tally = Tally(elements=count, unchanged=count)
        for each in self.listeners:
            each(self._tally)

    def report_to(self, listener: Callable[[Tally], None]) -> None:
        """Call ``listener`` with the counts when all elements are done, at once if they are."""
        self.listeners.append(listener)
        if self._tally is not None:
            listener(self._tally)


def codes_of(numbers: Array, type_name: str) -> Array:
    """Return the codes of whole numbers, or of numbers of a minifloat, in the dtype of the type."""
    form = FORMATS[type_name]
    if not isinstance(form, IntFormat):
        return encode(numbers.astype(np.float32, copy=False), type_name)
    whole = np.clip(numbers, form.lo, form.hi).astype(np.int64 if form.bits > 16 else np.int32)
    if form.bits >= 8:
        return whole.astype(numpy_dtype(type_name))
    return whole.astype(np.int8).view(numpy_dtype(type_name))

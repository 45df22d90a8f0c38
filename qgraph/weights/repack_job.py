"""Stored codes in another type: the same numbers, from another zero point or in other units.

Every element is compared: the code that was written, read back, must stand for the number that the
old code stood for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.numerics.minifloat import DTYPES, decode, encode
from qgraph.numerics.packing import pack, packed_size, unpack
from qgraph.tensors.deferred import PART_BYTES, MemorySink
from qgraph.tensors.ledger import Tally
from qgraph.tensors.streaming import Sink, Stream

Array = npt.NDArray[Any]

_PIECE = 1 << 18
"""Elements at a time."""

_ALIGNED = 8
"""Rows after which codes of any width end at a whole byte."""


@dataclass(frozen=True)
class Range:
    """The numbers that codes stand for.

    Attributes:
        low, high: of all codes.
        low_centred, high_centred: of all codes minus their zero points.
        used: the numbers of a minifloat that occur; empty for integers.
    """

    low: float
    high: float
    low_centred: float
    high_centred: float
    used: frozenset[float] = frozenset()


@dataclass(frozen=True, eq=False)
class Shift:
    """What is subtracted from the numbers of codes: zero points, or one number for all.

    Attributes:
        numbers: whole numbers in the rank of the codes, of length 1 along other axes.
        axis: along which blocks lie.
        block_size: codes per entry along ``axis``; 0 for one entry for each index.
    """

    numbers: npt.NDArray[np.int32]
    axis: int = 0
    block_size: int = 0

    def rows(self, first: int, last: int, shape: Sequence[int]) -> npt.NDArray[np.int32]:
        """Return what broadcasts to the rows from ``first`` to ``last`` of codes of ``shape``."""
        numbers = self.numbers
        if numbers.size == 1:
            return numbers
        if self.block_size and self.axis == 0:
            numbers = numbers[np.arange(first, last) // self.block_size]
        elif len(numbers) > 1:
            numbers = numbers[first:last]
        if self.block_size and self.axis > 0:
            inside = (*(slice(None),) * self.axis, slice(shape[self.axis]))
            return np.repeat(numbers, self.block_size, axis=self.axis)[inside]
        return numbers


@dataclass(frozen=True, eq=False)
class Source:
    """Codes as they are stored now.

    Attributes:
        stream: the codes.
        bounds: of a Clip that follows, or None.
    """

    stream: Stream
    bounds: tuple[float, float] | None = None

    def rows(self, first: int, last: int) -> Iterator[tuple[int, Array]]:
        """Yield ``(row, numbers)`` for some rows at a time; numbers are int32 or float32."""
        shape = self.stream.shape or (1,)
        row = self.stream.size // max(shape[0], 1)
        step = max(_PIECE // max(row, 1), 1)
        for start in range(first, last, step):
            stop = min(start + step, last)
            codes = self.stream.read(start * row, stop * row)
            numbers = numbers_of(codes, self.stream.kind)
            if self.bounds is not None:
                low, high = (numbers.dtype.type(bound) for bound in self.bounds)
                np.clip(numbers, low, high, out=numbers)
            yield start, numbers.reshape(stop - start, *shape[1:])

    @property
    def count(self) -> int:
        """How many rows there are: the length of the first axis."""
        return self.stream.shape[0] if self.stream.shape else 1

    def survey(self, zero_point: Shift | None) -> Range:
        """Read all codes, of which there is one at least; return the range of their numbers."""
        ends: list[tuple[float, float, float, float]] = []
        used: set[float] = set()
        for start, numbers in self.rows(0, self.count):
            centred = numbers
            if zero_point is not None:
                shift = zero_point.rows(start, start + len(numbers), self.stream.shape)
                centred = numbers - shift
            low, high = float(numbers.min()), float(numbers.max())
            ends.append((low, high, float(centred.min()), float(centred.max())))
            if numbers.dtype == np.float32:
                used.update(np.unique(numbers).tolist())
        lows, highs, low_centred, high_centred = zip(*ends, strict=True)
        return Range(min(lows), max(highs), min(low_centred), max(high_centred), frozenset(used))


def numbers_of(codes: Array, kind: str) -> Array:
    """Return what codes stand for without scale and zero point, as int32, or float32."""
    if kind in DTYPES:
        return decode(codes)
    return codes.astype(np.int32)


@dataclass(eq=False)
class RepackJob:
    """Gives codes of type ``kind`` for ``(number - shift) * factor``.

    Attributes:
        name: of the tensor, for messages.
        source: what the codes are made of.
        kind: ONNX type of the new codes.
        shift: what is subtracted; None for 0.
        factor: a power of two.
        listeners: are given the counts when all elements are done.
    """

    name: str
    source: Source
    kind: str
    shift: Shift | None = None
    factor: float = 1.0
    listeners: list[Callable[[Tally], None]] = field(default_factory=list)
    _tally: Tally | None = None

    def parts(self) -> Sequence[RepackPart]:
        """Return the work, cut between rows."""
        count = self.source.count
        row = self.source.stream.size // max(count, 1)
        step = max(PART_BYTES // 4 // max(row * _ALIGNED, 1), 1) * _ALIGNED
        return [
            RepackPart(
                self.source, self.kind, self.shift, self.factor, first, min(first + step, count)
            )
            for first in range(0, count, step)
        ]

    def conclude(self, results: Sequence[tuple[int, int]]) -> None:
        """See that every element is what it was.

        Raises:
            ModelError: one is not.
        """
        wrong = sum(wrong for _, wrong in results)
        if wrong:
            raise ModelError(
                f"Codes {self.name!r}: {wrong} elements would change as {self.kind}, expected "
                "none; the data file may have changed meanwhile. Try again."
            )
        count = sum(count for count, _ in results)
        self._tally = Tally(elements=count, unchanged=count)
        for each in self.listeners:
            each(self._tally)

    def report_to(self, tell: Callable[[Tally], None]) -> None:
        """Let ``tell`` have the counts when all elements are done, at once if they are."""
        self.listeners.append(tell)
        if self._tally is not None:
            tell(self._tally)

    def run(self) -> npt.NDArray[np.uint8]:
        """Do all work now; return the bytes of the codes."""
        sink = MemorySink(self.size)
        self.conclude([part([sink]) for part in self.parts()])
        return sink.data

    @property
    def size(self) -> int:
        """Bytes of the codes."""
        return packed_size(FORMATS[self.kind].bits, self.source.stream.size)


@dataclass(frozen=True, eq=False)
class RepackPart:
    """The rows from ``first`` to ``last``; see :class:`RepackJob`."""

    source: Source
    kind: str
    shift: Shift | None
    factor: float
    first: int
    last: int

    @property
    def reads(self) -> int:
        """Bytes of the codes in this part."""
        rows = self.last - self.first
        return self.source.stream.nbytes * rows // max(self.source.count, 1)

    def __call__(self, sinks: Sequence[Sink]) -> tuple[int, int]:
        """Write the new codes; return how many elements there are, and how many would change."""
        bits = FORMATS[self.kind].bits
        row = self.source.stream.size // max(self.source.count, 1)
        made: list[Array] = []
        wrong = 0
        for start, numbers in self.source.rows(self.first, self.last):
            if self.shift is not None:
                shape = self.source.stream.shape
                shift = self.shift.rows(start, start + len(numbers), shape)
                numbers -= shift.astype(numbers.dtype)
            wanted = numbers if self.factor == 1 else numbers * np.float32(self.factor)
            codes = codes_of(wanted, self.kind)
            stored = pack(codes, bits) if bits < 8 else codes
            again = unpack(stored, bits, codes.size) if bits < 8 else codes
            found = numbers_of(_signed(again, self.kind), self.kind).reshape(wanted.shape)
            wrong += int(np.count_nonzero(found != wanted))
            made.append(codes.reshape(-1))
        if made:
            whole = np.concatenate(made)
            sinks[0].write(self.first * row * bits // 8, pack(whole, bits) if bits < 8 else whole)
        return (self.last - self.first) * row, wrong


def codes_of(numbers: Array, kind: str) -> Array:
    """Return the codes of whole numbers, or of numbers of a minifloat, in the type's own dtype."""
    form = FORMATS[kind]
    if not isinstance(form, IntFormat):
        return encode(numbers.astype(np.float32, copy=False), kind)
    whole = np.clip(numbers, form.lo, form.hi).astype(np.int64 if form.bits > 16 else np.int32)
    if form.bits >= 8:
        return whole.astype(numpy_dtype(kind))
    return whole.astype(np.int8).view(numpy_dtype(kind))


def _signed(codes: Array, kind: str) -> Array:
    """Return bits of codes in the type's dtype; the upper bits of a byte do not matter."""
    form = FORMATS[kind]
    if isinstance(form, IntFormat) and form.bits < 8 and form.signed:
        shift = np.int8(8 - form.bits)
        return np.right_shift(np.left_shift(codes.view(np.int8), shift), shift)
    return codes.view(numpy_dtype(kind)) if codes.dtype == np.uint8 and form.bits <= 8 else codes

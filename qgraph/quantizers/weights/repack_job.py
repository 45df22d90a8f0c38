"""Stored codes in another type: the same numbers, from another zero point or in other units.

Every element is compared: the code that is written must stand for the number that the old code
stood for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.graph.deferred import Tally
from qgraph.graph.streaming import Sink, Stream, box_at
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.numerics.minifloat import DTYPES, decode, encode
from qgraph.numerics.packing import packed_size
from qgraph.quantizers.weights import job
from qgraph.quantizers.weights.job import CodeWriter, JobPart, flat_parts, run_now
from qgraph.quantizers.weights.piecewise import Parameter, pieces


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
class Source:
    """Codes as they are stored now.

    Attributes:
        stream: the codes.
        bounds: of a Clip that follows, or None.
        shift: what is subtracted: zero points, or one number for all; None for 0.
    """

    stream: Stream
    bounds: tuple[float, float] | None = None
    shift: Parameter | None = None

    def numbers(self, start: int, stop: int) -> Iterator[tuple[int, Array, Array]]:
        """Yield ``(index, numbers, numbers - shift)`` piece by piece, as int32 or float32.

        ``index`` is that of the first element. Pieces are boxes of the codes.
        """
        shape = self.stream.shape
        for first, last in pieces([shape], start, stop, job.PIECE):
            numbers = numbers_of(self.stream.read(first, last), self.stream.kind)
            if self.bounds is not None:
                low, high = (numbers.dtype.type(bound) for bound in self.bounds)
                np.clip(numbers, low, high, out=numbers)
            centred = numbers
            if self.shift is not None:
                corner, sizes = box_at(shape, first, last - first)
                shift = self.shift.at(corner, sizes)
                centred = (numbers.reshape(sizes) - shift.astype(numbers.dtype)).reshape(-1)
            yield first, numbers, centred

    def survey(self) -> Range:
        """Read all codes, of which there is one at least; return the range of their numbers."""
        ends: list[tuple[float, float, float, float]] = []
        used: set[float] = set()
        for _, numbers, centred in self.numbers(0, self.stream.size):
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


@dataclass(frozen=True, eq=False)
class Recoder:
    """Writes codes of type ``kind`` for ``(number - shift) * factor``.

    Attributes:
        source: the codes now, with the shift.
        kind: ONNX type of the new codes.
        factor: a power of two.
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
    """Gives stored codes in another type.

    Attributes:
        name: of the tensor, for messages.
        recoder: what is done.
        listeners: are called with the counts when all elements are done.
    """

    name: str
    recoder: Recoder
    listeners: list[Callable[[Tally], None]] = field(default_factory=list)
    _tally: Tally | None = None

    def parts(self) -> Sequence[JobPart]:
        """Return the parts, which begin at whole bytes of codes."""
        return flat_parts(self.recoder.source.stream, self.recoder.compute)

    def conclude(self, results: Sequence[tuple[int, int]]) -> None:
        """Check that every element is what it was.

        Raises:
            ModelError: one is not.
        """
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

    def run(self) -> npt.NDArray[np.uint8]:
        """Do all work now; return the bytes of the codes."""
        bits, count = FORMATS[self.recoder.kind].bits, self.recoder.source.stream.size
        return run_now(self, [packed_size(bits, count)])[0]


def codes_of(numbers: Array, kind: str) -> Array:
    """Return the codes of whole numbers, or of numbers of a minifloat, in the type's own dtype."""
    form = FORMATS[kind]
    if not isinstance(form, IntFormat):
        return encode(numbers.astype(np.float32, copy=False), kind)
    whole = np.clip(numbers, form.lo, form.hi).astype(np.int64 if form.bits > 16 else np.int32)
    if form.bits >= 8:
        return whole.astype(numpy_dtype(kind))
    return whole.astype(np.int8).view(numpy_dtype(kind))

"""Work on one weight of any size, cut into parts that run anywhere while a model is saved.

A part is a run of consecutive elements (:func:`flat_parts`), or a box of whole groups of elements
that share a scale (:class:`Groups`). Codes of a part begin at a whole byte.

Three jobs have this form. They differ in what they compute of a piece:

* :mod:`codes_job` writes the codes of the values that a quantizer gives;
* :mod:`weight_job` chooses scales for a float weight and quantizes it;
* :mod:`repack_job` writes stored codes in another type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.errors import ModelError
from qgraph.graph.deferred import PART_BYTES, Job, MemorySink
from qgraph.graph.streaming import Sink, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS
from qgraph.numerics.packing import pack, unpack

PIECE = 1 << 18
"""Elements that are read at a time."""

_ALIGNED = 8
"""Codes of any width end at a whole byte after a multiple of this number of elements."""


@dataclass(frozen=True, eq=False)
class JobPart:
    """A piece of work, to be pickled and run anywhere.

    Attributes:
        compute: ``compute(span, sinks)`` does the work; the method of an object without a model.
        span: the elements of this part.
        reads: their size in bytes.
    """

    compute: Callable[[Any, Sequence[Sink]], Any]
    span: Any
    reads: int

    def __call__(self, sinks: Sequence[Sink]) -> Any:
        """Write the tensors of this part; return what the job adds up."""
        return self.compute(self.span, sinks)


def flat_parts(
    stream: Stream, compute: Callable[[tuple[int, int], Sequence[Sink]], Any]
) -> list[JobPart]:
    """Return parts of consecutive elements of a stream, from ``start`` to before ``stop`` each."""
    step = max(PART_BYTES // max(stream.dtype.itemsize, 4) // _ALIGNED, 1) * _ALIGNED
    spans = [(at, min(at + step, stream.size)) for at in range(0, stream.size, step)]
    return [JobPart(compute, span, _bytes_of(stream, *span)) for span in spans]


def _bytes_of(stream: Stream, start: int, stop: int) -> int:
    return stream.nbytes * (stop - start) // max(stream.size, 1)


def run_now(job: Job, sizes: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """Do all work of a job in memory; return the bytes of each tensor.

    Raises:
        ModelError: as ``job.conclude`` does.
    """
    sinks = [MemorySink(size) for size in sizes]
    job.conclude([part(sinks) for part in job.parts()])
    return [sink.data for sink in sinks]


class CodeWriter:
    """Packs consecutive codes and writes them to a sink.

    Args:
        sink: takes the bytes of all codes.
        kind: ONNX type of the codes.
        start: index of the first code; its place is a whole byte.
        label: names the codes in the message of :meth:`write`.
    """

    def __init__(self, sink: Sink, kind: str, start: int, label: str = "codes") -> None:
        self._sink, self._label = sink, label
        self._bits = FORMATS[kind].bits
        self._byte = start * self._bits // 8
        self._rest = np.empty(0, np.uint8)

    def write(self, codes: Array, *, is_last: bool, checks: bool = False) -> None:
        """Write codes; those that do not fill a byte wait for the next ones.

        Args:
            codes: in a type that holds one code in each element.
            is_last: whether no codes follow.
            checks: unpack what was packed, and compare.

        Raises:
            ModelError: the codes were not packed as they should be.
        """
        if self._bits >= 8:
            self._put(codes.reshape(-1))
            return
        flat = codes.reshape(-1).view(np.uint8)
        flat = np.concatenate([self._rest, flat]) if self._rest.size else flat
        count = flat.size if is_last else flat.size - flat.size % _ALIGNED
        packed, self._rest = pack(flat[:count], self._bits), flat[count:].copy()
        if checks:
            mask = np.uint8((1 << self._bits) - 1)
            if not np.array_equal(unpack(packed, self._bits, count), flat[:count] & mask):
                raise ModelError(f"{self._label}: its codes are not packed as they should be.")
        self._put(packed)

    def _put(self, data: Array) -> None:
        self._sink.write(self._byte, data)
        self._byte += data.nbytes


@dataclass(frozen=True)
class Groups:
    """Which elements of a weight, seen as ``[outer, length, inner]``, have one scale.

    Attributes:
        outer, length, inner: sizes.
        size: elements along ``length`` that share a scale; the last ones may be fewer.
        spread: whether the groups at one place of ``length`` are one group, whatever the outer and
            the inner index: scales of the whole tensor, or of an axis.
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
        """How many scales there are."""
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
    """Outer indices from ``top`` to ``bottom``, and places along the length, ends excluded."""

    top: int
    bottom: int
    first: int
    last: int

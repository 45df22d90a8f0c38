"""Decode stored codes while a model is saved.

The codes are only read then; codes that another job computes are decoded while it writes them. A
draft on the decoded values is compared for each code of the type, with each scale and zero point;
these are few, compared with the elements of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.deferred import MOST_TENSORS, DeferredTensor, NoSink, Part
from qgraph.graph.edit import Region
from qgraph.graph.streaming import FileRange, Sink, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, container, unpack
from qgraph.numerics.values import compare_values
from qgraph.ops.known_values import CHOOSING
from qgraph.quantizers.weights import codes_job, job
from qgraph.quantizers.weights.job import flat_parts
from qgraph.quantizers.weights.level_table import aligned, batches, distinct, numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, pieces
from qgraph.records import dataclass

_MOST_BITS = 8
_TIMES = 8
"""Maximum number of values compared for each code; 8 bits in blocks of 32 need as many."""


@dataclass(frozen=True, eq=False)
class DecodedCodes:
    """Writes the values of stored codes.

    Attributes:
        codes: codes in a file, or computed while the model is saved.
        decode: the function of the operators, to float32.
    """

    codes: Stream
    decode: ElementProgram

    @classmethod
    def of(cls, region: Region, codes: Stream | None) -> DecodedCodes | None:
        """Return a job that writes what a region makes of large codes; None for codes in memory."""
        form = None if codes is None else FORMATS.get(codes.kind)
        if codes is None or form is None or form.bits > _MOST_BITS:
            return None
        is_in_memory = not isinstance(codes.stored, FileRange | DeferredTensor)
        if is_in_memory or codes.nbytes < codes_job.LEAST_BYTES:
            return None
        program = ElementProgram.of(region.nodes, region.x, region.y, codes.shape)
        return None if program is None or len(program.shapes) > 1 else cls(codes, program)

    def tensor(self, shape: Sequence[int]) -> DeferredTensor:
        """Return the values as a lazy tensor of a shape with the same number of elements."""
        return DeferredTensor(self, 0, ir.DataType.FLOAT, shape)

    def parts(self) -> Sequence[Part]:
        """Return parts of consecutive elements, or the parts of the job that computes the codes."""
        source = self.codes.stored
        if not isinstance(source, DeferredTensor):
            return flat_parts(self.codes, self.compute)
        work = partial(_decode_part, self.codes.kind, self.decode, source.place)
        return [Part(work, part, part.reads) for part in source.job.parts()]

    def conclude(self, results: Sequence[Any]) -> None:
        """Let the job that computes the codes check them; the values need no check."""
        if isinstance(self.codes.stored, DeferredTensor):
            self.codes.stored.job.conclude(results)

    def compute(self, span: tuple[int, int], sinks: Sequence[Sink]) -> None:
        """Write the values of the codes from the first to before the second."""
        start, stop = span
        buffer = np.empty(min(job.PIECE, stop - start), self.codes.dtype)
        values = _ValueSink(self.codes.kind, self.decode.loaded(), sinks[0])
        for first, last in pieces(self.decode.shapes, start, stop, job.PIECE):
            values.put(first, self.codes.read(first, last, buffer[: last - first]))

    def exactness(
        self,
        nodes: Sequence[ir.Node],
        x: ir.Value,
        y: ir.Value,
        given: ElementProgram | None = None,
    ) -> Exactness | None:
        """Return the level at which a draft keeps the values of all codes; None if unknown.

        The nodes compute ``y`` from ``x``: the codes, or the result of the operators ``given``.
        """
        shape = () if x.shape is None else tuple(int(size) for size in x.shape.numpy())
        program = ElementProgram.of(nodes, x, y, shape)
        if program is None:
            return None
        programs = [self.decode, *([] if given is None else [given]), program]
        parameters = [each.parameters for each in programs]
        laid = aligned([self.codes.shape], list(chain.from_iterable(parameters)))
        if laid is None:
            return None
        patterns = np.arange(1 << FORMATS[self.codes.kind].bits, dtype=np.uint8)
        numbers = numbers_of(patterns.view(container(self.codes.kind)), self.codes.kind)[:, None]
        most = self.codes.size // numbers.size
        flat, entries = distinct(laid[1], most)
        if entries > _TIMES * most:
            return None
        level = Exactness.BITS
        if any(node.op_type in CHOOSING and not node.domain for node in nodes):
            level = Exactness.VALUES  # which zero these operators give is left open
        for part, width in batches(flat, entries, numbers.size):
            arrays = iter(part)
            decoded, *own = [list(islice(arrays, len(each))) for each in parameters]
            values = self.decode.apply(numbers, decoded)
            data = numbers
            for each, its in zip(programs[1:], own, strict=True):
                data = values if each is self.decode else each.apply(data, its)
            shape = numbers.size, width
            values, results = (
                np.ascontiguousarray(np.broadcast_to(each, shape)) for each in (values, data)
            )
            if values.dtype != np.float32 or results.dtype != np.float32:
                return None
            level = min(level, Exactness.of(compare_values(values, results)))
            if level < Exactness.VALUES:
                return None
        return level


@dataclass(frozen=True, eq=False)
class _ValueSink:
    """Takes codes of type ``kind``, and writes what ``decode`` computes from them to ``target``."""

    kind: str
    decode: ElementProgram
    target: Sink

    def write(self, at: int, data: Array) -> None:
        """Decode packed codes, of which the first is at byte ``at``."""
        bits, packed = FORMATS[self.kind].bits, data.reshape(-1).view(np.uint8)
        start = at * 8 // bits
        count = min(packed.size * 8 // bits, math.prod(self.decode.shape) - start)
        codes = packed if bits == _MOST_BITS else unpack(packed, bits, count)
        for first, last in pieces(self.decode.shapes, start, start + count, job.PIECE):
            self.put(first, codes[first - start : last - start])

    def put(self, start: int, codes: Array) -> None:
        """Decode codes in the elements of an array; ``start`` is the index of the first."""
        numbers = numbers_of(codes.view(container(self.kind)), self.kind)
        self.target.write(4 * start, np.ascontiguousarray(self.decode(numbers, start)))


def _decode_part(
    kind: str, decode: ElementProgram, index: int, part: Part, sinks: Sequence[Sink]
) -> Any:
    """Run a part of another job, write the values of its tensor ``index``, return its result."""
    its_sinks: list[Sink] = [NoSink() for _ in range(MOST_TENSORS)]
    its_sinks[index] = _ValueSink(kind, decode.loaded(), sinks[0])
    return part(its_sinks)

"""Decode stored codes while a model is saved.

The codes are not read before that. A draft on their values is compared for each code of the type,
with each scale and zero point; these are few, compared with the elements of a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.edit import Region
from qgraph.graph.streaming import FileRange, Sink, Stream
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, container
from qgraph.numerics.values import compare_values
from qgraph.proof.matching.zero_signs import CHOOSING
from qgraph.quantizers.weights import codes_job, job
from qgraph.quantizers.weights.job import JobPart, flat_parts
from qgraph.quantizers.weights.level_table import aligned, distinct, numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, pieces

_MOST_BITS = 8
_COMPARED = 1 << 18
"""Values at a time."""


@dataclass(frozen=True, eq=False)
class DecodedCodes:
    """Writes the values of stored codes.

    Attributes:
        codes: in their file.
        decode: the values that the operators compute from them, float32.
    """

    codes: Stream
    decode: ElementProgram

    @classmethod
    def of(cls, region: Region, codes: Stream | None) -> DecodedCodes | None:
        """Return a job that writes the values of large codes in a file; None for other codes.

        Args:
            region: what decodes them.
            codes: its input.
        """
        form = None if codes is None else FORMATS.get(codes.kind)
        if codes is None or form is None or form.bits > _MOST_BITS:
            return None
        if not isinstance(codes.stored, FileRange) or codes.nbytes < codes_job.LEAST_BYTES:
            return None
        program = ElementProgram.of(region.nodes, region.x, region.y, codes.shape)
        return None if program is None or len(program.shapes) > 1 else cls(codes, program)

    def tensor(self, shape: Sequence[int]) -> DeferredTensor:
        """Return the values in a shape with as many elements."""
        return DeferredTensor(self, 0, ir.DataType.FLOAT, shape)

    def parts(self) -> Sequence[JobPart]:
        """Return parts of consecutive elements."""
        return flat_parts(self.codes, self.compute)

    def conclude(self, results: Sequence[Any]) -> None:
        """Do nothing: the values are those of the operators."""

    def compute(self, span: tuple[int, int], sinks: Sequence[Sink]) -> None:
        """Write the values of the codes from the first to before the second."""
        start, stop = span
        buffer = np.empty(min(job.PIECE, stop - start), self.codes.dtype)
        for first, last in pieces(self.decode.shapes, start, stop, job.PIECE):
            data = self.codes.read(first, last, buffer[: last - first])
            numbers = numbers_of(data.view(container(self.codes.kind)), self.codes.kind)
            sinks[0].write(4 * first, np.ascontiguousarray(self.decode(numbers, first)))

    def exactness(self, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value) -> Exactness | None:
        """Return how equal operators on the values leave them; None if a code would change.

        Args:
            nodes: operators of ``x``.
            x: the values.
            y: what they become.
        """
        shape = () if x.shape is None else tuple(int(size) for size in x.shape.numpy())
        program = ElementProgram.of(nodes, x, y, shape)
        if program is None:
            return None
        laid = aligned([self.codes.shape], [*self.decode.parameters, *program.parameters])
        if laid is None:
            return None
        patterns = np.arange(1 << FORMATS[self.codes.kind].bits, dtype=np.uint8)
        codes = patterns.view(container(self.codes.kind))
        numbers = numbers_of(codes, self.codes.kind)[:, None]
        most = self.codes.size // numbers.size
        flat, entries = distinct(laid[1], most)
        if entries > most:
            return None
        count, step = len(self.decode.parameters), max(_COMPARED // numbers.size, 1)
        level = Exactness.BITS
        if any(node.op_type in CHOOSING and not node.domain for node in nodes):
            level = Exactness.VALUES  # which zero these operators give is left open
        for start in range(0, entries, step):
            part = [a[start : start + step] if a.ndim else a for a in flat]
            values = self._spread(self.decode.apply(numbers, part[:count]), entries - start, step)
            results = self._spread(program.apply(values, part[count:]), entries - start, step)
            if values.dtype != np.float32 or results.dtype != np.float32:
                return None
            level = min(level, Exactness.of(compare_values(values, results)))
            if level < Exactness.VALUES:
                return None
        return level

    def _spread(self, values: Array, left: int, step: int) -> Array:
        shape = values.shape[0], min(left, step)
        return np.ascontiguousarray(np.broadcast_to(values, shape))

"""Codes of large constants, computed and checked value by value while the model is saved.

The weight is read piece by piece. The operators of the quantizer compute the values, and codes are
derived from them as for small constants, so no rounding rule is repeated here. Codes are packed,
written, unpacked again and decoded by the drafted operators. If a decoded value differs from the
quantized value, saving stops. If a table has already proved that every level is decoded to its
value with every parameter, it is enough that each element is one of the levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from qgraph.errors import ModelError
from qgraph.graph.deferred import Part
from qgraph.graph.draft_parts import SizeSummary, Tally
from qgraph.graph.streaming import Sink, Stream, box_at
from qgraph.numerics import Array, Mask
from qgraph.numerics.formats import FORMATS, IntFormat, container
from qgraph.numerics.minifloat import encode
from qgraph.quantizers.weights import job, level_table
from qgraph.quantizers.weights.piecewise import ElementProgram, Parameter, pieces
from qgraph.records import dataclass, fields, is_dataclass

Box = tuple[Sequence[int], Sequence[int]]

LEAST_BYTES = 1 << 20
"""Minimum bytes of weights that passes leave in their files; smaller weights are read."""

_MOST_COUNTED_BITS = 16

_FEW = 4
"""Number of codes up to which each is searched separately, which is faster than counting all."""

_EXACT = 1 << 20
"""Integers below this are exact after a float32 division: the error is far below 0.5."""


@dataclass(frozen=True, eq=False)
class Coding:
    """The mapping from the output values of a quantizer to codes.

    ``code = round((value - low) / scale + zero_point)``, or the minifloat next to
    ``value / scale``.

    Attributes:
        kind: ONNX type of the codes.
        scale: real units per step.
        lo, hi: the smallest and the largest code, in steps or units.
        zero_point: code of the real zero; None for 0.
        low: real value of code 0; None for 0.
        above: data above this has the code ``hi``, independent of its value; None for no limit.
        margin: data counts as clipped if it is farther outside of ``lo`` .. ``hi`` than this, in
            units of ``scale``.
    """

    kind: str
    scale: Parameter
    lo: float
    hi: float
    zero_point: Parameter | None = None
    low: Parameter | None = None
    above: Parameter | None = None
    margin: float = 0.5

    @property
    def bits(self) -> int:
        """Width of a code as stored."""
        return FORMATS[self.kind].bits

    @property
    def ends(self) -> tuple[float, float]:
        """Limits, in units of ``scale``, beyond which data counts as clipped."""
        return self.lo - self.margin, self.hi + self.margin

    def codes(self, values: Array, data: Array, scale: Array, box: Box) -> Array:
        """Return the code of each value, in a NumPy type that can represent it.

        Values are the results of the quantizer on the data, which are in a box of the weight: its
        corner and sizes. ``scale`` is :attr:`scale` of these elements.
        """
        form = FORMATS[self.kind]
        if not isinstance(form, IntFormat):
            return encode(np.divide(values, scale, dtype=np.float32), self.kind).view(np.uint8)
        wide = np.float64 if max(-self.lo, self.hi) >= _EXACT else np.float32
        steps = values if self.low is None else values - self.low.at(*box)
        steps = np.asarray(np.divide(steps, scale, dtype=wide))
        if self.zero_point is not None:
            steps += self.zero_point.at(*box)
        np.rint(steps, out=steps)
        if self.above is not None:
            np.copyto(steps, wide(self.hi), where=data > self.above.at(*box))
        return steps.astype(container(self.kind))

    def fits(self, other: Coding, codes: Array) -> bool:
        """Return whether ``codes`` of ``other``, equal except for the type, are codes of this."""
        form = FORMATS[self.kind]
        if not (isinstance(form, IntFormat) and isinstance(FORMATS[other.kind], IntFormat)):
            return False
        rest = (part.name for part in fields(self) if part.name != "kind")
        if any(getattr(self, name) is not getattr(other, name) for name in rest):
            return False
        return bool(form.lo <= codes.min() and codes.max() <= form.hi)

    def clipped(self, codes: Array, data: Array, scale: Array, box: Box) -> int:
        """Return the number of clipped elements: outside the range by more than rounding."""
        form = FORMATS[self.kind]
        if isinstance(form, IntFormat) and self.lo < codes.min() and codes.max() < self.hi:
            return 0
        steps = (data if self.low is None else data - self.low.at(*box)) / scale
        if self.zero_point is not None:
            steps += self.zero_point.at(*box)
        low, high = (np.float32(end) for end in self.ends)
        return int(np.count_nonzero(steps < low) + np.count_nonzero(steps > high))


@dataclass(frozen=True, eq=False)
class CodesPlan:
    """Everything needed to compute and check the codes of one weight.

    Attributes:
        label: name of the quantizer in messages.
        quantize: the function of the quantizer's operators.
        coding: the mapping from values to codes.
        dequantize: the function of the drafted operators.
        same_zeros: whether signs of zeros must equal those of the quantizer.
        table: proves all levels, so that elements need not be compared; None if there is none.
    """

    label: str
    weight: Stream
    quantize: ElementProgram
    coding: Coding
    dequantize: ElementProgram
    shape: tuple[int, ...]
    same_zeros: bool
    table: level_table.LevelTable | None = None

    @cached_property
    def digest(self) -> bytes:
        """Digest that is equal for plans with the same codes of one weight."""
        digest = sha256()
        for part in (self.quantize, self.coding, self.dequantize, self.same_zeros):
            _enter(digest, part)
        return digest.digest()

    def compute(self, span: tuple[int, int], sinks: Sequence[Sink]) -> Tally:
        """Write the codes of some elements; return their counts.

        Raises:
            ModelError: a value would change.
        """
        start, stop = span
        table = [] if self.table is None else [self.table.shape]
        shapes = sorted({*self.quantize.shapes, *self.dequantize.shapes, self.shape, *table})
        buffer, scratch = np.empty(min(job.PIECE, stop - start), self.weight.dtype), job.Workspace()
        tally = _no_elements(self.coding.bits)
        writer = job.CodeWriter(sinks[0], self.coding.kind, start, self.label)
        for first, last in pieces(shapes, start, stop, job.PIECE):
            data = self.weight.read(first, last, buffer[: last - first])
            codes = self._by_table(data, first, tally, scratch)
            is_proved = codes is not None
            if codes is None:
                codes = self._by_element(self.weight.read(first, last, data), first, tally)
            writer.write(codes, is_last=last == stop, checks=not is_proved)
        return tally

    def _by_table(
        self, data: Array, start: int, tally: Tally, scratch: job.Workspace
    ) -> Array | None:
        """Return codes of proved levels and overwrite ``data``; None if not possible."""
        if self.table is None:
            return None
        read = self.table.read(data, start, scratch)
        if read is None:
            return None
        codes, clipped = read
        tally.elements += codes.size
        tally.unchanged += codes.size
        tally.clipped += clipped
        _note_used(codes, tally.used)
        return codes

    def _by_element(self, data: Array, start: int, tally: Tally) -> Array:
        coding = self.coding
        box = box_at(self.shape, start, data.size)
        values = self.quantize(data, start)
        with np.errstate(all="ignore"):
            shaped, seen = values.reshape(box[1]), data.reshape(box[1])
            scale = coding.scale.at(*box)
            codes = coding.codes(shaped, seen, scale, box)
            decoded = self.dequantize(level_table.numbers_of(codes.reshape(-1), coding.kind), start)
            self._compare(data, values, decoded, start, tally)
            tally.clipped += coding.clipped(codes, seen, scale, box)
        flat = codes.reshape(-1)
        _note_used(flat, tally.used)
        return flat

    def _compare(
        self, data: Array, values: Array, decoded: Array, start: int, tally: Tally
    ) -> None:
        """Compare decoded values with the output of the quantizer, element by element."""
        tally.elements += values.size
        tally.unchanged += values.size
        if values.dtype != decoded.dtype:
            wrong = np.ones(values.shape, bool)
        elif self.same_zeros:
            integer = np.dtype(f"i{values.itemsize}")
            wrong = values.view(integer) != decoded.view(integer)
        else:
            wrong = values != decoded
        if not wrong.any():
            return
        at = int(np.flatnonzero(wrong)[0])
        raise ModelError(
            f"{self.label}: element {start + at} is {float(data[at]):g}, which becomes "
            f"{float(values[at]):g}; stored as {self.coding.kind} it would be "
            f"{float(decoded[at]):g}, expected the same. Leave this quantizer as it is, or correct "
            "the weight."
        )


class CodesJob:
    """Computes the codes of one weight, and completes its size summary."""

    plan: CodesPlan
    """Set before the model is saved."""

    def __init__(self) -> None:
        self.size_summaries: list[SizeSummary] = []

    def parts(self) -> Sequence[Part]:
        """Return the parts, which begin at whole bytes of codes."""
        return job.flat_parts(self.plan.weight, self.plan.compute)

    def conclude(self, results: Sequence[Tally]) -> None:
        """Add up the counts of all parts."""
        total = Tally()
        for tally in results:
            total.add(tally)
        for summary in self.size_summaries:
            summary.close(total)


def _enter(digest: Any, what: Any) -> None:
    """Add ``what`` to ``digest``."""
    if isinstance(what, np.ndarray):
        digest.update(f"{what.dtype}{what.shape}".encode())
        digest.update(what.tobytes())
    elif is_dataclass(what):
        digest.update(type(what).__name__.encode())
        for part in fields(what):
            _enter(digest, getattr(what, part.name))
    elif isinstance(what, tuple | list):
        digest.update(f"[{len(what)}]".encode())
        for part in what:
            _enter(digest, part)
    elif isinstance(what, dict):
        _enter(digest, sorted(what.items()))
    else:
        digest.update(f"{type(what).__name__}:{what!r};".encode())


def tally_of(
    coding: Coding, codes: Array, values: Array, decoded: Array, data: Array, box: Box
) -> Tally:
    """Return the counts of elements whose values and codes are all in memory, in one shape."""
    tally = _no_elements(coding.bits)
    tally.elements, tally.unchanged = values.size, int(np.count_nonzero(values == decoded))
    _note_used(codes.reshape(-1), tally.used)
    with np.errstate(all="ignore"):
        tally.clipped = coding.clipped(codes, data, coding.scale.at(*box), box)
    return tally


def _no_elements(bits: int) -> Tally:
    return Tally(used=np.zeros(1 << bits if bits <= _MOST_COUNTED_BITS else 0, bool))


def _note_used(codes: Array, used: Mask) -> None:
    """Mark the used codes; most pieces contain no new ones."""
    if not codes.size or used.all():
        return
    mask = used.size - 1
    if used[np.arange(int(codes.min()), int(codes.max()) + 1) & mask].all():
        return
    plain = codes.view(f"u{codes.itemsize}")
    if mask < np.iinfo(plain.dtype).max:
        plain = plain & plain.dtype.type(mask)
    missing = np.flatnonzero(~used)
    if missing.size <= _FEW:
        for code in missing:
            used[code] = (plain == code).any()
    else:
        used |= np.bincount(plain, minlength=used.size).astype(bool)

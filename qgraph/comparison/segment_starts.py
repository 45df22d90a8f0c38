"""Starts of a segment of two models: codes, or inputs of the models."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.bound import SeenCodes
from qgraph.comparison.adverse_codes import Pattern, Shape
from qgraph.comparison.bound_runs import BoundRuns, SegmentRun
from qgraph.comparison.cut_model import QuantizedPoint
from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import Atom

_MOST_BITS = 16
"""Maximum bits of integer inputs; wider ones are indices or sizes with few valid values."""


@dataclass(frozen=True, eq=False)
class SegmentStart:
    """Codes or an input at which a segment starts.

    Attributes:
        name: name of the value in the reference.
        key: their atom or input name; see :func:`key_of`.
        low, high: the first and the last code that are possible for all elements of both models.
        points: the roundings that compute them; None for an input.
        delta: codes of the candidate minus codes of the reference.
    """

    name: str
    key: Hashable
    shape: Shape
    dtype: ir.DataType
    low: float
    high: float
    points: tuple[QuantizedPoint, QuantizedPoint] | None = None
    delta: Float64 | float = 0.0

    @property
    def has_codes(self) -> bool:
        """Whether these are whole numbers."""
        return self.points is not None or not self.dtype.is_floating_point()

    def fill(self, share: float) -> float:
        """Return the code at a share of the distance from the middle to a limit."""
        middle = min(max(0.0, self.low), self.high)
        far = middle + abs(share) * ((self.high if share > 0 else self.low) - middle)
        return float(round(far)) if self.has_codes else far

    def codes(self, pattern: Pattern) -> SeenCodes:
        """Return the codes of a pattern."""
        if pattern.share is None:
            levels = int(self.high - self.low) + 1 if self.has_codes else 0
            return SeenCodes(self.name, self.low, levels=levels)
        fill = self.fill(pattern.share)
        if pattern.atom is None or key_of(pattern.atom) != self.key:
            return SeenCodes(self.name, fill)
        codes = np.clip(pattern.codes, self.low, self.high).tolist()
        return SeenCodes(self.name, fill, pattern.elements, tuple(codes))


def key_of(atom: Atom) -> Hashable:
    """Return an atom of codes, or the name of an input."""
    return atom.attributes if atom.kind in ("input", "integers") else atom


def starts_of(runs: BoundRuns, step: SegmentRun) -> list[SegmentStart]:
    """Return the starts of a segment.

    Raises:
        KeyError: a start is not known, or its codes have no limits.
    """
    if step.parts is None:
        return []
    ours, theirs = step.parts
    pairs = {s.points[0].node: s for s in runs.steps if s.points is not None}
    starts = [_input(value, runs.ranges) for value in ours.inputs]
    for cut, node in ours.starts.items():
        source = pairs[node]
        if source.points is None or source.segment.roundings is None:
            raise KeyError(node.name)
        one, other = source.segment.roundings
        delta, ((_, atom),) = source.segment.delta, one.codes.terms
        low = float(np.max(np.maximum(one.ends[0], other.ends[0] - delta)))
        high = float(np.min(np.minimum(one.ends[1], other.ends[1] - delta)))
        if not math.isfinite(high - low):
            raise KeyError(f"the codes of {source.tally.value} have no ends")
        dtype = cut.dtype or ir.DataType.FLOAT
        starts.append(
            SegmentStart(
                source.tally.value, atom, _shape(cut), dtype, low, high, source.points, delta
            )
        )
    fed = {start.points[1].node for start in starts if start.points is not None}
    if not fed.issuperset(theirs.starts.values()):
        raise KeyError("the candidate starts from other codes")
    return starts


def _input(value: ir.Value, ranges: Mapping[str, tuple[float, float]]) -> SegmentStart:
    dtype = value.dtype or ir.DataType.FLOAT
    ends = ranges.get(str(value.name))
    if ends is None:
        if dtype.is_integer() and dtype.bitwidth > _MOST_BITS:
            raise KeyError(f"no range of {value.name}")
        limits = np.iinfo(dtype.numpy()) if dtype.is_integer() else None
        ends = (-1.0, 1.0) if limits is None else (float(limits.min), float(limits.max))
    name = str(value.name)
    return SegmentStart(name, name, _shape(value), dtype, *ends)


def _shape(value: ir.Value) -> Shape:
    """Return the shape of a value, with 1 for sizes that are not known."""
    if value.shape is None:
        raise KeyError(value.name)
    return tuple(size if isinstance(size, int) else 1 for size in value.shape)

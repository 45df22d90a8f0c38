"""Find codes from which two segments give other codes: what a bound cannot be smaller than."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.bound import Seen, SeenCodes
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.comparison.adverse_codes import EXTREMES, Pattern, Shape, adverse_codes
from qgraph.comparison.bound_runs import BoundRuns, SegmentRun
from qgraph.comparison.cut_model import QuantizedPoint
from qgraph.effort import is_over
from qgraph.errors import QGraphError
from qgraph.execution.executor import Backend
from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.combination import Atom
from qgraph.proof.bounds.segment import Segment
from qgraph.reasons import Undecidable

logger = logging.getLogger(__name__)

_MOST_SEGMENTS = 16
"""Maximum number of segments that are run, the loosest bounds first."""
_MOST_BITS = 16
"""Integers of more bits are indices or sizes, most of which no operator takes."""


@dataclass(frozen=True, eq=False)
class _Start:
    """Codes or an input that a segment starts from.

    Attributes:
        name: of the value in the reference.
        key: what stands for them in functions; see :func:`_key`.
        low, high: the first and the last code that occur everywhere in both models.
        points: what rounds to them; None for an input.
        delta: what the codes of the candidate are more than those of the reference.
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
        """Return the code at a share of the way from the middle to an end."""
        middle = min(max(0.0, self.low), self.high)
        far = middle + abs(share) * ((self.high if share > 0 else self.low) - middle)
        return float(round(far)) if self.has_codes else far


def with_seen(certificate: Certificate, models: tuple[ir.Model, ir.Model]) -> Certificate:
    """Return a certificate with differences that few runs show, where bounds are beyond limits.

    Args:
        certificate: of the models.
        models: the reference and the candidate.
    """
    over = sorted(certificate.beyond, key=_deviation, reverse=True)[:_MOST_SEGMENTS]
    if not over:
        return certificate
    try:
        runs = BoundRuns(models, certificate.bounding, Backend.AUTO)
    except (Undecidable, QGraphError, ValueError, IndexError) as error:
        logger.info("no runs: %s", error)
        return certificate
    by_ends: dict[tuple[str, str], SegmentRun] = {}
    for step in runs.steps:
        # an output that holds codes begins at itself, and comes last
        by_ends.setdefault(_names(step.segment), step)
    regions = []
    for region in certificate.regions:
        names = region.reference_value, region.candidate_value
        if region in over and region.bound is not None and names in by_ends and not is_over():
            seen = _seen(runs, by_ends[names])
            region = replace(region, bound=replace(region.bound, seen=seen))
        regions.append(region)
    return replace(certificate, regions=tuple(regions))


def _deviation(region: RegionVerdict) -> float:
    return 0.0 if region.bound is None else region.bound.deviation_steps


def _names(segment: Segment) -> tuple[str, str]:
    one, other = ("" if value is None else str(value.name) for value in segment.values)
    return one, other


def _seen(runs: BoundRuns, step: SegmentRun) -> Seen | None:
    """Return the largest difference that a few runs of a segment show; None if it cannot be run."""
    if step.parts is None:
        return None
    try:
        starts = _starts(runs, step)
        roundings = step.segment.roundings
        patterns = list(EXTREMES)
        shapes = {start.key: start.shape for start in starts}
        if roundings is not None:
            patterns += adverse_codes(*roundings, lambda atom: shapes.get(_key(atom)))
        results = [_run(runs, step, starts, pattern) for pattern in patterns]
    except (Undecidable, QGraphError, ValueError, IndexError, KeyError) as error:
        logger.info("segment %s is not run: %s", step.tally.value, error)
        return None
    apart, pattern = max(zip(results, patterns, strict=True), key=lambda pair: pair[0].max())
    element = tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))
    return Seen(float(apart.max()), element, tuple(_codes(start, pattern) for start in starts))


def _key(atom: Atom) -> Hashable:
    """Return an atom of codes, or the name of an input."""
    return atom.attributes if atom.kind in ("input", "integers") else atom


def _codes(start: _Start, pattern: Pattern) -> SeenCodes:
    if pattern.share is None:
        levels = int(start.high - start.low) + 1 if start.has_codes else 0
        return SeenCodes(start.name, start.low, levels=levels)
    fill = start.fill(pattern.share)
    if pattern.atom is None or _key(pattern.atom) != start.key:
        return SeenCodes(start.name, fill)
    codes = np.clip(pattern.codes, start.low, start.high).tolist()
    return SeenCodes(start.name, fill, pattern.elements, tuple(codes))


def _starts(runs: BoundRuns, step: SegmentRun) -> list[_Start]:
    """Return what a segment starts from.

    Raises:
        Undecidable: not known.
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
        starts.append(
            _Start(source.tally.value, atom, _shape(cut), cut.dtype or ir.DataType.FLOAT, low, high,
                   source.points, delta)
        )  # fmt: skip
    fed = {start.points[1].node for start in starts if start.points is not None}
    if not fed.issuperset(theirs.starts.values()):
        raise KeyError("the candidate starts from other codes")
    return starts


def _input(value: ir.Value, ranges: Mapping[str, tuple[float, float]]) -> _Start:
    dtype = value.dtype or ir.DataType.FLOAT
    ends = ranges.get(str(value.name))
    if ends is None:
        if dtype.is_integer() and dtype.bitwidth > _MOST_BITS:
            raise KeyError(f"no range of {value.name}")
        limits = np.iinfo(dtype.numpy()) if dtype.is_integer() else None
        ends = (-1.0, 1.0) if limits is None else (float(limits.min), float(limits.max))
    name = str(value.name)
    return _Start(name, name, _shape(value), dtype, *ends)


def _shape(value: ir.Value) -> Shape:
    """Return the shape of a value, with 1 for sizes that are not known."""
    if value.shape is None:
        raise KeyError(value.name)
    return tuple(size if isinstance(size, int) else 1 for size in value.shape)


def _run(runs: BoundRuns, step: SegmentRun, starts: Sequence[_Start], pattern: Pattern) -> Float64:
    """Return how far the results of a segment lie apart, from the codes of a pattern."""
    if step.parts is None:
        raise KeyError(step.tally.value)
    feeds: dict[str, Array] = {}
    own: dict[ir.Node, Array] = {}
    equal: dict[ir.Node, Array] = {}
    for start in starts:
        codes = _codes(start, pattern).array(start.shape)
        if start.points is None:
            feeds[start.name] = codes.astype(start.dtype.numpy())
        else:
            one, other = start.points
            own[one.node] = one.feed(codes)
            equal[other.node] = other.feed(codes + start.delta)
    ours, theirs = step.parts
    renamed = {runs.names.get(name, name): x for name, x in feeds.items()}
    results = ours.run(feeds, own), theirs.run(renamed, equal)
    if step.points is not None:
        one, other = step.points
        results = one.executed(results[0])[0], other.executed(results[1])[0]
    first, second = (np.asarray(x, np.float64) for x in results)
    return np.asarray(np.abs(second - step.segment.delta - first))

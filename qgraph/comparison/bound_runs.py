"""Run the segments of two models on data, from equal codes, and compare them with their bounds.

Both models are cut in front of each rounding. The codes of the reference, as executed, are the
start of the next segments of both. A segment of the candidate is compared with what the reference
means (:mod:`.ideal`), on which bounds are stated, and a second time with its own codes as start::

    reference  x --[Conv Relu]--> v --round--> codes --+--[Conv]--> ...
    candidate  x --[Conv]-------> v --round--> codes   +--[Conv]--> ...   bounded
                                                 +--------[Conv]--> ...   accumulated
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.comparison.bound_report import SegmentMeasure, SegmentTally
from qgraph.comparison.cut_model import CutModel, ModelPart, QuantizedPoint
from qgraph.comparison.ideal import ideal
from qgraph.errors import ExecutionError
from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.combination import SLACK
from qgraph.proof.bounds.quantity import FLOAT32
from qgraph.proof.bounds.regions import bound_conditions, bound_of, paired
from qgraph.proof.bounds.segment import Segment
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.functions.expression import Undecidable

_FLOAT64 = 2.0**-53

Codes = dict[ir.Node, Array]
"""Codes by the node that rounds."""


@dataclass(eq=False)
class _SegmentRun:
    """A segment, and what computes it in both models."""

    segment: Segment
    tally: SegmentTally
    points: tuple[QuantizedPoint, QuantizedPoint] | None = None
    parts: tuple[ModelPart, ModelPart] | None = None
    last: list[ir.Node] = field(default_factory=list)


class BoundRuns:
    """Runs two models segment by segment.

    Args:
        models: the reference and the candidate.
        request: what is bounded, and the limits.
        backend: runs the segments.

    Attributes:
        conditions: what the bounds take for granted.

    Raises:
        OptionError: an option names no input or output.
    """

    def __init__(self, models: tuple[ir.Model, ir.Model], request: Bounding, backend: str) -> None:
        pairing = paired(models, request)
        self._request = request
        self._names = {str(a.name): str(b.name) for a, b in pairing.inputs}
        self._ranges = request.ranges
        self._chunk = request.chunk or 1
        self.conditions = bound_conditions(request, pairing.conditions)
        self._partners: dict[ir.Node, tuple[ir.Node, Float64]] = {}
        self._steps = self._prepared(pairing, backend)

    def _prepared(self, pairing: Pairing, backend: str) -> list[_SegmentRun]:
        sides = [
            CutModel(model, evaluation, backend)
            for model, evaluation in zip(
                pairing.models, (pairing.reference, pairing.candidate), strict=True
            )
        ]
        steps = []
        for segment in pairing.segments:
            step = _SegmentRun(segment, _tally(segment, self._request))
            if segment.roundings is not None:
                one, other = (
                    side.point(rounding)
                    for side, rounding in zip(sides, segment.roundings, strict=True)
                )
                if one.rounding.event.mantissa is None:
                    step.points = one, other
                    self._partners[other.node] = one.node, segment.delta
                else:
                    step.tally.bound = None
                    step.tally.reason = "codes of minifloats are not compared on data"
            steps.append(step)
        known: set[ir.Node] = set()
        for step in steps:
            self._cut(step, sides, known)
        _mark_last(steps)
        return steps

    def _cut(self, step: _SegmentRun, sides: Sequence[CutModel], known: set[ir.Node]) -> None:
        """Cut out what computes the ends of a segment.

        Args:
            step: the segment.
            sides: both models.
            known: roundings of both models whose codes are computed before it; changed.
        """
        values = step.segment.values
        if values[0] is None or values[1] is None or (step.points or step.tally.bound) is None:
            return
        ends = values if step.points is None else tuple(p.before for p in step.points)
        parts = [side.part(end) for side, end in zip(sides, ends, strict=True) if end is not None]
        if not known.issuperset(node for part in parts for node in part.starts.values()):
            step.tally.reason = "it begins with codes that have no counterpart in the other model"
            return
        step.parts = parts[0], parts[1]
        known.update(point.node for point in step.points or ())

    def add(self, feeds: Mapping[str, Any]) -> bool:
        """Run one batch, and return whether all bounds hold on it.

        Args:
            feeds: arrays by the names of the inputs of the reference.

        Raises:
            ExecutionError: an input lies outside the range for which bounds were computed.
        """
        for name, (low, high) in self._ranges.items():
            found = np.asarray(feeds[name])
            if found.size and not (low <= found.min() and found.max() <= high):
                raise ExecutionError(
                    f"Input {name!r} has values from {found.min():g} to {found.max():g}, expected "
                    f"the range of --range, {low:g} to {high:g}, for which bounds are computed. "
                    "Give inputs inside the range, or a larger one."
                )
        codes: tuple[Codes, Codes] = {}, {}
        holds = True
        for step in self._steps:
            self._run(step, feeds, codes)
            holds &= step.tally.violated is None
            for node in step.last:
                for kept in codes:
                    kept.pop(node, None)
        return holds

    def results(self) -> list[SegmentMeasure]:
        """Return what was found of each segment, in their order."""
        return [step.tally.result(self._request) for step in self._steps]

    def _run(self, step: _SegmentRun, feeds: Mapping[str, Any], codes: tuple[Codes, Codes]) -> None:
        if step.parts is None:
            return
        ours, theirs = step.parts
        own, grown = codes
        renamed = {self._names.get(name, name): x for name, x in feeds.items()}
        equal = {node: own[a] + delta for node, (a, delta) in self._partners.items() if a in own}
        executed = ours.run(feeds, own)
        there = theirs.run(renamed, equal)
        accumulated = there
        if any(node in grown for node in theirs.starts.values()):
            accumulated = theirs.run(renamed, equal | grown)
        if step.points is None:
            with np.errstate(invalid="ignore"):
                step.tally.add(*(np.abs(_real(x) - _real(executed)) for x in (there, accumulated)))
        else:
            one, other = step.points
            delta = step.segment.delta
            made = one.codes(executed)
            candidate, last = (other.codes(x) - delta for x in (there, accumulated))
            own[one.node] = made
            if not np.array_equal(last, made):
                grown[other.node] = (last + delta).astype(made.dtype)
            if made.shape != candidate.shape:
                raise AssertionError("roundings that are paired have equal shapes")
            apart = np.abs(candidate - made)
            step.tally.add(apart, np.abs(last - made))
        if step.tally.reason is not None:
            return
        try:
            meant = ours.ideal(feeds, own, ideal)
            if step.points is None:
                _measure_output(step, there, meant, self._chunk)
            else:
                step.tally.expect_steps(step.segment.steps())
                _measure_codes(step, step.points, (apart, candidate), (there, meant), self._chunk)
        except Undecidable as error:
            step.tally.reason = str(error.reason)


def _real(array: Array) -> Float64:
    return np.asarray(array, np.float64)


def _tally(segment: Segment, request: Bounding) -> SegmentTally:
    bound = None
    if segment.reason is None and np.isfinite(segment.deviation).all():
        bound = bound_of(segment, request)
    names = [
        "" if node is None else node.name or str(node.outputs[0].name)
        for node in (segment.reference, segment.candidate)
    ]
    value = segment.values[0]
    return SegmentTally(
        names[0],
        names[1],
        "" if value is None else str(value.name),
        segment.is_output,
        bound,
        None if bound else str(segment.reason or "its bound is infinite"),
    )


def _mark_last(steps: Sequence[_SegmentRun]) -> None:
    """Note after which segment codes are needed no more."""
    used: dict[ir.Node, _SegmentRun] = {}
    for step in steps:
        for point in step.points or ():
            used[point.node] = step
        for part in step.parts or ():
            used |= dict.fromkeys(part.starts.values(), step)
    # the codes of the reference are the start of the candidate's segments too
    for step in steps:
        if step.points is not None and step.points[1].node in used:
            ours, theirs = (point.node for point in step.points)
            later = max(used[ours], used[theirs], key=steps.index)
            used[ours] = used[theirs] = later
    for node, step in used.items():
        step.last.append(node)


def _own_error(segment: Segment, chunk: int, reach: Float64) -> Float64:
    """Return the largest error of what float64 computes as meant.

    Each rounding of float64 is ``2**-29`` of one of float32. Bounds for chunks count fewer
    roundings of a sum than it has terms, by a factor of no more than the length of a chunk.
    """
    return 2 * chunk * _FLOAT64 / FLOAT32.unit * segment.reference_error + SLACK * (1 + reach)


def _measure_codes(
    step: _SegmentRun,
    points: tuple[QuantizedPoint, QuantizedPoint],
    codes: tuple[Array, Array],
    data: tuple[Array, Array],
    chunk: int,
) -> None:
    """Compare distances with their bounds.

    Args:
        step: the segment.
        points: its end in both models.
        codes: how far the codes lie apart, and the codes of the candidate.
        data: what the candidate computes before them, and what the reference means there.
        chunk: the number of terms that are added in sequence.
    """
    segment, tally = step.segment, step.tally
    apart, candidate = codes
    one, other = points
    low, high = one.limits
    bottom, top = (end - segment.delta for end in other.limits)
    low, high = np.maximum(low, bottom), np.minimum(high, top)
    before = one.values(data[1], np.float64)
    meant = np.clip(before, low, high)
    reach = np.where(np.isfinite(segment.span), segment.span, np.abs(meant))
    own = _own_error(segment, chunk, reach)
    near: Callable[[Array], Array] = np.nan_to_num
    if other.is_coded:
        distance = np.maximum(np.abs(candidate - meant) - 0.5, 0.0)
    else:
        there = other.values(data[0], np.float32) - segment.delta
        distance = np.abs(np.clip(there, low, high) - meant)
    ties = near(one.tie_distance(before))
    tally.measure(near(distance), segment.from_ideal, own)
    tally.expect_near_ties(np.where(apart > segment.extra, ties, 0.0), segment.tie_distance + own)


def _measure_output(step: _SegmentRun, there: Array, meant: Array, chunk: int) -> None:
    segment, tally = step.segment, step.tally
    with np.errstate(invalid="ignore"):
        distance = np.nan_to_num(np.abs(_real(there) - meant))
    tally.measure(distance, segment.from_ideal, _own_error(segment, chunk, segment.largest))

"""Run the segments of two models on data, from equal codes, and compare them with their bounds.

Both models are cut at each rounding. The executed codes of the reference are the start of the next
segments of both models. A segment of the candidate is compared with the ideal values of the
reference (:mod:`.ideal`), for which bounds are stated, and a second time with its own codes as
start::

    reference  x --[Conv Relu]--> v --round--> codes --+--[Conv]--> ...
    candidate  x --[Conv]-------> v --round--> codes   +--[Conv]--> ...   bounded
                                                 +--------[Conv]--> ...   accumulated
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.comparison.cut_model import CutModel, ModelPart, QuantizedPoint, moved_point
from qgraph.comparison.ideal import ideal
from qgraph.comparison.tolerance import SegmentMeasure
from qgraph.errors import ExecutionError
from qgraph.exactness import Exactness
from qgraph.graph.inference.walk import inferred
from qgraph.graph.schema import QONNX_DOMAINS, OpKey
from qgraph.graph.scopes import bodies, node_name
from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import FLOAT32, SLACK
from qgraph.ops.composite import write_out
from qgraph.ops.definitions.trunc import write_trunc
from qgraph.proof.bounds.paired_models import paired, shown_ends
from qgraph.proof.bounds.regions import bound_conditions, bound_of
from qgraph.proof.bounds.roundings import RoundedData
from qgraph.proof.bounds.segment import Segment
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.certify import certify
from qgraph.proof.matching.normalise import flat
from qgraph.reasons import NO_BOUND, NOT_COMPUTED, Undecidable
from qgraph.records import dataclass, field

_FLOAT64 = 2.0**-53

_Fed = dict[ir.Node, Array]
"""Sources of codes, by the rounding whose codes they are."""


def _pairing(models: tuple[ir.Model, ir.Model], request: Bounding) -> Pairing:
    models = _opened(models[0]), _opened(models[1])
    pairing = paired(models, request)
    if all(segment.reason is None for segment in pairing.segments):
        return pairing
    # Segments that are proved equal end where others have no bound.
    proof = certify(*models, counts=False)
    return paired(models, request, ends=shown_ends(proof, Exactness.VALUES))


def _opened(model: ir.Model) -> ir.Model:
    """Return a model in which each Trunc is written in primitives, so that its codes can be fed.

    A Trunc rounds twice. One whose parameters are not constant stays.
    """
    if not any(OpKey.of(node) in _TRUNC for body in bodies(model) for node in body):
        return model
    copy = flat(model)
    truncs = [node for node in copy.graph if OpKey.of(node) in _TRUNC]
    with inferred(copy, [value for node in truncs for value in node.outputs]):
        write_out(copy, truncs, write_trunc)
    return copy


_TRUNC = frozenset(OpKey(domain, "Trunc") for domain in QONNX_DOMAINS)


@dataclass(eq=False)
class SegmentRun:
    """A segment, and its parts of both models."""

    segment: Segment
    tally: SegmentMeasure
    points: tuple[QuantizedPoint, QuantizedPoint] | None = None
    parts: tuple[ModelPart, ModelPart] | None = None
    last: list[ir.Node] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the values at its end."""
        one, other = ("" if value is None else str(value.name) for value in self.segment.values)
        return one, other


class BoundRuns:
    """Runs two models segment by segment, and measures the bounds that are requested.

    Attributes:
        conditions: conditions of the bounds.
        steps: the segments, in order.
        inputs, outputs: pairs of values of both models.
        names: names of the inputs of the candidate, by names in the reference.
        chunk: the number of terms that are added in sequence; 1 for any order.

    Raises:
        OptionError: an option names no input or output.
    """

    def __init__(
        self,
        models: tuple[ir.Model, ir.Model],
        request: Bounding,
        backend: str,
        pairing: Pairing | None = None,
    ) -> None:
        pairing = pairing or _pairing(models, request)
        self._request = request
        self.inputs, self.outputs = pairing.inputs, pairing.outputs
        self.names = {str(a.name): str(b.name) for a, b in pairing.inputs}
        self.ranges = request.ranges
        self.chunk = request.chunk or 1
        self.conditions = bound_conditions(request, pairing.conditions)
        self.steps = self._prepared(pairing, backend)

    def _prepared(self, pairing: Pairing, backend: str) -> list[SegmentRun]:
        sides = [
            CutModel(model, evaluation, backend)
            for model, evaluation in zip(
                pairing.models, (pairing.reference, pairing.candidate), strict=True
            )
        ]
        steps = []
        for segment in pairing.segments:
            step = SegmentRun(segment, _tally(segment, self._request))
            start = pairing.start_of(segment)
            is_equal = start not in pairing.unbounded.assumed.values()
            if start is not None and segment.roundings is not None and is_equal:
                step.tally.without_distances()
            elif start is not None and step.tally.reason is None:
                reason = NOT_COMPUTED(f"it begins at {start.name!r}, which has no bound")
                step.tally.bound, step.tally.reason = None, reason
            if segment.roundings is not None:
                try:
                    step.points = _points(segment, segment.roundings, sides)
                except Undecidable as error:
                    step.tally.bound, step.tally.reason = None, str(error.reason)
                    for side, rounding in zip(sides, segment.roundings, strict=True):
                        side.point(rounding.origin or rounding)
            steps.append(step)
        cut_nodes: set[ir.Node] = set()
        for step in steps:
            self._cut(step, sides, cut_nodes)
        _mark_last(steps)
        return steps

    def _cut(self, step: SegmentRun, sides: Sequence[CutModel], known: set[ir.Node]) -> None:
        """Cut out the parts of both models that compute a segment; its codes are then ``known``."""
        values = step.segment.values
        if values[0] is None or values[1] is None or (step.points or step.tally.bound) is None:
            return
        ends = values if step.points is None else tuple(p.before for p in step.points)
        parts = [
            side.part(end, is_end=step.points is None)
            for side, end in zip(sides, ends, strict=True)
            if end is not None
        ]
        if not known.issuperset(node for part in parts for node in part.starts.values()):
            step.tally.reason = "it begins with codes that have no counterpart in the other model"
            return
        step.parts = parts[0], parts[1]
        if step.points is not None and _shares_codes(step.segment, step.points):
            known.update(point.node for point in step.points)

    def add(self, feeds: Mapping[str, Any]) -> bool:
        """Run one batch inside the ranges of the bounds; return whether all bounds hold on it."""
        for name, array in feeds.items():
            if np.asarray(array).dtype.kind == "f" and not np.isfinite(array).all():
                raise ExecutionError(
                    f"Input {name!r} has NaN or infinite values, expected finite numbers, for "
                    "which bounds are computed. Give finite data."
                )
        for name, (low, high) in self.ranges.items():
            codes = np.asarray(feeds[name])
            if codes.size and not (low <= codes.min() and codes.max() <= high):
                raise ExecutionError(
                    f"Input {name!r} has values from {codes.min():g} to {codes.max():g}, expected "
                    f"the range of --range, {low:g} to {high:g}, for which bounds are computed. "
                    "Give inputs inside the range, or a larger one."
                )
        fed: tuple[_Fed, _Fed, _Fed] = {}, {}, {}
        holds = True
        for step in self.steps:
            self._run(step, feeds, fed)
            holds &= step.tally.violated is None
            for node in step.last:
                for kept in fed:
                    kept.pop(node, None)
        return holds

    @property
    def uncompared(self) -> int:
        """The number of segments that cannot be compared with their bounds."""
        return sum(step.tally.reason is not None for step in self.steps)

    def results(self) -> list[SegmentMeasure]:
        """Return the results of each segment, in order."""
        return [step.tally.judged(self._request) for step in self.steps]

    def _run(
        self, step: SegmentRun, feeds: Mapping[str, Any], fed: tuple[_Fed, _Fed, _Fed]
    ) -> None:
        """Run a segment of both models on codes of the reference, and on codes of the candidate.

        ``fed`` holds the codes for the reference, equal codes for the candidate, and its own
        differing codes; it is extended.
        """
        if step.parts is None:
            return
        (ours, theirs), tally = step.parts, step.tally
        own, equal, grown = fed
        renamed = {self.names.get(name, name): x for name, x in feeds.items()}
        executed, there = ours.run(feeds, own), theirs.run(renamed, equal)
        accumulated = None
        if any(node in grown for node in theirs.starts.values()):
            accumulated = theirs.run(renamed, equal | grown)
        codes = before = None
        results = [x for x in (executed, there, accumulated) if x is not None]
        if is_undefined := any(map(_has_nan, results)):
            tally.reason = NOT_COMPUTED("it has NaN on these data, for which no bound holds")
        if step.points is None:
            with np.errstate(invalid="ignore"):
                apart = np.abs(_real(there) - _real(executed))
                last = (
                    apart if accumulated is None else np.abs(_real(accumulated) - _real(executed))
                )
        else:
            one, other = step.points
            expected, _ = one.executed(executed)
            delta = step.segment.delta.astype(expected.dtype)
            # Later segments start from codes that both models can have.
            shared = np.clip(expected, *(end - delta for end in other.rounding.executed))
            own[one.node], equal[other.node] = one.feed(shared), other.feed(shared + delta)
            expected = expected + delta
            codes, before = other.executed(there)
            if expected.shape != codes.shape:
                raise AssertionError("roundings that are paired have equal shapes")
            reached = codes if accumulated is None else other.executed(accumulated)[0]
            apart = np.abs(codes - expected)
            last = apart if accumulated is None else np.abs(reached - expected)
            if last.any():
                grown[other.node] = other.feed(reached)
        if not is_undefined:
            tally.add(apart, last)
        if tally.reason is not None:
            return
        if tally.distance is None:
            tally.expect_steps(step.segment.steps())
            return
        try:
            of_codes = step.points is not None and step.points[0].is_coded
            meant = ours.ideal(feeds, own, partial(ideal, of_codes=of_codes))
            if step.points is None or codes is None:
                _measure_output(step, there, meant, self.chunk)
            else:
                tally.expect_steps(step.segment.steps())
                _measure_codes(step, step.points, (apart, codes, before), meant, self.chunk)
        except Undecidable as error:
            tally.reason = str(error.reason)


def _points(
    segment: Segment, roundings: tuple[RoundedData, RoundedData], sides: Sequence[CutModel]
) -> tuple[QuantizedPoint, QuantizedPoint]:
    """Return the end of a segment in both models; raise Undecidable if data cannot reach it."""
    points = []
    for side, rounding, delta in zip(sides, roundings, (np.zeros(()), segment.delta), strict=True):
        if rounding.origin is None:
            points.append(side.point(rounding))
        else:
            points.append(moved_point(side, rounding, roundings[0].codes, delta))
    pairs = zip(points, roundings, strict=True)
    if any(point.rounding is not rounding for point, rounding in pairs):
        raise Undecidable(NOT_COMPUTED("its codes are those of another segment, limited otherwise"))
    if roundings[0].event.mantissa is not None:
        raise Undecidable(NOT_COMPUTED("codes of minifloats are not compared on data"))
    for point in points:
        if not point.shows_codes:
            raise Undecidable(NO_BOUND(f"{point.node.op_type} does not show what it rounds"))
    return points[0], points[1]


def _shares_codes(segment: Segment, points: tuple[QuantizedPoint, QuantizedPoint]) -> bool:
    """Return whether each element has a code that both models can have."""
    (low, high), (bottom, top) = points[0].rounding.ends, points[1].rounding.executed
    low, high = low + segment.delta, high + segment.delta
    return bool((np.maximum(low, bottom) <= np.minimum(high, top)).all())


def _has_nan(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _real(array: Array) -> Float64:
    return np.asarray(array, np.float64)


def _tally(segment: Segment, request: Bounding) -> SegmentMeasure:
    bound = None
    if segment.reason is None and np.isfinite(segment.deviation).all():
        bound = bound_of(segment, request)
    value = segment.values[0]
    return SegmentMeasure(
        "" if segment.reference is None else node_name(segment.reference),
        "" if segment.candidate is None else node_name(segment.candidate),
        "" if value is None else str(value.name),
        segment.is_output,
        bound,
        reason=None if bound else str(segment.reason or "its bound is infinite"),
    )


def _mark_last(steps: Sequence[SegmentRun]) -> None:
    """Record the last segment that needs each code."""
    used: dict[ir.Node, SegmentRun] = {}
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


def error_of_float64(error: Float64, chunk: int, reach: Float64) -> Float64:
    """Return the largest error of the ideal values that float64 computes.

    Each rounding of float64 is ``2**-29`` of one of float32. Bounds for chunks count fewer
    roundings of a sum than it has terms, by a factor of no more than the length of a chunk.
    ``error`` is the largest error of the float32 computation, ``reach`` the largest magnitude.
    """
    return 2 * chunk * _FLOAT64 / FLOAT32.unit * error + SLACK * (1 + reach)


def _measure_codes(
    step: SegmentRun,
    points: tuple[QuantizedPoint, QuantizedPoint],
    measured: tuple[Array, Array, Float64 | None],
    ideal_before: Float64,
    chunk: int,
) -> None:
    """Compare distances with their bounds.

    ``measured`` are differences of codes, the codes of the candidate, and its values before
    rounding, if visible; ``ideal_before`` are ideal values of the reference before rounding.
    """
    segment, tally = step.segment, step.tally
    apart, candidate, executed = measured
    one, other = points
    low, high = one.limits
    bottom, top = (end - segment.delta for end in other.limits)
    low, high = np.maximum(low, bottom), np.minimum(high, top)
    before = one.meant(ideal_before)
    meant = np.clip(before, low, high)
    reach = segment.span
    if not np.isfinite(reach).all():
        reach = np.where(np.isfinite(reach), reach, np.abs(meant))
    own = error_of_float64(segment.reference_error, chunk, reach)
    if executed is None:
        distance = np.maximum(np.abs(candidate - segment.delta - meant) - 0.5, 0.0)
    else:
        distance = np.abs(np.clip(executed - segment.delta, low, high) - meant)
    tally.measure(_finite(distance), segment.from_ideal, own)
    differs = apart > segment.extra
    if differs.any():
        ties = np.zeros(before.shape)
        ties[differs] = np.nan_to_num(one.tie_distance(before[differs]))
        tally.expect_near_ties(ties, segment.tie_distance + own)


def _finite(distance: Float64) -> Float64:
    return distance if np.isfinite(distance).all() else np.nan_to_num(distance)


def _measure_output(step: SegmentRun, there: Array, meant: Array, chunk: int) -> None:
    segment, tally = step.segment, step.tally
    with np.errstate(invalid="ignore"):
        distance = _finite(np.abs(_real(there) - meant))
    tally.measure(
        distance,
        segment.from_ideal,
        error_of_float64(segment.reference_error, chunk, segment.largest),
    )

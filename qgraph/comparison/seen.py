"""Run segments and models to show differences: a lower limit for any bound.

A difference is certain if the outputs differ in every order of additions. For that, both models are
evaluated from an input, each on its own codes. The values before a rounding are computed in real
arithmetic. If a value is farther from all thresholds than the error of the segment, every execution
gives the same code: the code is certain. Segments that begin at uncertain codes are skipped, unless
they only move or decode them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.bound import Seen
from qgraph.certificate import Certificate, ProofVerdict, RegionVerdict
from qgraph.comparison.bound_runs import BoundRuns, SegmentRun, error_of_float64
from qgraph.comparison.ideal import ideal
from qgraph.comparison.segment_starts import (
    EXTREMES,
    Pattern,
    SegmentStart,
    adverse_codes,
    key_of,
    starts_of,
)
from qgraph.conditions import AFTER_DIFFERENCE, Demonstration
from qgraph.effort import is_over
from qgraph.errors import QGraphError
from qgraph.exactness import Exactness
from qgraph.execution.demonstration import are_small, demonstrate, feeds_of
from qgraph.execution.executor import Backend
from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.segments import Pairing
from qgraph.reasons import Undecidable

logger = logging.getLogger(__name__)

_MOST_SEGMENTS = 16
"""Maximum number of segments that are run, the loosest bounds first."""


def with_seen(
    certificate: Certificate, models: tuple[ir.Model, ir.Model], pairing: Pairing | None = None
) -> Certificate:
    """Add differences from a few runs to a certificate, for segments whose bounds exceed limits.

    Without a limit, a difference of the outputs in every execution makes the models different.
    ``pairing`` are the segments of the certificate; None to compute them anew.
    """
    over = sorted(certificate.beyond, key=_deviation, reverse=True)[:_MOST_SEGMENTS]
    if not over:
        return certificate
    try:
        runs = BoundRuns(models, certificate.bounding, Backend.AUTO, pairing)
    except (Undecidable, QGraphError, ValueError, IndexError) as error:
        logger.info("no runs: %s", error)
        return certificate
    # an output that holds codes begins at itself, and comes last
    by_ends = {step.names: step for step in reversed(runs.steps)}
    regions = []
    for region in certificate.regions:
        names = region.reference_value, region.candidate_value
        if region in over and region.bound is not None and names in by_ends and not is_over():
            seen = _seen(runs, by_ends[names])
            region = replace(region, bound=replace(region.bound, seen=seen))
        regions.append(region)
    certificate = replace(certificate, regions=tuple(regions))
    return (
        certificate
        if certificate.bounding.limits
        else with_certain_difference(certificate, runs, models)
    )


def _deviation(region: RegionVerdict) -> float:
    return 0.0 if region.bound is None else region.bound.deviation_steps


def _seen(runs: BoundRuns, step: SegmentRun) -> Seen | None:
    """Return the largest difference in a few runs of a segment; None if it cannot be run."""
    if step.parts is None or step.tally.bound is None:
        return None
    try:
        starts = starts_of(runs, step)
        roundings = step.segment.roundings
        patterns = list(EXTREMES)
        shapes = {start.key: start.shape for start in starts}
        if roundings is not None:
            patterns += adverse_codes(*roundings, lambda atom: shapes.get(key_of(atom)))
        results = [_run(runs, step, starts, pattern) for pattern in patterns]
    except (Undecidable, QGraphError, ValueError, IndexError, KeyError) as error:
        logger.info("segment %s is not run: %s", step.tally.value, error)
        return None
    if not results[0].size:
        return None  # a segment without elements shows no difference
    apart, pattern = max(zip(results, patterns, strict=True), key=lambda pair: pair[0].max())
    element = tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))
    return Seen(float(apart.max()), element, tuple(start.codes(pattern) for start in starts))


def _run(
    runs: BoundRuns, step: SegmentRun, starts: Sequence[SegmentStart], pattern: Pattern
) -> Float64:
    """Return the difference of the results of a segment, for the codes of a pattern."""
    if step.parts is None:
        raise KeyError(step.tally.value)
    feeds: dict[str, Array] = {}
    own: dict[ir.Node, Array] = {}
    equal: dict[ir.Node, Array] = {}
    for start in starts:
        codes = start.codes(pattern).array(start.shape)
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


_MOST_INPUTS = 64
"""Maximum number of inputs to try."""
_TO_NEAREST = frozenset({"Round", "Floor", "Ceil", "HalfUp", "HalfDown"})
"""Roundings to the nearest whole number, after a shift of thresholds."""

_MONOTONE = frozenset(
    {"Clip", "DequantizeLinear", "FakeQuantize", "Flatten", "Identity", "Quant", "QuantizeLinear"}
    | {"Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Elementwise operators that are monotone in their data."""

_Ends = tuple[Float64, Float64]
_Fed = dict[ir.Node, tuple[Array, Array]]
"""Sources of the smallest and the largest code of each element over all executions of a model."""


def with_certain_difference(
    certificate: Certificate, runs: BoundRuns, models: tuple[ir.Model, ir.Model]
) -> Certificate:
    """Return a certificate with the verdict DIFFERENT if an input that shows it is found."""
    if not are_small(models):
        return certificate
    for example in list(dict.fromkeys(_examples(runs)))[:_MOST_INPUTS]:
        if is_over():
            break
        names = _first_apart(runs, example, models[0].graph)
        if names is not None and _shows(runs, example, models):
            return _different(certificate, names, example, models[0])
    return certificate


def _examples(runs: BoundRuns) -> Iterator[Demonstration]:
    """Yield inputs on which segments that begin at an input of the models may differ."""
    for step in runs.steps:
        try:
            starts = starts_of(runs, step)
        except (Undecidable, KeyError):
            continue
        if len(starts) != 1 or _input_of(starts[0]) is None:
            continue
        (start,) = starts
        yield from (_example(start, pattern) for pattern in EXTREMES if pattern.share is not None)
        roundings = step.segment.roundings
        if roundings is not None and not step.segment.is_equal:
            shapes = {start.key: start.shape}
            patterns = adverse_codes(*roundings, lambda atom, s=shapes: s.get(key_of(atom)))  # type: ignore[misc]
            yield from (_example(start, pattern) for pattern in patterns)


def _input_of(start: SegmentStart) -> str | None:
    """Return the input of the reference at which a segment starts; None for other starts."""
    if start.points is None:
        return start.name
    point = start.points[0]
    is_read = point.before.is_graph_input() and not point.is_coded and point.line[0].size == 1
    return str(point.before.name) if is_read else None


def _example(start: SegmentStart, pattern: Pattern) -> Demonstration:
    codes = start.codes(pattern)
    numbers = np.array([codes.fill, *codes.codes])
    if start.points is not None:
        numbers = np.ravel(start.points[0].feed(numbers)).astype(np.float64)
    fill, *others = numbers.tolist()
    return Demonstration(0, _input_of(start), fill, codes.elements, tuple(others))


def _first_apart(
    runs: BoundRuns, example: Demonstration, graph: ir.Graph
) -> tuple[str, str] | None:
    """Return the first segment whose results differ in all executions, if an output differs."""
    feeds = feeds_of(example, graph)
    renamed = {runs.names.get(name, name): x for name, x in feeds.items()}
    fed: tuple[_Fed, _Fed] = {}, {}
    first: SegmentRun | None = None
    for step in runs.steps:
        if step.parts is None or step.tally.bound is None:
            continue
        try:
            own = _ends(step, 0, feeds, fed[0], runs.chunk)
            other = _ends(step, 1, renamed, fed[1], runs.chunk)
        except (Undecidable, QGraphError, ValueError, IndexError, KeyError) as error:
            logger.info("segment %s is not followed: %s", step.tally.value, error)
            continue
        if own is None or other is None:
            continue
        (low, high), (bottom, top) = own, (end - step.segment.delta for end in other)
        is_apart = low.shape == bottom.shape and bool(((top < low) | (high < bottom)).any())
        if is_apart and step.points is None:
            return (first or step).names
        if step.points is not None and _are_in_range(step, bottom, top):
            for point, codes, side in zip(step.points, (own, other), fed, strict=True):
                side[point.node] = point.feed(codes[0]), point.feed(codes[1])
            first = step if first is None and is_apart else first
    return None


def _ends(
    step: SegmentRun, number: int, feeds: Mapping[str, Array], fed: _Fed, chunk: int
) -> _Ends | None:
    """Return bounds of a segment's results over all executions of one model; None if unknown.

    ``number`` is 0 for the reference, 1 for the candidate; ``feeds`` and ``fed`` are its inputs and
    codes.
    """
    if step.parts is None or any(node not in fed for node in step.parts[number].starts.values()):
        return None
    part = step.parts[number]
    point = None if step.points is None else step.points[number]
    starts = [{node: fed[node][end] for node in part.starts.values()} for end in (0, 1)]
    is_known = all((x == y).all() for x, y in (fed[node] for node in part.starts.values()))
    means = partial(ideal, of_codes=point is not None and point.is_coded)
    ends = [part.ideal(feeds, starts[0], means)]
    if not is_known:
        if any(node.op_type not in _MONOTONE for node in part.nodes):
            return None
        ends.append(part.ideal(feeds, starts[1], means))
    meant = np.minimum(ends[0], ends[-1]), np.maximum(ends[0], ends[-1])
    error = (step.segment.reference_error, step.segment.candidate_error)[number]
    if point is None:
        return _widened(meant, error, chunk)
    rounding = point.rounding
    if rounding.event.kind not in _TO_NEAREST or rounding.event.mantissa is not None:
        return None
    before = [np.clip(point.meant(end), *point.limits) for end in meant]
    low, high = _widened((before[0], before[1]), error, chunk)
    codes = np.ceil(low - 0.5), np.floor(high + 0.5)
    return np.clip(codes[0], *rounding.executed), np.clip(codes[1], *rounding.executed)


def _widened(meant: _Ends, error: Float64, chunk: int) -> _Ends:
    """Return bounds of executed values from bounds of ideal values."""
    low, high = meant
    errors = [error + error_of_float64(error, chunk, np.abs(end)) for end in meant]
    return low - errors[0], high + errors[1]


def _are_in_range(step: SegmentRun, low: Float64, high: Float64) -> bool:
    """Return whether codes of the candidate are in the range for which later bounds hold."""
    if step.segment.roundings is None:
        return False
    first, last = step.segment.roundings[0].ends
    return bool(((first <= low) & (high <= last)).all())


def _shows(runs: BoundRuns, example: Demonstration, models: tuple[ir.Model, ir.Model]) -> bool:
    """Return whether the executed outputs of the models differ."""
    outputs = [(a, b, True) for a, b in runs.outputs]
    return demonstrate(models, runs.inputs, outputs, [example], same_sums=True) is not None


def _different(
    certificate: Certificate, names: tuple[str, str], example: Demonstration, reference: ir.Model
) -> Certificate:
    """Return a certificate in which one region differs."""
    regions = tuple(
        replace(
            region,
            verdict=ProofVerdict.DIFFERENT,
            exactness=Exactness.DIFFERENT,
            reason="its results differ in every order of additions on the input of shown_by",
        )
        if region.verdict is ProofVerdict.BOUNDED
        and (region.reference_value, region.candidate_value) == names
        else region
        for region in certificate.regions
    )
    if all(region.verdict is not ProofVerdict.DIFFERENT for region in regions):
        return certificate
    return replace(
        certificate,
        verdict=ProofVerdict.DIFFERENT,
        exactness=None,
        regions=regions,
        conditions=tuple(dict.fromkeys([*certificate.conditions, AFTER_DIFFERENCE])),
        counterexample=feeds_of(example, reference.graph),
        shown_by=example,
    )

"""Find codes on which two segments differ: a lower limit for any bound."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.bound import Seen
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.comparison.adverse_codes import EXTREMES, Pattern, adverse_codes
from qgraph.comparison.bound_runs import BoundRuns, SegmentRun
from qgraph.comparison.certain_difference import with_certain_difference
from qgraph.comparison.segment_starts import SegmentStart, key_of, starts_of
from qgraph.effort import is_over
from qgraph.errors import QGraphError
from qgraph.execution.executor import Backend
from qgraph.numerics import Array, Float64
from qgraph.reasons import Undecidable

logger = logging.getLogger(__name__)

_MOST_SEGMENTS = 16
"""Maximum number of segments that are run, the loosest bounds first."""


def with_seen(certificate: Certificate, models: tuple[ir.Model, ir.Model]) -> Certificate:
    """Add differences from a few runs to a certificate, for segments whose bounds exceed limits.

    Without a limit, a difference of the outputs in every execution makes the models different.

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
        by_ends.setdefault(step.names, step)
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
    if step.parts is None:
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

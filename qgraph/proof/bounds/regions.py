"""Certificates with bounds: one region for each segment of two models.

A segment is proved, and not only bounded, if all claims about its values are proved and its ends
are in one class of the matching.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.bound import STEPS_OF_OUTPUT, Against, Bound, Bounding
from qgraph.certificate import Certificate, ProofVerdict, RegionVerdict
from qgraph.conditions import (
    AFTER_DIFFERENCE,
    Condition,
    of_bounds,
    of_segments,
)
from qgraph.effort import is_over
from qgraph.errors import member
from qgraph.exactness import Exactness, Method, Witness
from qgraph.graph.scopes import operands
from qgraph.graph.slices import reached, sources
from qgraph.numerics import Float64
from qgraph.numerics.values import narrowed
from qgraph.proof.bounds.executed import Counted
from qgraph.proof.bounds.paired_models import paired, shown_ends
from qgraph.proof.bounds.segment import Segment
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.certify import Proof, certify
from qgraph.proof.discharge import names
from qgraph.proof.forced import Runner
from qgraph.proof.matching.zero_signs import distinguished
from qgraph.proof.regions import Decided
from qgraph.reasons import (
    CONSTANT_NAN,
    NOT_MATCHED,
    OUT_OF_RANGE,
    OVERFLOW,
    SIGN_OF_ZERO,
    Undecidable,
)
from qgraph.records import dataclass

logger = logging.getLogger(__name__)

_MOST_STEPS = 2**31
_MARGIN = 2.0**-13
"""Factor that exceeds the error of rounding a number to five digits."""


_Regions = tuple[list[RegionVerdict], list[Condition], Pairing]


def _bounded_regions(
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    level: Exactness,
    decided: Decided,
    proof: Proof,
    *,
    keep_inputs: bool,
    evidence: bool,
) -> _Regions:
    show = shown_ends(proof, level, decided)
    pairing = paired(models, request, keep_inputs=keep_inputs, ends=show)
    ends = show(pairing)
    regions = [
        replace(
            _region(s, request, level, is_shown=ends.show(s), evidence=evidence), entries=entries
        )
        for s, entries in zip(pairing.segments, _entries(pairing), strict=True)
    ]
    is_bounded = any(region.verdict is ProofVerdict.BOUNDED for region in regions)
    conditions = bound_conditions(request, pairing.conditions, has_any=is_bounded)
    return regions, conditions, pairing


@dataclass(frozen=True)
class BoundedProof(Proof):
    """A proof, and the segments of both models if they were bounded."""

    pairing: Pairing | None = None


def certified(
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    *,
    exact: str,
    keep_inputs: bool,
    evidence: bool,
    runs: Runner | None,
) -> tuple[BoundedProof, Certificate]:
    """Prove two models equal or bounded; return the proof and its certificate.

    If there are limits, differing inputs are counted only for regions without a bound. ``request``
    states what is to be bounded; for the options, see :func:`qgraph.proof.certify.certify`. As
    ``evidence``, the bounds of all channels are listed too. Raises ModelError if the models have
    different inputs or outputs, OptionError for a wrong option or name, UnsupportedError if a
    function cannot be inlined, or this thread does not follow IEEE 754.
    """
    level, decided = member(Exactness, exact, "exact"), Decided()
    bounded: list[_Regions] = []

    def bound(proof: Proof) -> _Regions:
        if not bounded:  # counting inputs does not change which values are equal
            options = {"keep_inputs": keep_inputs, "evidence": evidence}
            bounded.append(_bounded_regions(models, request, level, decided, proof, **options))
        return bounded[0]

    def attempt(*, counts: bool) -> tuple[BoundedProof, Certificate]:
        proof = certify(
            *models,
            exact=exact,
            keep_inputs=keep_inputs,
            evidence=evidence,
            runs=runs,
            counts=counts,
            decided=decided,
        )
        certificate = with_bounds(proof, models, request, level, bound=bound)
        pairing = bounded[0][2] if bounded else None
        return BoundedProof(proof.certificate, proof.matching, proof.shown, pairing), certificate

    if request.limits:
        proof, certificate = attempt(counts=False)
        if ProofVerdict.PROVED is proof.certificate.verdict or (
            certificate.verdict is ProofVerdict.BOUNDED or is_over()
        ):
            return proof, certificate
        has_bounds = any(r.verdict is ProofVerdict.BOUNDED for r in certificate.regions)
        if has_bounds and not (decided.hides_proofs or any(map(_distinguishes_zeros, models))):
            return proof, certificate  # counts would change nothing
    return attempt(counts=True)


def _distinguishes_zeros(model: ir.Model) -> bool:
    """Return whether an operator distinguishes the signs of zeros in data."""
    return any(value.const_value is None for value in distinguished(model.graph))


def with_bounds(
    proof: Proof,
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    level: Exactness,
    *,
    keep_inputs: bool = False,
    evidence: bool = False,
    bound: Callable[[Proof], _Regions] | None = None,
) -> Certificate:
    """Return the certificate of a proof, with bounds for segments that were not proved equal.

    Models that differ stay different, unless there is a limit and some segment has a bound.
    ``bound`` returns the regions and their conditions, if they may be known. Other options are
    those of :func:`certified`. Raises OptionError if a range or a limit names no input or output.
    """
    by_segments = partial(
        _bounded_regions, models, request, level, Decided(),
        keep_inputs=keep_inputs, evidence=evidence,
    )  # fmt: skip
    certificate = replace(proof.certificate, bounding=request)
    is_different = certificate.verdict is ProofVerdict.DIFFERENT
    open_claims = (s.claim for s in proof.shown if not s.verdict.reaches(level))
    if any(all(value.is_graph_input() for value in claim.values) for claim in open_claims):
        return certificate  # the models take different inputs
    reasons = {region.reason_id for region in certificate.regions}
    if SIGN_OF_ZERO.id in reasons or (CONSTANT_NAN.id in reasons and not request.limits):
        return certificate  # signs of zeros and NaN are not bounded
    if certificate.verdict is ProofVerdict.PROVED or (is_different and not request.limits):
        return certificate
    try:
        regions, conditions, _ = (bound or by_segments)(proof)
    except (Undecidable, ValueError, IndexError) as error:
        logger.info("no bounds: %s", error)
        return certificate
    verdicts = {region.verdict for region in regions}
    is_open, is_bounded = (v in verdicts for v in (ProofVerdict.UNDECIDED, ProofVerdict.BOUNDED))
    if is_different and (not is_bounded or (is_open and not request.limits)):
        return certificate
    has_cause = any(region.reason_id == OVERFLOW.id for region in regions)
    has_cause |= is_open and bool(request.limits)
    if not is_bounded and not has_cause and (is_open or level is not Exactness.VALUES):
        return certificate
    stated = (*of_segments(certificate.conditions), *conditions)
    return replace(
        certificate,
        verdict=next(v for v in _WORST_FIRST if v in verdicts),
        exactness=None if is_open or is_bounded else Exactness.VALUES,
        regions=tuple(regions),
        conditions=tuple(name for name in dict.fromkeys(stated) if name != AFTER_DIFFERENCE),
        shown_by=None,
    )


_WORST_FIRST = ProofVerdict.UNDECIDED, ProofVerdict.BOUNDED, ProofVerdict.PROVED


def bound_conditions(
    request: Bounding, others: Iterable[Condition], *, has_any: bool = True
) -> list[Condition]:
    """Return the conditions of all bounds, if there are any, and those that operators add."""
    return of_bounds(request.chunk, request.accumulate, others, has_any=has_any)


def _entries(pairing: Pairing) -> list[tuple[tuple[str, str], ...]]:
    """Return the names of the pairs of codes and inputs at which each segment starts."""
    exits = [s.values for s in pairing.segments if not s.is_output]
    entries = []
    for segment in pairing.segments:
        starts = [_starts(segment, side, {values[side] for values in exits}) for side in (0, 1)]
        pairs = [pair for pair in (*exits, *pairing.inputs) if pair[0] in starts[0]]
        names = [(_value(a), _value(b)) for a, b in pairs if b in starts[1]]
        entries.append(tuple(dict.fromkeys(names)))
    return entries


def _starts(
    segment: Segment, side: int, exits: Collection[ir.Value | None]
) -> set[ir.Value | None]:
    """Return the codes and inputs at which one side of a segment starts."""
    end = segment.values[side]
    if end is None:
        return set()
    node = end.producer()
    first = [end] if segment.is_output or node is None else operands(node)
    seen = reached(first, lambda value: () if value in exits else sources(value))
    return {value for value in seen if value in exits or value.is_graph_input()}


def _region(
    segment: Segment, request: Bounding, level: Exactness, *, is_shown: bool, evidence: bool
) -> RegionVerdict:
    region = RegionVerdict(
        reference_nodes=names([] if segment.reference is None else [segment.reference]),
        candidate_nodes=names([] if segment.candidate is None else [segment.candidate]),
        reference_value=_value(segment.values[0]),
        candidate_value=_value(segment.values[1]),
        reason=segment.reason,
    )
    if is_shown:
        region = replace(region, exactness=level, method=Method.BOUND, reason=None)
        return replace(region, verdict=ProofVerdict.PROVED)
    if segment.reason is not None:
        return region
    if not np.isfinite(segment.deviation).all():
        return replace(region, reason=_unbounded(segment))
    bound = bound_of(segment, request, evidence=evidence)
    if segment.counted is not None:
        region = replace(region, **_counts(segment.counted))
    region = replace(region, method=Method.BOUND, bound=bound)
    if segment.is_equal:
        return replace(region, verdict=ProofVerdict.PROVED, exactness=Exactness.VALUES)
    return replace(region, verdict=ProofVerdict.BOUNDED)


def _counts(counted: Counted) -> dict[str, Any]:
    fields: dict[str, Any] = {"counted": True, "differing_inputs": counted.differing}
    if counted.differing:
        fields["witness"] = Witness(counted.at, counted.ours, counted.theirs)
        fields["witness_channel"] = counted.channel
    return fields


def _unbounded(segment: Segment) -> str:
    if not np.isfinite(segment.extra).all():
        return NOT_MATCHED("one model limits the codes, and the other one does not")
    if np.isfinite(segment.shift).all():
        return OUT_OF_RANGE("the range of an input is not known; give --range NAME=LOW:HIGH")
    return NOT_MATCHED("the models compute it from other values, or with other weights")


def _value(value: ir.Value | None) -> str:
    return "" if value is None else str(value.name)


def bound_of(segment: Segment, request: Bounding, *, evidence: bool = False) -> Bound:
    """Return the bound of a segment in the form of certificates."""
    against = member(Against, request.against, "against")
    is_ideal = against is Against.IDEAL
    segment = replace(
        segment,
        reference_error=_stated(segment.reference_error),
        candidate_error=_stated(segment.candidate_error),
        shift=_stated(segment.shift),
    )
    # limits of codes that differ shift what both models mean
    ends = segment.extra
    deviation = ends + (segment.from_ideal if is_ideal else segment.deviation)
    tie_distance = ends + (segment.from_ideal if is_ideal else segment.tie_distance)
    unit, levels = np.ones(()), float(np.max(segment.span))
    absolute = ulps = None
    if segment.is_output:
        if not segment.is_integer:
            span = np.where(segment.span > 0, segment.span, np.inf)
            unit, levels = span / STEPS_OF_OUTPUT, float(STEPS_OF_OUTPUT)
        absolute = float(np.max(deviation))
        ulps = float(np.max(deviation / np.spacing(segment.largest.astype(np.float32))))
    parts = segment.reference_error, segment.candidate_error, segment.shift + ends
    steps = [np.asarray(part / unit) for part in (deviation, tie_distance, *parts)]
    far, tie, ours, theirs, shift = (float(np.max(part)) for part in steps)
    count = segment.steps(ideal=is_ideal)
    if segment.is_output:
        rounding = np.floor if segment.is_integer else np.ceil
        count = 0 if segment.is_equal else int(min(rounding(far), _MOST_STEPS))
    return Bound(
        far,
        count,
        tie,
        ours,
        theirs,
        shift,
        str(against),
        request.order,
        levels,
        absolute=absolute,
        ulps=ulps,
        code_shift=int(segment.delta),
        channels=_channels(steps[2:]) if evidence else (),
    )


def _stated(errors: Float64) -> Float64:
    """Round numbers up to a few digits, so that slightly different arithmetic confirms them."""
    numbers = np.ravel(errors * (1 + _MARGIN))
    return np.array([float(f"{number:.4e}") for number in numbers]).reshape(np.shape(errors))


def _channels(parts: Sequence[Float64]) -> tuple[tuple[float, float, float], ...]:
    stacked = np.stack(np.broadcast_arrays(*parts), axis=-1)
    rows = narrowed(stacked, range(stacked.ndim - 1)).reshape(-1, len(parts))
    return tuple((a, b, c) for a, b, c in rows.tolist())

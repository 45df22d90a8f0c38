"""The regions of a certificate with bounds: one for each segment of two models.

A segment is proved, and not only bounded, if nothing in it failed to be proved: all claims about
its values hold, and its ends are in one class of the matching.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import onnx_ir as ir

from qgraph.bound import STEPS_OF_OUTPUT, Against, Bound, Bounding
from qgraph.certificate import Certificate, ProofVerdict, RegionVerdict
from qgraph.conditions import EQUAL_OPERATORS
from qgraph.errors import member
from qgraph.exactness import Exactness, Method
from qgraph.graph.constants import freeze_inputs
from qgraph.graph.inference.walk import with_facts
from qgraph.graph.interface import common_domain, interface
from qgraph.graph.scopes import operands
from qgraph.numerics import Float64
from qgraph.ops.static_parameters import freeze_static_parameters
from qgraph.proof.bounds.evaluate import written_out
from qgraph.proof.bounds.segments import Pairing, Segment
from qgraph.proof.certify import Proof
from qgraph.proof.discharge import Shown
from qgraph.proof.functions.expression import Undecidable
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.normalise import flat
from qgraph.reasons import NOT_MATCHED, OUT_OF_RANGE, SIGN_OF_ZERO

logger = logging.getLogger(__name__)

_MOST_STEPS = 2**31

GIVEN_CODES = (
    "bounds hold for each segment by itself: given equal codes at its start, codes at its end lie "
    "so far apart at most; nothing is said about how differences grow from segment to segment"
)
ORDERS = {
    "any": "sums are added in any order, with or without fused operations, but one term at a time: "
    "no Winograd, FFT or Strassen convolutions, no TF32, no 8-bit products that saturate",
    "chunk": "sums are added in chunks of at most {} terms in sequence, and the chunks in sequence",
}
ACCUMULATED = "sums of 16-bit types are added in float32"
NO_SPECIALS = "no NaN and no infinity enters a segment, and inputs lie in the ranges given"


@dataclass(frozen=True)
class _Sides:
    matching: Matching
    failed: Sequence[Shown]


def paired(
    models: tuple[ir.Model, ir.Model], request: Bounding, *, keep_inputs: bool = False
) -> Pairing:
    """Return the segments of two models, whose bounds are not judged.

    Args:
        models: the reference and the candidate.
        request: what is bounded.
        keep_inputs: whether initializers that are inputs too are left so.

    Raises:
        OptionError: a range or a limit names no input or output.
    """
    copies = [flat(model) for model in models]
    for copy in copies:
        if not keep_inputs:
            freeze_inputs(copy)
        freeze_static_parameters(copy)
    domain = common_domain(*copies)
    copies = [with_facts(copy, each) for copy, each in zip(copies, domain.interfaces, strict=True)]
    if sum(written_out(copy) for copy in copies):
        faces = domain.interfaces
        copies = [with_facts(copy, each) for copy, each in zip(copies, faces, strict=True)]
    face = interface(copies[0].graph, copies[1].graph)
    Bounding.of(request, *([a for a, _ in pairs] for pairs in (face.inputs, face.outputs)))
    return Pairing(
        copies[0],
        copies[1],
        list(face.inputs),
        list(face.outputs),
        request.ranges,
        accumulate=None if request.accumulate == "own" else "FLOAT",
        chunk=request.chunk,
    )


def bounded_regions(
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    proof: Proof,
    level: Exactness,
    *,
    keep_inputs: bool = False,
    evidence: bool = False,
) -> tuple[list[RegionVerdict], list[str]]:
    """Return a region for each segment of two models, and the conditions of their bounds.

    Args:
        models: the reference and the candidate.
        request: what is bounded.
        proof: what was proved of them.
        level: at which segments count as proved.
        keep_inputs: whether initializers that are inputs too are left so.
        evidence: list the bounds of all channels.

    Raises:
        OptionError: a range or a limit names no input or output.
    """
    pairing = paired(models, request, keep_inputs=keep_inputs)
    failed = [s for s in proof.shown if not s.verdict.reaches(level)]
    sides = _Sides(proof.matching, failed)
    regions = [_region(s, request, sides, level, evidence=evidence) for s in pairing.segments]
    return regions, _conditions(regions, request, pairing.conditions)


def with_bounds(
    proof: Proof,
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    level: Exactness,
    *,
    keep_inputs: bool = False,
    evidence: bool = False,
) -> Certificate:
    """Return the certificate of a proof, with bounds where equality was not proved.

    Models that differ stay different unless there is a limit: then all segments are bounded.

    Args:
        proof: the proof of equality.
        models: the reference and the candidate.
        request: what is to be bounded.
        level: at which segments count as proved.
        keep_inputs: whether initializers that are inputs too are left so.
        evidence: list the bounds of all channels.

    Raises:
        OptionError: a range or a limit names no input or output.
    """
    found = replace(proof.certificate, bounding=request)
    is_different = found.verdict is ProofVerdict.DIFFERENT
    if any(s.claim.reference.is_graph_input() for s in proof.shown if not s.verdict.reaches(level)):
        return found  # the models take different inputs
    if any(region.reason_id == SIGN_OF_ZERO.id for region in found.regions):
        return found  # signs of zeros are not bounded
    if found.verdict is ProofVerdict.PROVED or (is_different and not request.limits):
        return found
    try:
        regions, conditions = bounded_regions(
            models, request, proof, level, keep_inputs=keep_inputs, evidence=evidence
        )
    except (Undecidable, ValueError, IndexError) as error:
        logger.info("no bounds: %s", error)
        return found
    verdicts = {region.verdict for region in regions}
    if ProofVerdict.BOUNDED not in verdicts or (
        is_different and ProofVerdict.UNDECIDED in verdicts
    ):
        return found
    is_open = ProofVerdict.UNDECIDED in verdicts
    if ProofVerdict.PROVED in verdicts:
        conditions.insert(0, EQUAL_OPERATORS)
    return replace(
        found,
        verdict=ProofVerdict.UNDECIDED if is_open else ProofVerdict.BOUNDED,
        exactness=None,
        regions=tuple(regions),
        conditions=tuple(dict.fromkeys((*found.conditions, *conditions))),
        shown_by=None,
    )


def _conditions(
    regions: Iterable[RegionVerdict], request: Bounding, others: Iterable[str]
) -> list[str]:
    is_bounded = any(region.verdict is ProofVerdict.BOUNDED for region in regions)
    return bound_conditions(request, others) if is_bounded else []


def bound_conditions(request: Bounding, others: Iterable[str]) -> list[str]:
    """Return what all bounds take for granted, and what some operators add to it."""
    order = ORDERS["any"] if request.chunk is None else ORDERS["chunk"].format(request.chunk)
    found = [GIVEN_CODES, order, *sorted(others), NO_SPECIALS]
    return found + ([ACCUMULATED] if request.accumulate != "own" else [])


def _region(
    segment: Segment, request: Bounding, sides: _Sides, level: Exactness, *, evidence: bool
) -> RegionVerdict:
    nodes = segment.reference, segment.candidate
    region = RegionVerdict(
        reference_nodes=tuple(_name(node) for node in nodes[:1] if node is not None),
        candidate_nodes=tuple(_name(node) for node in nodes[1:] if node is not None),
        reference_value=_value(segment.values[0]),
        candidate_value=_value(segment.values[1]),
        reason=segment.reason,
    )
    if _is_proved(segment, sides):
        return replace(
            region,
            verdict=ProofVerdict.PROVED,
            exactness=level,
            method=Method.BOUND,
            reason=None,
        )
    if segment.reason is not None:
        return region
    if not np.isfinite(segment.deviation).all():
        return replace(region, reason=_unbounded(segment))
    bound = bound_of(segment, request, evidence=evidence)
    if not segment.deviation.any() and not segment.extra.any():
        return replace(
            region,
            verdict=ProofVerdict.PROVED,
            exactness=Exactness.VALUES,
            method=Method.BOUND,
            bound=bound,
        )
    return replace(region, verdict=ProofVerdict.BOUNDED, method=Method.BOUND, bound=bound)


def _unbounded(segment: Segment) -> str:
    if np.isfinite(segment.shift).all():
        return OUT_OF_RANGE("the range of an input is not known; give --range NAME=LOW:HIGH")
    return NOT_MATCHED("the models compute it from other values, or with other weights")


def _name(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)


def _value(value: ir.Value | None) -> str:
    return "" if value is None else str(value.name)


def bound_of(segment: Segment, request: Bounding, *, evidence: bool = False) -> Bound:
    """Return the bound of a segment as a certificate states it."""
    is_ideal = member(Against, request.against, "against") is Against.IDEAL
    deviation = segment.from_ideal if is_ideal else segment.deviation
    unit, levels = np.ones(()), float(np.max(segment.span))
    absolute = ulps = None
    if segment.is_output:
        span = np.where(segment.span > 0, segment.span, np.inf)
        unit, levels = span / STEPS_OF_OUTPUT, float(STEPS_OF_OUTPUT)
        absolute = float(np.max(deviation))
        ulps = float(np.max(deviation / np.spacing(segment.largest.astype(np.float32))))
    parts = segment.reference_error, segment.candidate_error, segment.shift
    steps = [np.asarray(part / unit) for part in (deviation, segment.tie_distance, *parts)]
    far, tie, ours, theirs, shift = (float(np.max(part)) for part in steps)
    count = segment.steps(ideal=is_ideal)
    if segment.is_output:
        count = int(min(np.ceil(far), _MOST_STEPS))
    return Bound(
        far,
        count,
        tie,
        ours,
        theirs,
        shift,
        str(member(Against, request.against, "against")),
        request.order,
        levels,
        absolute=absolute,
        ulps=ulps,
        channels=_channels(steps[2:]) if evidence else (),
    )


def _channels(parts: Sequence[Float64]) -> tuple[tuple[float, float, float], ...]:
    flat_parts = np.broadcast_arrays(*parts)
    rows = zip(*(part.reshape(-1).tolist() for part in flat_parts), strict=True)
    return tuple((a, b, c) for a, b, c in rows)


_FORWARD = 4
"""How many values codes may go through until they are decoded."""

_DECODING = frozenset({"Cast", "DequantizeLinear"})


def _is_proved(segment: Segment, sides: _Sides) -> bool:
    """Return whether the matching shows the ends of a segment equal, given equal starts."""
    matching, ends = sides.matching, []
    for value, side in zip(segment.values, (matching.reference, matching.candidate), strict=True):
        own = {v.name: v for node in side.nodes for v in node.outputs}
        end = None if value is None else own.get(value.name)
        if end is None:
            return False
        ends.append(_forward(end) if not segment.is_output else [end])
    codes = (_behind_clips(values) for values in ends)
    pairs = [(a, b) for a, b in product(*codes) if matching.equal((a, b))]
    if not pairs:
        return False
    a, b = pairs[0]
    cones = _cone(a, ends[0]) | _cone(b, ends[1])
    classes = {matching.class_of(matching.reference, a)}
    for s in sides.failed:
        if not cones.isdisjoint(s.claim.values):
            return False
        if matching.class_of(matching.reference, s.claim.reference) in classes:
            return False
    return True


def _forward(end: ir.Value) -> list[ir.Value]:
    """Return a value and those that only it is decoded to."""
    found = [end]
    while len(found) < _FORWARD:
        users = list(found[-1].consumers())
        kind = found[-1].dtype
        is_clip = bool(users) and _is_clip(users[0])
        limits_codes = is_clip and kind is not None and kind.is_integer()
        if len(users) != 1 or not (users[0].op_type in _DECODING or limits_codes):
            break
        found.append(users[0].outputs[0])
    return found


def _behind_clips(values: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """Return the values from the last Clip on: codes before it may differ from those used."""
    clips = [i for i, value in enumerate(values) if _is_clip(value.producer())]
    return values[max(clips, default=0) :]


def _is_clip(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Clip"


def _cone(end: ir.Value, own: Sequence[ir.Value]) -> set[ir.Value]:
    """Return the values that an end is computed from, up to what is rounded before."""
    found: set[ir.Value] = set()
    stack = [end]
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        node = value.producer()
        if node is None or (node.op_type in _ROUNDING and value not in own):
            continue
        stack += operands(node)
    return found


_ROUNDING = frozenset(
    {"Quant", "IntQuant", "BipolarQuant", "Trunc", "FloatQuant", "FakeQuantize"}
    | {"QuantizeLinear", "Round", "Floor", "Ceil"}
)

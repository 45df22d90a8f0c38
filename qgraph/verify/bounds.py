"""Check the bounded regions of a certificate: recompute the bounds, without any search.

The certificate names the corresponding roundings. The reference is evaluated on codes, then the
candidate on the same codes, and the ends of each region are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from qgraph.bound import STEPS_OF_OUTPUT, Against, Bound
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.errors import EquivalenceError, UnsupportedError
from qgraph.exactness import Exactness, Method, PartFinding, ProofVerdict, Status
from qgraph.graph.interface import Interface, Pair, conflict
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import reached
from qgraph.numerics import Float64
from qgraph.ops.approximation import error_up_to, largest_of
from qgraph.ops.moved_elements import PRIMES
from qgraph.text import amount
from qgraph.verify.ideals import UNKNOWN, Executed, Ideal, TracedRounding, distance
from qgraph.verify.reading import Reading, confirm, meaning, merged, need
from qgraph.verify.regions import Equality, EqualValues, finding_of, not_decided, with_defaults
from qgraph.verify.rules import ROUNDINGS, RULES
from qgraph.verify.traces import Trace, input_of, is_whole

_MOST_STEPS = 2.0**31
_STATED = frozenset(
    {"reference_nodes", "candidate_nodes", "reference_value", "candidate_value", "entries"}
    | {"verdict", "exactness", "method", "bound", "reason", "boxes", "cases", "counted"}
)
"""Fields of a region that has a bound; the others have their defaults."""


class _Segment(NamedTuple):
    """A region of a certificate that begins and ends at codes, inputs and outputs."""

    region: RegionVerdict
    ends: Pair
    is_output: bool

    @property
    def code_shift(self) -> int:
        """Codes of the candidate minus codes of the reference."""
        return 0 if self.region.bound is None else self.region.bound.code_shift


def check_bounds(
    certificate: Certificate, sides: tuple[Reading, Reading], paired: Interface
) -> tuple[list[PartFinding], str | None]:
    """Return the findings about regions, and why they do not cover the models, if so."""
    checks = [BoundCheck(certificate, sides, paired, PRIMES[0])]
    if any(trace.primes for trace in checks[0].traces):
        checks.append(BoundCheck(certificate, sides, paired, PRIMES[1]))
    findings = []
    for region in certificate.regions:
        each = (check.check(region) for check in checks)
        wrong = (finding for finding in each if finding.status is not Status.CHECKED)
        findings.append(next(wrong, PartFinding(Status.CHECKED)))
    return findings, checks[0].problem()


class BoundCheck:
    """Checks the regions of a certificate with bounds, with primes in place of open sizes."""

    def __init__(
        self,
        certificate: Certificate,
        sides: tuple[Reading, Reading],
        paired: Interface,
        primes: Sequence[int],
    ) -> None:
        self._bounding, self._sides, self._paired = certificate.bounding, sides, paired
        self._compared: dict[Pair, tuple[TracedRounding, TracedRounding]] = {}
        own = filter(_begins_at_end, certificate.regions)
        self._own = {(region.reference_value, region.candidate_value) for region in own}
        found = ((id(region), self._segment(region)) for region in certificate.regions)
        self._segments = {key: segment for key, segment in found if segment is not None}
        self._exits = [s for s in self._segments.values() if not s.is_output]
        self._starting = [s.ends for s in self._exits] + list(paired.inputs)
        self._ends = [{s.ends[side] for s in self._exits} for side in (0, 1)]
        ranges, order = self._bounding.ranges, (self._bounding.chunk, self._bounding.accumulate)
        inputs = [{a: input_of(a, ranges.get(str(a.name))) for a, _ in paired.inputs}]
        inputs.append({b: inputs[0][a] for a, b in paired.inputs})
        settling = (lambda *_: None), self._settled
        self.traces: list[Trace] = []
        for side, given, settle, ends in zip(sides, inputs, settling, self._ends, strict=True):
            self.traces.append(Trace(side, given, settle, order, RULES, ends, primes))
        self._equal = EqualValues(sides, (), paired.inputs)
        alike = [s.ends for s in self._exits if not s.code_shift and self._agree(s)]
        alike += [ends for ends in self._compared if self._are_equal_codes(*ends)]
        claims = [Equality(ends, (), False, True) for ends in alike if ends in self._compared]
        self._equal = EqualValues(sides, claims, paired.inputs)

    def _segment(self, region: RegionVerdict) -> _Segment | None:
        """Return the segment of a region; None if several values have its name, or none."""
        names = region.reference_value, region.candidate_value
        named = [side.named(name) for side, name in zip(self._sides, names, strict=True)]
        if [len(values) for values in named] != [1, 1]:
            return None
        ends = named[0][0], named[1][0]
        node = ends[0].producer()
        rounds = node is not None and node.op_type in ROUNDINGS
        is_last = names not in self._own and ends in self._paired.outputs and not rounds
        return _Segment(region, ends, _begins_at_end(region) or is_last)

    def _settled(self, value: ir.Value, rounding: TracedRounding) -> Ideal | None:
        """Return the codes of the reference that the certificate pairs with a rounding."""
        for segment in (s for s in self._exits if s.ends[1] is value):
            own = self.traces[0].roundings.get(segment.ends[0])
            keys = set(own.function.key if own else ()), set(rounding.function.key)
            if own and (keys[0] == keys[1] or UNKNOWN.key in keys[0] | keys[1]):
                self._compared[segment.ends] = own, rounding
                return own.codes.plus(Ideal.fixed(np.asarray(float(segment.code_shift))))
        return None

    def problem(self) -> str | None:
        """Return why regions do not cover the models; None if they do."""
        conflicts = (conflict(*pair) for pair in self._paired.inputs)
        ended = {s.ends for s in self._segments.values() if s.is_output}
        missing = [a for a, b in self._paired.outputs if (a, b) not in ended]
        uncovered = f"no region ends at output {missing[0].name!r}" if missing else None
        return next(filter(None, conflicts), uncovered)

    def check(self, region: RegionVerdict) -> PartFinding:
        """Return the finding about a region."""
        is_stated = region.verdict in (ProofVerdict.PROVED, ProofVerdict.BOUNDED)
        if region.method is not Method.BOUND or not is_stated:
            return not_decided(region)  # equal where its entries are, which no segment shows
        return finding_of(lambda: self._check(region))

    def _check(self, region: RegionVerdict) -> None:
        need(id(region) in self._segments, "there is no value of its name, or several")
        segment = self._segments[id(region)]
        producers = [end.producer() for end in segment.ends]
        nodes = tuple(() if node is None else (node_name(node),) for node in producers)
        is_named = nodes == (region.reference_nodes, region.candidate_nodes)
        confirm(is_named, "it does not end at the named nodes")
        entries = self._entries(segment)
        names = ", ".join(sorted(f"{a} -> {b}" for a, b in entries)) or "none"
        are_all = set(region.entries) == entries and len(region.entries) == len(entries)
        confirm(are_all, f"its entries are others: {names}")
        is_proved = region.verdict is ProofVerdict.PROVED
        need(is_proved or not region.counted, "its codes were compared for each sum")
        is_bare = region == with_defaults(region, _STATED)
        confirm(is_bare, "it states figures that a bound does not have")
        confirm(not (is_proved and segment.code_shift), "code shift: equal codes have none")
        if is_proved:
            is_one = self._is_same(segment) and region.exactness is Exactness.VALUES
            need(is_one, "the checker does not find its two sides to be one function")
        elif region.bound is None:
            raise EquivalenceError("it states no bound")
        else:
            with np.errstate(all="ignore"):
                self._compare(segment, region.bound)
        sizes = map(Trace.shape, self.traces, segment.ends)
        merged(*(tuple(n if isinstance(n, int) else str(n) for n in own) for own in sizes))

    def _entries(self, segment: _Segment) -> set[tuple[str, str]]:
        """Return the names of the pairs of codes and inputs that a segment starts from."""
        starts = [self._starts(segment, side) for side in (0, 1)]
        pairs = ((a, b) for a, b in self._starting if a in starts[0] and b in starts[1])
        return {(str(a.name), str(b.name)) for a, b in pairs}

    def _starts(self, segment: _Segment, side: int) -> set[ir.Value]:
        exits, end = self._ends[side], segment.ends[side]

        def operands(value: ir.Value) -> list[ir.Value]:
            node = value.producer()
            return [] if node is None else self._sides[side].sources(node)

        starts = [end] if segment.is_output or end.producer() is None else operands(end)
        seen = reached(starts, lambda value: [] if value in exits else operands(value))
        return {value for value in seen if value in exits or value.producer() is None}

    def _is_same(self, segment: _Segment) -> bool:
        """Return whether equal operators compute its ends from equal values."""
        if segment.is_output:
            return self._equal.are_equal(*segment.ends)
        data = [node.inputs[0] for end in segment.ends if (node := end.producer())]
        limits = [*map(Trace.limits_behind, self.traces, segment.ends)]
        is_one = self._agree(segment) and self._equal.are_equal(data[0], data[1])
        return is_one and limits[0] == limits[1]

    def _are_equal_codes(self, *ends: ir.Value) -> bool:
        """Return whether paired codes have one type and zero point."""
        forms = ((v.dtype, t.of(v).meant.identity) for t, v in zip(self.traces, ends, strict=True))
        return all(map(is_whole, ends)) and len(set(forms)) == 1

    def _agree(self, segment: _Segment) -> bool:
        """Return whether its ends are equal if the data, or the codes, of their nodes are."""
        one, other = (end.producer() for end in segment.ends)
        if one is None or other is None:
            return False
        parameters = zip(one.inputs[1:], other.inputs[1:], strict=False)
        alike = all(a is b is None or self._equal.are_equal(a, b) for a, b in parameters)
        meanings = (meaning(n, s.imports) for n, s in zip((one, other), self._sides, strict=True))
        places = {end.index() for end in segment.ends}  # a node may have several results
        return alike and len(set(meanings)) == len(places) == 1

    def _compare(self, segment: _Segment, bound: Bound) -> None:
        """Check that the figures of a bound are at least the recomputed ones."""
        is_asked = (bound.against, bound.order) == (self._bounding.against, self._bounding.order)
        confirm(is_asked, "it answers another question than the certificate")
        is_shifted = segment.is_output and segment.code_shift
        confirm(not is_shifted, "code shift: an output is not a code of a quantizer")
        problem = problem_of(self._figures(segment, bound), bound)
        # the prover may know smaller bounds
        need(not problem, f"the checker does not find so small a bound: {problem}")
        need(bound.seen is None, "the checker runs no codes that show a difference")

    def _figures(self, segment: _Segment, bound: Bound) -> Figures:
        """Return the figures of a bound."""
        if segment.is_output:
            ours, theirs = map(Trace.of, self.traces, segment.ends)
            return of_output(ours, theirs, bound, any(map(is_whole, segment.ends)))
        for trace, end in zip(self.traces, segment.ends, strict=True):
            trace.expect_rounding(end)
        pair = self._compared.get(segment.ends)
        if pair is None:
            raise UnsupportedError("the models compute it by different operators")
        return of_roundings(*pair, bound)


def _begins_at_end(region: RegionVerdict) -> bool:
    """Return whether an output is the start of its region: codes, or what they decode to."""
    return {reference for reference, _ in region.entries} == {region.reference_value}


class Figures(NamedTuple):
    """Figures of a bound: errors and shift by channel, in steps; steps between codes."""

    reference_error: Float64
    candidate_error: Float64
    ideal_shift: Float64
    max_steps: float
    levels: float
    absolute: float | None = None
    ulps: float | None = None


def of_roundings(one: TracedRounding, other: TracedRounding, bound: Bound) -> Figures:
    """Return the bound of two roundings, whose codes differ by a constant shift."""
    need(one.kind == other.kind, "the models round in different ways")
    delta = np.asarray(float(bound.code_shift))
    (low, high), reach = (
        (np.minimum(a[0], b[0] - delta), np.maximum(a[1], b[1] - delta))
        for a, b in ((one.ends, other.ends), (one.reach, other.reach))
    )
    # Beyond these values both codes are clipped, each to its own limit.
    window, moved = (low - 1, high + 1), (low + delta - 1, high + delta + 1)
    shift = distance(one.function.plus(Ideal.fixed(delta)), other.function, moved)
    ours, theirs = (
        error_up_to(before, largest_of(*ends))
        for before, ends in ((one.before, window), (other.before, moved))
    )
    apart = [
        np.abs(np.clip(end, *one.clips) + delta - np.clip(end + delta, *other.clips))
        for end in reach
    ]
    extra = np.nan_to_num(np.maximum(*apart), nan=0.0, posinf=np.inf)
    far = _counted(bound, ours) + theirs + shift
    # Codes n steps apart, with limits m steps apart, differ by at most max(n, m) steps.
    steps = np.max(np.maximum(np.where(far > 0, np.floor(far) + 1, 0.0), extra))
    levels = float(np.max(one.ends[1] - one.ends[0]))
    # Limits of codes that differ shift what both models mean.
    return Figures(ours, theirs, shift + extra, float(min(steps, _MOST_STEPS)), levels)


def _counted(bound: Bound, ours: Float64) -> Float64:
    """Return the error of the reference, or 0 if bounds are against its ideal values."""
    return ours if bound.against == Against.EXECUTION else np.zeros_like(ours)


def of_output(ours: Executed, theirs: Executed, bound: Bound, are_whole: bool) -> Figures:
    """Return the bound of two outputs, in steps of whole numbers or of the range of the first."""
    parts = ours.error, theirs.error, distance(ours.meant, theirs.meant)
    span = ours.high - ours.low
    unit, levels = np.ones(()), float(np.max(span))
    if not are_whole:
        unit, levels = np.where(span > 0, span, np.inf) / STEPS_OF_OUTPUT, float(STEPS_OF_OUTPUT)
    far = _counted(bound, parts[0]) + parts[1] + parts[2]
    ulps = float(np.max(far / np.spacing(ours.largest.astype(np.float32))))
    steps = min((np.floor if are_whole else np.ceil)(np.max(far / unit)), _MOST_STEPS)
    one, other, shift = (part / unit for part in parts)
    return Figures(one, other, shift, float(steps), levels, float(np.max(far)), ulps)


def problem_of(figures: Figures, bound: Bound) -> str | None:
    """Return which figure of a bound is smaller than the recomputed one; None if none is."""
    ours, theirs, shift = figures[:3]
    least = figures._asdict() | {
        "deviation_steps": _counted(bound, ours) + theirs + shift,
        "tie_distance_steps": np.maximum(_counted(bound, ours), theirs + shift),
    }
    for name, numbers in least.items():
        number, stated = None if numbers is None else float(np.max(numbers)), getattr(bound, name)
        is_enough = number is stated is None
        if number is not None and stated is not None:  # NaN is never enough
            is_enough = stated <= number if name == "levels" else stated >= number
        if not is_enough:
            texts = amount(number, 12), amount(stated, 12)
            return f"{name.replace('_', ' ')}: {texts[0]} was found, not {texts[1]}"
    if not bound.channels:
        return None
    rows = np.stack([np.ravel(part) for part in np.broadcast_arrays(ours, theirs, shift)], axis=1)
    listed = np.asarray(bound.channels, np.float64)
    if len(rows) > 1 and len(listed) not in (1, len(rows)):
        return f"{len(rows)} channels were found, not {len(listed)}"
    return None if (listed >= rows).all() else "an error of a channel is too small"

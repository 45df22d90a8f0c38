"""Check the bounded regions of a certificate: recompute the bounds, without any search.

The certificate names the corresponding roundings. The reference is evaluated on codes, then the
candidate on the same codes, and the ends of each region are compared.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bound
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.errors import EquivalenceError, UnsupportedError
from qgraph.exactness import Exactness, Method, PartFinding, ProofVerdict, Status
from qgraph.graph.interface import Interface, Pair, conflict
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import reached
from qgraph.ops.moved_elements import PRIMES
from qgraph.verify import FAILURES, confirm, need
from qgraph.verify.figures import Figures, of_output, of_roundings, problem_of
from qgraph.verify.ideals import ENDLESS, UNKNOWN, Basis, Executed, Ideal, TracedRounding
from qgraph.verify.reading import Reading, agree, merged
from qgraph.verify.regions import Equality, EqualValues, finding_of, not_decided, with_defaults
from qgraph.verify.rules import ROUNDINGS, RULES
from qgraph.verify.traces import Trace, range_of_codes

_Pair = tuple[TracedRounding, TracedRounding]
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
    def nodes(self) -> tuple[ir.Node | None, ir.Node | None]:
        """The nodes that compute its ends."""
        return self.ends[0].producer(), self.ends[1].producer()

    @property
    def code_shift(self) -> int:
        """Codes of the candidate minus codes of the reference."""
        return 0 if self.region.bound is None else self.region.bound.code_shift


def check_bounds(
    certificate: Certificate, sides: tuple[Reading, Reading], paired: Interface
) -> tuple[list[PartFinding], str | None]:
    """Return the findings about the regions of a certificate with bounds.

    Returns: the findings, and why the regions do not cover the models; None if they do.
    """
    checks = [BoundCheck(certificate, sides, paired, PRIMES[0])]
    if checks[0].is_open:
        checks.append(BoundCheck(certificate, sides, paired, PRIMES[1]))
    findings = []
    for region in certificate.regions:
        each = (check.check(region) for check in checks)
        wrong = (finding for finding in each if finding.status is not Status.CHECKED)
        findings.append(next(wrong, PartFinding(Status.CHECKED)))
    return findings, checks[0].problem()


class BoundCheck:
    """Checks the regions of a certificate with bounds.

    Args:
        certificate: the certificate.
        sides: the models.
        paired: their inputs and outputs.
        primes: prime numbers used in place of open sizes.
    """

    def __init__(
        self,
        certificate: Certificate,
        sides: tuple[Reading, Reading],
        paired: Interface,
        primes: Sequence[int],
    ) -> None:
        self._bounding, self._sides, self._paired = certificate.bounding, sides, paired
        self._compared: dict[Pair, _Pair] = {}
        own = filter(_begins_at_end, certificate.regions)
        self._own = {(region.reference_value, region.candidate_value) for region in own}
        found = ((id(region), self._segment(region)) for region in certificate.regions)
        self._segments = {key: segment for key, segment in found if segment is not None}
        self._exits = [s for s in self._segments.values() if not s.is_output]
        self._starting = [s.ends for s in self._exits] + list(paired.inputs)
        self._ends = [{s.ends[side] for s in self._exits} for side in (0, 1)]
        ranges, order = self._bounding.ranges, (self._bounding.chunk, self._bounding.accumulate)
        inputs = [{a: _input(a, ranges.get(str(a.name))) for a, _ in paired.inputs}]
        inputs.append({b: inputs[0][a] for a, b in paired.inputs})
        settling = (lambda *_: None), self._settled
        self._traces: list[Trace] = []
        for side, given, settle, ends in zip(sides, inputs, settling, self._ends, strict=True):
            self._traces.append(Trace(side, given, settle, order, RULES, ends, primes))
        claims = [Equality(p, (), False, True) for s in self._exits for p in self._equal_codes(s)]
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
        """Return the codes of the reference that correspond to a rounding of the candidate.

        Codes that the certificate pairs are equal for later segments, even without a bound.
        """
        for segment in (s for s in self._exits if s.ends[1] is value):
            own = self._traces[0].roundings.get(segment.ends[0])
            keys = set(own.function.key if own else ()), set(rounding.function.key)
            if own and (keys[0] == keys[1] or UNKNOWN.key in keys[0] | keys[1]):
                self._compared[segment.ends] = own, rounding
                return own.codes.plus(Ideal.fixed(np.asarray(float(segment.code_shift))))
        return None

    def _equal_codes(self, segment: _Segment) -> Iterator[Pair]:
        """Yield values that are equal if the codes at the end of a segment are."""
        alike = [segment.ends]
        if segment.ends in self._compared:
            if not segment.code_shift and agree(*segment.nodes, self._sides):
                yield segment.ends
            codes = self._compared[segment.ends][0].codes
            ours, theirs = (trace.holding(codes) for trace in self._traces)
            alike = list(itertools.product(ours, theirs))
        for pair in alike:
            with contextlib.suppress(*FAILURES):
                if self._is_same(pair):
                    yield pair

    @property
    def is_open(self) -> bool:
        """Whether the models have open sizes."""
        return any(trace.primes for trace in self._traces)

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
        nodes = tuple(() if node is None else (node_name(node),) for node in segment.nodes)
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
            is_one = self._is_congruent(segment) and region.exactness is Exactness.VALUES
            need(is_one, "the checker does not find its two sides to be one function")
            self._expect_one_shape(segment)
        elif region.bound is None:
            raise EquivalenceError("it states no bound")
        else:
            with np.errstate(all="ignore"):
                self._compare(segment, region.bound)

    def _expect_one_shape(self, segment: _Segment) -> None:
        """Check that both ends have one shape."""
        sizes = [trace.shape(end) for trace, end in zip(self._traces, segment.ends, strict=True)]
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

    def _is_congruent(self, segment: _Segment) -> bool:
        one, other = segment.nodes
        if segment.is_output:
            return self._equal.are_equal(*segment.ends) or self._is_same(segment.ends)
        if one is None or other is None or not agree(one, other, self._sides):
            return False
        are_equal = self._equal.are_equal(one.inputs[0], other.inputs[0])
        return are_equal and self._has_one_limit(segment.ends)

    def _has_one_limit(self, values: Pair) -> bool:
        """Return whether Clips behind two values leave the same codes."""
        one, other = (t.limits_behind(v) for t, v in zip(self._traces, values, strict=True))
        return one == other

    def _is_same(self, ends: Pair) -> bool:
        """Return whether two values are the same function of codes, without rounding."""
        ours, theirs = (t.of(end) for t, end in zip(self._traces, ends, strict=True))
        is_exact = ends[0].dtype is ends[1].dtype and not (ours.error.any() or theirs.error.any())
        is_one = is_exact and ours.meant.identity == theirs.meant.identity
        return is_one and self._has_one_limit(ends)

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
            self._expect_one_shape(segment)
            ours, theirs = (t.of(end) for t, end in zip(self._traces, segment.ends, strict=True))
            return of_output(ours, theirs, bound, any(map(_is_whole, segment.ends)))
        for trace, end in zip(self._traces, segment.ends, strict=True):
            trace.expect_rounding(end)
        pair = self._compared.get(segment.ends)
        if pair is None:
            raise UnsupportedError("the models compute it by different operators")
        self._expect_one_shape(segment)
        return of_roundings(*pair, bound)


def _begins_at_end(region: RegionVerdict) -> bool:
    """Return whether an output is the start of its region: codes, or what they decode to."""
    return {reference for reference, _ in region.entries} == {region.reference_value}


def _is_whole(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _input(value: ir.Value, limits: tuple[float, float] | None) -> Executed:
    low, high = range_of_codes(value) if _is_whole(value) else (-ENDLESS, ENDLESS)
    if limits is not None:
        low, high = map(np.asarray, map(float, limits))
    basis = Basis(("input", str(value.name)), low, high)
    return Executed(Ideal.of(basis), low, high, unit=np.ones(()) if _is_whole(value) else None)

"""Check the bounded regions of a certificate: recompute the bounds, without any search.

The certificate names the corresponding roundings. The reference is evaluated on codes, then the
candidate on the same codes, and the ends of each region are compared. If one model moves elements
before it rounds them, and the other one after, the moved codes are the end of the region.
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
from qgraph.errors import EquivalenceError
from qgraph.exactness import Exactness, Method, PartFinding, ProofVerdict, Status
from qgraph.graph.interface import Interface, Pair, conflict
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import reached
from qgraph.ops.moved_elements import PRIMES, Sizes
from qgraph.verify.figures import Figures, of_output, of_roundings, problem_of
from qgraph.verify.findings import FAILURES, confirm, need
from qgraph.verify.ideals import ENDLESS, UNKNOWN, Basis, Executed, Ideal, TracedRounding
from qgraph.verify.outputs import EqualValues
from qgraph.verify.reading import Reading, agree
from qgraph.verify.regions import Equality, not_decided, with_defaults
from qgraph.verify.rules import ROUNDINGS, RULES
from qgraph.verify.shapes import Shape, merged
from qgraph.verify.traces import Trace, range_of_codes

_NOISE = 2.0**-24
"""Distance in steps that float64 rounding can explain."""

_Pair = tuple[TracedRounding, TracedRounding]
_STATED = frozenset(
    {"reference_nodes", "candidate_nodes", "reference_value", "candidate_value", "entries"}
    | {"verdict", "exactness", "method", "bound", "reason", "boxes", "cases"}
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
        self._certificate, self._sides, self._paired = certificate, sides, paired
        self._segments: dict[int, _Segment] = {}
        self._compared: dict[Pair, list[_Pair]] = {}
        for region in certificate.regions:
            self._enter(region)
        self._exits = [s for s in self._segments.values() if not s.is_output]
        self._starting = [s.ends for s in self._exits] + list(paired.inputs)
        bounding = certificate.bounding
        order = bounding.chunk, bounding.accumulate
        self._ends = [{s.ends[side] for s in self._exits} for side in (0, 1)]
        inputs = {a: _input(a, bounding.ranges.get(str(a.name))) for a, _ in paired.inputs}
        self._one = Trace(sides[0], inputs, lambda *_: None, order, RULES, self._ends[0], primes)
        inputs = {b: inputs[a] for a, b in paired.inputs}
        self._other = Trace(sides[1], inputs, self._settled, order, RULES, self._ends[1], primes)
        self._runs = (sides[0], self._one), (sides[1], self._other)
        claims = [Equality(p, (), False, True) for s in self._exits for p in self._equal_codes(s)]
        self._equal = EqualValues(sides, claims, paired.inputs)

    def _enter(self, region: RegionVerdict) -> None:
        names = region.reference_value, region.candidate_value
        named = [side.named(name) for side, name in zip(self._sides, names, strict=True)]
        if [len(values) for values in named] == [1, 1]:
            ends = named[0][0], named[1][0]
            node = ends[0].producer()
            rounds = node is not None and node.op_type in ROUNDINGS
            # an output that is codes, or what they decode to, begins at itself
            is_own = {reference for reference, _ in region.entries} == {names[0]}
            is_output = is_own or (ends in self._paired.outputs and not rounds)
            self._segments[id(region)] = _Segment(region, ends, is_output)

    def _settled(self, value: ir.Value, rounding: TracedRounding) -> Ideal | None:
        """Return the codes of the reference that correspond to a rounding of the candidate.

        Codes that the certificate pairs are equal for later segments, even without a bound.
        """
        for segment in (s for s in self._exits if s.ends[1] is value):
            for own in self._one.roundings.get(segment.ends[0], ()):
                keys = set(own.function.key), set(rounding.function.key)
                if keys[0] == keys[1] or UNKNOWN.key in keys[0] | keys[1]:
                    self._compared.setdefault(segment.ends, []).append((own, rounding))
                    return own.codes.plus(Ideal.fixed(np.asarray(float(segment.code_shift))))
        return None

    def _equal_codes(self, segment: _Segment) -> Iterator[Pair]:
        """Yield values that are equal if the codes at the end of a segment are."""
        with contextlib.suppress(*FAILURES):
            if segment.ends not in self._compared and self._is_same(segment.ends):
                yield segment.ends
        for one, other in self._compared.get(segment.ends, ()):
            is_moved = one.is_moved or other.is_moved
            if not (is_moved or segment.code_shift) and agree(*segment.nodes, self._sides):
                yield segment.ends
            held = self._one.holding(one.codes), self._other.holding(one.codes)
            for pair in itertools.product(*held):
                with contextlib.suppress(*FAILURES):
                    if self._is_same(pair):
                        yield pair

    @property
    def is_open(self) -> bool:
        """Whether the models have open sizes."""
        return bool(self._one.primes or self._other.primes)

    def problem(self) -> str | None:
        """Return why regions do not cover the models; None if they do."""
        conflicts = (conflict(*pair) for pair in self._paired.inputs)
        ended = {s.ends for s in self._segments.values() if s.is_output}
        missing = [a for a, b in self._paired.outputs if (a, b) not in ended]
        uncovered = f"no region ends at output {missing[0].name!r}" if missing else None
        return next(filter(None, conflicts), uncovered)

    def check(self, region: RegionVerdict) -> PartFinding:
        """Return the finding about a region."""
        if region.method is not Method.BOUND:  # equal where its entries are, which no segment shows
            return not_decided(region)
        if region.verdict not in (ProofVerdict.PROVED, ProofVerdict.BOUNDED):
            return not_decided(region)
        try:
            need(id(region) in self._segments, "there is no value of its name, or several")
            self._check(self._segments[id(region)])
        except EquivalenceError as error:
            return PartFinding(Status.REFUTED, str(error))
        except FAILURES as error:
            return PartFinding(Status.UNCHECKED, str(error))
        return PartFinding(Status.CHECKED)

    def _check(self, segment: _Segment) -> None:
        region = segment.region
        nodes = tuple(() if node is None else (node_name(node),) for node in segment.nodes)
        is_named = nodes == (region.reference_nodes, region.candidate_nodes)
        confirm(is_named, "it does not end at the named nodes")
        entries = self._entries(segment)
        names = ", ".join(sorted(f"{a} -> {b}" for a, b in entries)) or "none"
        are_all = set(region.entries) == entries and len(region.entries) == len(entries)
        confirm(are_all, f"its entries are others: {names}")
        is_proved = region.verdict is ProofVerdict.PROVED
        need(is_proved or not region.counted, "its codes were compared for each sum")
        is_bare = region == with_defaults(region, _STATED | {"counted"})
        confirm(is_bare, "it states figures that a bound does not have")
        confirm(not (is_proved and segment.code_shift), "code shift: equal codes have none")
        if is_proved:
            self._expect_one_shape(segment)
            is_one = self._is_congruent(segment) and region.exactness is Exactness.VALUES
            need(is_one, "the checker does not find its two sides to be one function")
        elif region.bound is None:
            raise EquivalenceError("it states no bound")
        else:
            with np.errstate(all="ignore"):
                self._compare(segment, region.bound)
            need(region.bound.seen is None, "the checker runs no codes that show a difference")

    def _expect_one_shape(self, segment: _Segment, pair: _Pair | None = None) -> None:
        """Check that both ends have one shape, or the codes that one model moves."""
        shapes = list[Shape | None]()
        for end, (_, trace), rounding in zip(
            segment.ends, self._runs, pair or (None, None), strict=True
        ):
            sizes: Sizes | None = trace.shape(end)
            if rounding is not None and rounding.is_moved:
                sizes = None if rounding.movement is None else rounding.movement.after.sizes
            texts = () if sizes is None else (n if isinstance(n, int) else str(n) for n in sizes)
            shapes.append(None if sizes is None else tuple(texts))
        merged(*shapes)

    def _entries(self, segment: _Segment) -> set[tuple[str, str]]:
        """Return the names of the pairs of codes and inputs that a segment starts from."""
        starts = [self._starts(segment, side) for side in (0, 1)]
        pairs = ((a, b) for a, b in self._starting if a in starts[0] and b in starts[1])
        return {(str(a.name), str(b.name)) for a, b in pairs}

    def _starts(self, segment: _Segment, side: int) -> set[ir.Value]:
        exits = self._ends[side]

        def operands(value: ir.Value) -> list[ir.Value]:
            node = value.producer()
            return [] if node is None else self._sides[side].sources(node)

        end = segment.ends[side]
        starts = [end] if segment.is_output or end.producer() is None else operands(end)
        seen = reached(starts, lambda value: [] if value in exits else operands(value))
        return {value for value in seen if value in exits or value.producer() is None}

    def _is_congruent(self, segment: _Segment) -> bool:
        if segment.is_output:
            return self._equal.are_equal(*segment.ends) or self._is_same(segment.ends)
        one, other = segment.nodes
        if one is None or other is None or not agree(one, other, self._sides):
            return False
        return self._has_one_limit(segment.ends) and self._equal.are_equal(
            one.inputs[0], other.inputs[0]
        )

    def _has_one_limit(self, values: Pair) -> bool:
        """Return whether Clips behind two values leave the same codes."""
        return self._one.limits_behind(values[0]) == self._other.limits_behind(values[1])

    def _is_same(self, ends: Pair) -> bool:
        """Return whether two values are the same function of codes, without rounding."""
        ours, theirs = self._one.of(ends[0]), self._other.of(ends[1])
        is_exact = ends[0].dtype is ends[1].dtype and not (ours.error.any() or theirs.error.any())
        is_one = is_exact and ours.meant.identity == theirs.meant.identity
        return is_one and self._has_one_limit(ends)

    def _compare(self, segment: _Segment, bound: Bound) -> None:
        """Check that the figures of a bound are at least the recomputed ones."""
        asked = self._certificate.bounding
        is_asked = (bound.against, bound.order) == (asked.against, asked.order)
        confirm(is_asked, "it answers another question than the certificate")
        is_shifted = segment.is_output and segment.code_shift
        confirm(not is_shifted, "code shift: an output is not a code of a quantizer")
        figures = self._figures(segment, bound)
        problem = problem_of(figures, bound)
        weak = self._one.weak.get(segment.ends[0]) or self._other.weak.get(segment.ends[1])
        readers = (each for end in segment.ends for each in end.consumers())
        decoded = (each.outputs[0] for each in readers if each.op_type == "DequantizeLinear")
        if any(u.op_type in ("Clip", "Relu") for value in decoded for u in value.consumers()):
            weak = "a limit of its decoded codes may leave fewer of them"
        if problem and not problem_of(self._figures(segment, bound, widest=True), bound):
            weak = "its steps are of the widest range of all channels"
        if not problem_of(figures, bound, _NOISE):
            weak = "the rounding of float64 alone may be so large"
        need(not (problem and weak), f"{problem}; {weak}")
        confirm(not problem, problem)

    def _figures(self, segment: _Segment, bound: Bound, *, widest: bool = False) -> list[Figures]:
        """Return the figures of a bound, of each pair of roundings at its end."""
        (x, y), pairs = segment.ends, self._compared.get(segment.ends, [])
        if segment.is_output:
            ours, is_whole = self._one.of(x), any(map(_is_whole, segment.ends))
            ends = ours.low, ours.high
            if widest:
                ends = np.min(ends[0], keepdims=True), np.max(ends[1], keepdims=True)
            self._expect_one_shape(segment)
            return [of_output(ours, self._other.of(y), bound, ends, is_whole)]
        self._one.expect_rounding(x)
        self._other.expect_rounding(y)
        need(pairs, "the models compute it by different operators")
        for pair in pairs:
            self._expect_one_shape(segment, pair)
        return [of_roundings(*pair, bound) for pair in pairs]


def _is_whole(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _input(value: ir.Value, limits: tuple[float, float] | None) -> Executed:
    low, high = range_of_codes(value) if _is_whole(value) else (-ENDLESS, ENDLESS)
    if limits is not None:
        low, high = map(np.asarray, map(float, limits))
    basis = Basis(("input", str(value.name)), low, high)
    return Executed(Ideal.of(basis), low, high, unit=np.ones(()) if _is_whole(value) else None)

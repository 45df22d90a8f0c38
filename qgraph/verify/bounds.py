"""Check the bounded regions of a certificate: recompute what bounds state, without any search.

The certificate says which roundings correspond. The reference is evaluated on codes, then the
candidate on the same codes, and the ends of each region are compared. If one model moves elements
before it rounds them, and the other one behind, the moved codes are the end of the region.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from qgraph.bound import STEPS_OF_OUTPUT, Against, Bound
from qgraph.certificate import Certificate, RegionVerdict
from qgraph.errors import EquivalenceError, UnsupportedError
from qgraph.exactness import Exactness, PartFinding, ProofVerdict, Status
from qgraph.graph.interface import Interface, Pair, conflict
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import reached
from qgraph.numerics import Float64
from qgraph.ops.approximation import largest_of, product
from qgraph.text import amount
from qgraph.verify.distances import distance, distance_within, is_same
from qgraph.verify.ideals import Basis, Executed, Ideal
from qgraph.verify.outputs import EqualValues
from qgraph.verify.reading import Reading, agree
from qgraph.verify.regions import Equality, with_defaults
from qgraph.verify.rules import ROUNDINGS, RULES
from qgraph.verify.seen import are_decoded_alike, check_seen
from qgraph.verify.shapes import code_range
from qgraph.verify.traces import FAILURES, Trace, TracedRounding

_MOST_STEPS = 2.0**31
_NOISE = 2.0**-24
"""Distance in steps that the rounding of float64 may account for."""

_STATED = frozenset(
    {"reference_nodes", "candidate_nodes", "reference_value", "candidate_value", "entries"}
    | {"verdict", "exactness", "method", "bound", "reason", "boxes", "cases"}
)
"""Fields of a region that has a bound; the others have their defaults."""


class _Figures(NamedTuple):
    """Figures of a bound: errors and shift by channel, in steps; steps between codes."""

    reference_error: Float64
    candidate_error: Float64
    ideal_shift: Float64
    max_steps: float
    levels: float
    absolute: float | None = None
    ulps: float | None = None


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
        """What is added to the codes of the reference to get those of the candidate."""
        return 0 if self.region.bound is None else self.region.bound.code_shift


class BoundCheck:
    """Checks the regions of a certificate with bounds.

    Args:
        certificate: the certificate.
        sides: the models.
        paired: their inputs and outputs.
        limits_decoded: whether a Relu or Clip behind decoded codes limits the codes.
    """

    def __init__(
        self,
        certificate: Certificate,
        sides: tuple[Reading, Reading],
        paired: Interface,
        *,
        limits_decoded: bool = False,
    ) -> None:
        limited = {"limits_decoded": limits_decoded}
        self._certificate, self._sides, self._paired = certificate, sides, paired
        self._segments: dict[int, _Segment] = {}
        self._compared: dict[Pair, list[tuple[TracedRounding, TracedRounding]]] = {}
        self._unbounded: set[ir.Value] = set()
        for region in certificate.regions:
            self._enter(region)
        self._exits = [s for s in self._segments.values() if not s.is_output]
        bounding = certificate.bounding
        order = bounding.chunk, bounding.accumulate
        inputs = {a: _input(a, bounding.ranges.get(str(a.name))) for a, _ in paired.inputs}
        self._one = Trace(sides[0], inputs, lambda *_: None, order, RULES, self._assumed, **limited)
        inputs = {b: inputs[a] for a, b in paired.inputs}
        self._other = Trace(
            sides[1], inputs, self._settled, order, RULES, self._equal_to, **limited
        )
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
        """Return the codes of a rounding of the candidate, as those of the reference."""
        for segment in self._exits:
            if segment.ends[1] is not value:
                continue
            for own in self._one.roundings.get(segment.ends[0], ()):
                if set(own.function.key) == set(rounding.function.key):
                    self._compared.setdefault(segment.ends, []).append((own, rounding))
                    return own.codes.plus(Ideal.fixed(np.asarray(float(segment.code_shift))))
        return None

    def _assumed(self, trace: Trace, value: ir.Value, is_known: bool) -> Executed | None:
        """Return the codes at the end of a segment of the reference that has no bound here."""
        if is_known or not any(s.ends[0] is value and _has_codes(s) for s in self._exits):
            return None
        trace.weak[value] = "all codes of a type are taken to occur"
        self._unbounded.add(value)
        return _input(value, None)

    def _equal_to(self, trace: Trace, value: ir.Value, is_known: bool) -> Executed | None:
        """Return the codes of a segment of the reference as those of the candidate."""
        for segment in self._exits:
            source = segment.ends[0]
            if segment.ends[1] is not value or not _has_codes(segment):
                continue
            if source in self._unbounded or not is_known:
                with contextlib.suppress(*FAILURES):
                    codes = self._one.of(source)
                    trace.weak[value] = self._one.weak.get(source, "its codes are assumed")
                    return codes
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
                    if self._is_same(pair) if is_moved else self._is_one(segment, pair, one.codes):
                        yield pair

    def _is_one(self, segment: _Segment, values: Pair, codes: Ideal) -> bool:
        """Return whether two values are equal for each of the codes of a segment."""
        limits = self._one.limits_behind(values[0]), self._other.limits_behind(values[1])
        if limits[0] != limits[1] or self._one.limits_decoded:
            return False  # codes are those that limits behind leave
        same = self._is_same(values)
        return same or are_decoded_alike(codes, segment.ends, values, self._runs)

    def problem(self) -> str | None:
        """Return why regions do not cover the models; None if they do."""
        conflicts = (conflict(*pair) for pair in self._paired.inputs)
        ended = {s.ends for s in self._segments.values() if s.is_output}
        missing = [a for a, b in self._paired.outputs if (a, b) not in ended]
        uncovered = f"no region ends at output {missing[0].name!r}" if missing else None
        return next(filter(None, conflicts), uncovered)

    def check(self, region: RegionVerdict) -> PartFinding:
        """Return the finding about a region that was decided by a bound."""
        try:
            if id(region) not in self._segments:
                raise UnsupportedError("there is no value of its name, or several")
            self._check(self._segments[id(region)])
        except EquivalenceError as error:
            return PartFinding(Status.REFUTED, str(error))
        except FAILURES as error:
            return PartFinding(Status.UNCHECKED, str(error))
        return PartFinding(Status.CHECKED)

    def _check(self, segment: _Segment) -> None:
        region = segment.region
        nodes = tuple(() if node is None else (node_name(node),) for node in segment.nodes)
        if nodes != (region.reference_nodes, region.candidate_nodes):
            raise EquivalenceError("it does not end at the named nodes")
        entries = self._entries(segment)
        if set(region.entries) != entries or len(region.entries) != len(entries):
            names = ", ".join(sorted(f"{a} -> {b}" for a, b in entries)) or "none"
            raise EquivalenceError(f"its entries are others: {names}")
        if region.counted and region.verdict is not ProofVerdict.PROVED:
            raise UnsupportedError("its codes were compared for each sum")
        if region != with_defaults(region, _STATED | {"counted"}):
            raise EquivalenceError("it states figures that a bound does not have")
        if region.verdict is ProofVerdict.BOUNDED:
            with np.errstate(all="ignore"):
                self._compare(segment)
                self._see(segment)
        elif not self._is_congruent(segment) or region.exactness is not Exactness.VALUES:
            raise UnsupportedError("the checker does not find its two sides to be one function")

    def _entries(self, segment: _Segment) -> set[tuple[str, str]]:
        """Return the names of the pairs of codes and inputs that a segment starts from."""
        starts = [self._starts(segment, side) for side in (0, 1)]
        pairs = [s.ends for s in self._exits] + list(self._paired.inputs)
        return {(str(a.name), str(b.name)) for a, b in pairs if a in starts[0] and b in starts[1]}

    def _starts(self, segment: _Segment, side: int) -> set[ir.Value]:
        exits = {s.ends[side] for s in self._exits}

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
        x, y = segment.ends
        if self._one.limits_behind(x) != self._other.limits_behind(y):
            return False  # codes are those that Clips behind leave
        return self._equal.are_equal(one.inputs[0], other.inputs[0])

    def _is_same(self, ends: Pair) -> bool:
        """Return whether two values are one function of codes, and nothing is rounded."""
        ours, theirs = self._one.of(ends[0]), self._other.of(ends[1])
        is_exact = ends[0].dtype is ends[1].dtype and not (ours.error.any() or theirs.error.any())
        return is_exact and is_same(ours.meant, theirs.meant)

    def _see(self, segment: _Segment) -> None:
        """Check what was seen of a segment."""
        if segment.region.bound is None or segment.region.bound.seen is None:
            return
        pairs = [s.ends for s in self._exits] + list(self._paired.inputs)
        named = {(str(a.name), str(b.name)): (a, b) for a, b in pairs}
        starts = {name: named[name, other] for name, other in segment.region.entries}
        compared = self._compared.get(segment.ends, [None])
        check_seen(segment.region.bound.seen, segment.ends, starts, self._runs, compared[0])

    def _compare(self, segment: _Segment) -> None:
        """Check that the figures of a bound are at least the recomputed ones."""
        bound = segment.region.bound
        if bound is None:
            raise EquivalenceError("it states no bound")
        (one, other), (x, y) = (self._one, self._other), segment.ends
        is_whole = any(map(_is_whole, segment.ends))
        if segment.is_output:
            ours = one.of(x)
            figures = [_of_output(ours, other.of(y), bound, ours.high - ours.low, is_whole)]
        else:
            one.expect_rounding(x)
            other.expect_rounding(y)
            pairs = self._compared.get(segment.ends, [])
            figures = [_of_roundings(*pair, bound) for pair in pairs]
        if not figures:
            raise UnsupportedError("the models compute it by different operators")
        asked = self._certificate.bounding
        if (bound.against, bound.order) != (asked.against, asked.order):
            raise EquivalenceError("it answers another question than the certificate")
        problem = next(filter(None, (_too_small(each, bound) for each in figures)), None)
        weak = one.weak.get(x) or other.weak.get(y)
        if problem is not None and segment.is_output:
            widest = np.asarray(np.max(ours.high - ours.low))
            if _too_small(_of_output(ours, other.of(y), bound, widest, is_whole), bound) is None:
                weak = "its steps are of the widest range of all channels"
        if problem is not None and not any(_too_small(each, bound, _NOISE) for each in figures):
            weak = "the rounding of float64 alone may be so large"
        if problem is not None and weak is not None:
            raise UnsupportedError(f"{problem}; {weak}")
        if problem is not None:
            raise EquivalenceError(problem)


def _is_whole(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _has_codes(segment: _Segment) -> bool:
    """Return whether a segment ends with the same numbers in both models, which nothing limits."""
    one, other = segment.ends
    is_free = not any(u.op_type == "Clip" for value in segment.ends for u in value.consumers())
    return _is_whole(one) and is_free and one.dtype is other.dtype and not segment.code_shift


def _input(value: ir.Value, limits: tuple[float, float] | None) -> Executed:
    ends: tuple[float, float] = -np.inf, np.inf
    unit = None
    if value.dtype is not None and _is_whole(value):
        ends, unit = code_range(value.dtype), np.ones(())
    low, high = (np.asarray(float(end)) for end in limits or ends)
    basis = Basis(("input", str(value.name)), low, high)
    return Executed(Ideal.of(basis), low, high, unit=unit)


def _of_roundings(one: TracedRounding, other: TracedRounding, bound: Bound) -> _Figures:
    """Return the bound of two roundings, whose codes differ by a constant shift."""
    if one.kind != other.kind:
        raise UnsupportedError("the models round in different ways")
    delta = np.asarray(float(bound.code_shift))
    # Beyond these values both codes are clipped, each to its own limit.
    window = (
        np.minimum(one.ends[0], other.ends[0] - delta) - 1,
        np.maximum(one.ends[1], other.ends[1] - delta) + 1,
    )
    moved = window[0] + delta, window[1] + delta
    shift = distance_within(one.function.plus(Ideal.fixed(delta)), other.function, moved)
    ours, theirs = _error(one.before, window), _error(other.before, moved)
    apart = [
        np.abs(np.clip(end, *one.clips) + delta - np.clip(end + delta, *other.clips))
        for end in one.reach
    ]
    extra = np.nan_to_num(np.maximum(*apart), nan=0.0, posinf=np.inf)
    far = _counted(bound, ours) + theirs + shift
    steps = np.max(np.where(far > 0, np.floor(far) + 1, 0.0) + extra)
    levels = float(np.max(one.ends[1] - one.ends[0]))
    # Limits of codes that differ shift what both models mean.
    return _Figures(ours, theirs, shift + extra, float(min(steps, _MOST_STEPS)), levels)


def _error(before: Executed, window: tuple[Float64, Float64]) -> Float64:
    reach = np.minimum(largest_of(*window), before.largest)
    return before.absolute + product(before.relative, reach)


def _counted(bound: Bound, ours: Float64) -> Float64:
    """Return the error of the reference, and 0 if the candidate is compared with what it means."""
    return ours if bound.against == Against.EXECUTION else np.zeros_like(ours)


def _of_output(
    ours: Executed, theirs: Executed, bound: Bound, span: Float64, is_whole: bool
) -> _Figures:
    parts = ours.error, theirs.error, distance(ours.meant, theirs.meant)
    unit, levels = np.ones(()), float(np.max(span))
    if not is_whole:
        unit, levels = np.where(span > 0, span, np.inf) / STEPS_OF_OUTPUT, float(STEPS_OF_OUTPUT)
    far = _counted(bound, parts[0]) + parts[1] + parts[2]
    ulps = float(np.max(far / np.spacing(ours.largest.astype(np.float32))))
    steps = min((np.floor if is_whole else np.ceil)(np.max(far / unit)), _MOST_STEPS)
    one, other, shift = (part / unit for part in parts)
    return _Figures(one, other, shift, float(steps), levels, float(np.max(far)), ulps)


def _too_small(figures: _Figures, bound: Bound, slack: float = 0.0) -> str | None:
    """Return which figure of a bound is smaller than the recomputed one; None if none is."""
    ours, theirs, shift = figures[:3]
    least: dict[str, float | None] = {
        "deviation_steps": float(np.max(_counted(bound, ours) + theirs + shift)),
        "tie_distance_steps": float(np.max(np.maximum(_counted(bound, ours), theirs + shift))),
        "reference_error": float(np.max(ours)),
        "candidate_error": float(np.max(theirs)),
        "ideal_shift": float(np.max(shift)),
        **{name: getattr(figures, name) for name in ("max_steps", "absolute", "ulps")},
    }
    for name, number in least.items():
        stated = getattr(bound, name)
        is_enough = None not in (number, stated) and stated + slack >= number
        if not (is_enough or number is stated is None):
            texts = amount(number, 12), amount(stated, 12)
            return f"{name.replace('_', ' ')}: {texts[0]} was found, not {texts[1]}"
    if not bound.levels <= figures.levels:
        return f"levels: {figures.levels:g} were found, not {bound.levels:g}"
    if not bound.channels:
        return None
    rows = np.stack([np.ravel(part) for part in np.broadcast_arrays(ours, theirs, shift)], axis=1)
    listed = np.asarray(bound.channels, np.float64)
    if len(rows) > 1 and len(listed) not in (1, len(rows)):
        if not len(listed) % len(rows) or not len(rows) % len(listed):
            raise UnsupportedError("its channels may be those of other axes")
        return f"{len(rows)} channels were found, not {len(listed)}"
    return None if (listed + slack >= rows).all() else "an error of a channel is too small"

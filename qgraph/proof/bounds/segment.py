"""The bound of one segment: the largest difference of the codes at its end.

The codes are those of two roundings, one of each model. The steps of a minifloat double at each
power of two. An error that is small relative to a number is small relative to its step. So errors
are computed for each range between two powers of two, and divided by the smallest step that an
interval of that length can touch.

Segments also begin at results of the reference without a bound, such as that of an LSTM. If the
candidate computes an equal result, both models get one atom for it. If not, the segments that
follow have no bound either, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import ZERO, error_up_to, largest_of, zero
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.distances import distance
from qgraph.proof.bounds.evaluate import entered
from qgraph.proof.bounds.executed import Counted, Finished, Pick, compare, program_of
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.roundings import RoundedData, limited_codes
from qgraph.reasons import OVERFLOW, ExplainedReason
from qgraph.records import dataclass, field, replace


@dataclass(frozen=True, eq=False)
class _Result:
    """A result of the reference without a bound, and the reason.

    ``sources`` are numbers of the atoms without arguments that it is computed from.
    """

    value: ir.Value
    quantity: Quantity
    sources: frozenset[int]
    reason: ExplainedReason


class UnboundedResults:
    """The results of the reference without a bound.

    Attributes:
        assumed: decoded codes that the candidate computes without a bound and that are only taken
            as equal, by the serial numbers of the codes.
    """

    def __init__(self, atoms: Atoms) -> None:
        self.assumed: dict[int, ir.Value] = {}
        self._atoms = atoms
        self._results: dict[int, _Result] = {}
        self._named: dict[str | None, _Result] = {}

    def add(self, value: ir.Value, sources: frozenset[int], reason: ExplainedReason) -> Quantity:
        """Register a result and return its quantity; see :class:`_Result`."""
        quantity = entered(self._atoms, value, ("opaque", str(value.name)))
        ((_, atom),) = quantity.meant.terms
        result = _Result(value, quantity, self._behind(sources), reason)
        self._results[atom.serial] = self._named[value.name] = result
        return quantity

    def equal_to(self, value: ir.Value, equal: Callable[[str, str], bool]) -> Quantity | None:
        """Return the quantity of a result that equals a value of the candidate, by their names.

        One of the same name is tried first: others are traced back in vain through long chains.
        """
        own = self._named.get(value.name)
        for result in chain([] if own is None else [own], self._results.values()):
            if _operator(result.value) == _operator(value) and equal(
                str(result.value.name), str(value.name)
            ):
                return result.quantity
        return None

    def reason(self, ours: Combination, theirs: Combination) -> ExplainedReason | None:
        """Return why two functions cannot be compared because of results without a bound.

        Returns None if neither depends on such results, or both depend on equal ones.
        """
        are_alike = self._behind(ours.leaves) == self._behind(theirs.leaves)
        return self.first(ours, theirs) if are_alike else None

    def first(self, ours: Combination, theirs: Combination) -> ExplainedReason | None:
        """Return why the first result has no bound from which only the reference is computed."""
        own = [self._results[n] for n in sorted(ours.leaves - theirs.leaves) if n in self._results]
        return own[0].reason if own else None

    def start(self, function: Combination) -> ir.Value | None:
        """Return a result of the reference at which a function begins; None if there is none."""
        assumed = sorted(function.leaves & self.assumed.keys())
        if assumed:
            return self.assumed[assumed[0]]
        starts = sorted(function.leaves & self._results.keys())
        return self._results[starts[0]].value if starts else None

    def _behind(self, leaves: frozenset[int]) -> frozenset[int]:
        """Replace the serial numbers of unbounded results by those of their sources."""
        parts = (self._results[n].sources if n in self._results else {n} for n in leaves)
        return frozenset[int]().union(*parts)


def overflow_of(*functions: Combination) -> ExplainedReason | None:
    """Return which sum wraps around, if any of these functions is a multiple of one."""
    atoms = (atom for function in functions for _, atom in function.terms)
    return next((OVERFLOW(str(a.attributes)) for a in atoms if a.kind == "wrapped"), None)


def _operator(value: ir.Value) -> str:
    node = value.producer()
    return "" if node is None else node.op_type


Window = tuple[Float64, Float64]

_JUMPS = {"Up": 2}
"""Number of thresholds in an interval shorter than a step, by kind, if more than one."""

_AROUND = {"Up": 0.5, "Down": 0.5}
"""By kind, largest distance of a number from one that is rounded to nearest to the same code."""


@dataclass(frozen=True, eq=False)
class Segment:
    """The bound of one segment. Arrays are by channel, in steps or, at an output, in real units.

    Attributes:
        reference, candidate: nodes that end it; None where there is no counterpart.
        is_output: whether it ends at an output without a quantizer.
        reference_error, candidate_error: largest distance of executed and ideal values.
        shift: largest distance of the ideal values of both models.
        extra: difference of the limits of the codes.
        span: number of steps between the first and the last code; at an output, its range.
        largest: the largest magnitude of the reference at an output.
        kind: how the values are rounded.
        reason: why there is no bound.
        roundings: the compared roundings; None at an output, or without a counterpart.
        delta: code of the candidate minus corresponding code of the reference.
        counted: comparison on all whole numbers that the results depend on; None if not possible.
    """

    reference: ir.Node | None
    candidate: ir.Node | None
    values: tuple[ir.Value | None, ir.Value | None]
    is_output: bool = False
    reference_error: Float64 = field(default_factory=zero)
    candidate_error: Float64 = field(default_factory=zero)
    shift: Float64 = field(default_factory=zero)
    extra: Float64 = field(default_factory=zero)
    span: Float64 = field(default_factory=zero)
    largest: Float64 = field(default_factory=zero)
    kind: str = "Round"
    reason: ExplainedReason | None = None
    roundings: tuple[RoundedData, RoundedData] | None = None
    delta: Float64 = field(default_factory=zero)
    counted: Counted | None = None

    @property
    def is_equal(self) -> bool:
        """Whether the ends are equal for equal starts."""
        if self.counted is not None:
            return not self.counted.differing
        return not (self.deviation.any() or self.extra.any())

    @property
    def is_integer(self) -> bool:
        """Whether it ends with whole numbers, whose step is 1."""
        return any(
            v is not None and v.dtype is not None and v.dtype.is_integer() for v in self.values
        )

    @property
    def deviation(self) -> Float64:
        """Largest distance of both executed results, before rounding."""
        return self.reference_error + self.candidate_error + self.shift

    @property
    def from_ideal(self) -> Float64:
        """Largest distance of the executed candidate from the ideal values of the reference."""
        return self.candidate_error + self.shift

    @property
    def tie_distance(self) -> Float64:
        """Codes differ only if the reference's ideal value is at most this far from a threshold."""
        return np.maximum(self.reference_error, self.from_ideal)

    def steps(self, *, ideal: bool = False) -> int:
        """Return the largest difference of the codes, in steps."""
        if self.counted is not None and not self.is_output and not ideal:
            return int(self.counted.largest)
        far = self.from_ideal if ideal else self.deviation
        jumps = np.floor(far) + _JUMPS.get(self.kind, 1)
        if self.kind == "Sign":
            jumps = np.ones(())
        # Codes n steps apart, with limits m steps apart, differ by at most max(n, m) steps.
        counts = np.maximum(np.where(far > 0, jumps, 0.0), self.extra)
        return int(min(np.max(counts), 2.0**31))


def compared(
    one: RoundedData, other: RoundedData, forced: Float64 | None
) -> list[tuple[Segment, Float64]]:
    """Return the bound of two roundings for each possible offset between their codes."""
    kinds = one.event.kind, other.event.kind
    mantissas = one.event.mantissa, other.event.mantissa
    is_like = kinds[0] == kinds[1] or not ("Sign" in kinds or mantissas[0] is not None)
    if not (is_like and mantissas[0] == mantissas[1] and _fit(one, other)):
        return []
    if forced is not None or one.event.mantissa is not None:
        delta = ZERO if forced is None else forced
        return [(_bound(one, other, delta), delta)]
    # Only limits tell that codes are numbered otherwise: ranges move with a bias, too.
    (low, high), (bottom, top) = one.clips, other.clips
    shifts = {0.0, float(bottom.min() - low.min()), float(top.max() - high.max())}
    deltas = sorted((shift for shift in shifts if np.isfinite(shift)), key=abs)
    return [(_bound(one, other, delta), delta) for delta in map(np.asarray, deltas)]


def _fit(one: RoundedData, other: RoundedData) -> bool:
    """Return whether the data of two roundings may have equal shapes."""
    functions = one.function, other.function
    shapes = [c.shape for function in functions for c, _ in function.terms]
    shapes += [end.shape for data in (one, other) for end in (*data.ends, data.function.offset)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _bound(one: RoundedData, other: RoundedData, delta: Float64) -> Segment:
    event, kinds = one.event, (one.event.kind, other.event.kind)
    # Beyond these values both codes are clipped, each to its own limit.
    bottom = np.minimum(one.ends[0], other.ends[0] - delta)
    top = np.maximum(one.ends[1], other.ends[1] - delta)
    window = bottom - event.spacing(bottom), top + event.spacing(top)
    shifted = one.function.plus(Combination.constant(delta))
    moved_window = window[0] + delta, window[1] + delta
    ours, theirs, shift = (
        error_within(event.before, window),
        error_within(other.event.before, moved_window),
        distance(shifted, other.function, moved_window),
    )
    if event.mantissa is not None:
        ours, theirs, shift = apart_in_steps(one, other, window)
    if kinds[0] != kinds[1]:
        # ties, at least, are rounded to other codes
        shift = np.maximum(shift, 2.0**-40) + sum(_AROUND.get(kind, 0.0) for kind in kinds)
    shift = np.where(np.isnan(shift), np.inf, shift)
    # Both codes lie within these ends, so their limits move them apart most at one of them.
    reach = (
        np.minimum(one.reach[0], other.reach[0] - delta),
        np.maximum(one.reach[1], other.reach[1] - delta),
    )
    extra, widest = (
        np.maximum(*(_clipped_apart(event.place, end, ends, delta) for end in reach))
        for ends in ((one.clips, other.clips), (one.executed, other.executed))
    )
    off = one.uncertainty, other.uncertainty
    extra = np.minimum(extra + sum(off), widest + max(off))
    nodes = event.node, other.event.node
    return Segment(
        *nodes,
        (nodes[0].outputs[0], nodes[1].outputs[0]),
        reference_error=ours,
        candidate_error=theirs,
        shift=shift,
        extra=extra,
        span=event.place(one.ends[1]) - event.place(one.ends[0]),
        kind=event.kind if kinds[0] == kinds[1] else "",
        roundings=(one, other),
        delta=delta,
    )


def counted_pair(one: RoundedData, other: RoundedData, delta: float) -> Counted | None:
    """Return the differing codes, if both are computed from the same few whole numbers."""
    models = []
    for data, shift in ((one, 0.0), (other, -delta)):
        program = program_of(data.event.before)
        if program is None:
            return None
        models.append(Finished(program, _places(data, shift), (data.low, data.high)))
    return compare(*models)


def _places(data: RoundedData, shift: float) -> Callable[[Array, Pick], Array]:
    codes = limited_codes(data, shift)
    return lambda values, pick: data.event.place(codes(values, pick))


def _clipped_apart(
    place: Callable[[Float64], Float64],
    code: Float64,
    ends: tuple[Window, Window],
    delta: Float64,
) -> Float64:
    ours, theirs = np.clip(code, *ends[0]) + delta, np.clip(code + delta, *ends[1])
    apart = np.abs(place(ours) - place(theirs))
    return np.where(np.isnan(apart), 0.0, apart)


class Apart(NamedTuple):
    """Largest errors of two models, and the largest distance of their ideal values, in steps."""

    reference_error: Float64
    candidate_error: Float64
    shift: Float64


def error_within(before: Quantity, window: Window) -> Float64:
    """Return the largest error of data whose ideal values lie in a window."""
    return error_up_to(before, largest_of(*window))


def apart_in_steps(one: RoundedData, other: RoundedData, window: Window) -> Apart:
    """Return the distance of two roundings to one minifloat, before rounding, in smallest steps."""
    mantissa = one.event.mantissa or 0
    reach = np.maximum(*map(np.abs, window))
    binades = _ranges(mantissa, float(np.max(reach)))
    parts = zip(*(_apart(one, other, window, ends) for ends in binades), strict=True)
    return Apart(*(np.max(np.broadcast_arrays(*part), axis=0) for part in parts))


def _apart(
    one: RoundedData, other: RoundedData, window: Window, ends: tuple[float, float]
) -> Apart:
    bottom, top = ends
    inside = np.maximum(window[0], -top), np.minimum(window[1], top)
    shift = distance(one.function, other.function, inside)
    moved = inside[0] - shift, inside[1] + shift
    parts = error_within(one.event.before, inside), error_within(other.event.before, moved), shift
    least = np.maximum(bottom - sum(parts), 0.0)
    return Apart(*(np.asarray(part / one.event.spacing(least)) for part in parts))


def _ranges(mantissa: int, last: float) -> Iterator[tuple[float, float]]:
    """Yield the ranges of magnitudes that have one step each, in smallest steps."""
    bottom, top = 0.0, 2.0 ** (mantissa + 1)
    yield bottom, top
    while top < last:
        bottom, top = top, 2 * top
        yield bottom, top


def size_of(segment: Segment, *, ideal: bool = False) -> tuple[int, float]:
    """Return the largest difference of the codes of a segment, and the largest distance."""
    far = segment.from_ideal if ideal else segment.deviation
    return segment.steps(ideal=ideal), float(np.max(far + segment.extra))


def one_of_each_pair(segments: list[Segment], *, ideal: bool) -> list[Segment]:
    """Return one segment for each pair of ends; several parts of codes may share a pair.

    So do the two roundings of a Trunc. ``ideal`` is as in :meth:`Segment.steps`.
    """
    known: dict[Hashable, Segment] = {}
    for segment in segments:
        first = known.get(segment.values)
        known[segment.values] = segment if first is None else _both(first, segment, ideal=ideal)
    return list(known.values())


def _both(first: Segment, second: Segment, *, ideal: bool) -> Segment:
    """Return the worst of two segments; or both as one, if they are the two halves of one."""
    worst = max(first, second, key=partial(size_of, ideal=ideal))
    if first.roundings is None or second.roundings is None:
        return worst
    codes, rounded = first.roundings[0].codes.leaves, second.roundings[1].function
    slopes = [np.max(np.abs(c)) * atom.slope for c, atom in rounded.terms if codes & atom.leaves]
    moved = sum(slopes) * first.steps(ideal=ideal)
    is_more = bool(second.steps(ideal=ideal)) or sum(slopes) > 1
    if not (moved and is_more and np.isfinite(first.deviation).all()):
        return worst
    return replace(second, shift=second.shift + moved, counted=None)

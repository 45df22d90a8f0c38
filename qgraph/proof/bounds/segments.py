"""Pair the roundings of two models, and bound how far their codes lie apart.

A segment runs from codes (or inputs) to the next rounding, or to an output. The codes that enter it
are taken to be equal in both models; each pair of roundings that was found before gives codes that
have one atom in both. So the functions before a pair of roundings are sums of the same atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.conditions import EQUAL_OPERATORS
from qgraph.graph.interface import Pair
from qgraph.numerics import Float64
from qgraph.ops.approximation import product
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.counted import Counted, compare, finished
from qgraph.proof.bounds.distances import distance
from qgraph.proof.bounds.evaluate import Evaluation, Ranges, entered
from qgraph.proof.bounds.events import Pending, Settle
from qgraph.proof.bounds.executed import program_of
from qgraph.proof.bounds.numbering import moved_by, offset_of, zeros_of
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.roundings import limited_codes, rounding_of, unchanged
from qgraph.proof.bounds.segment import RoundedData, Segment
from qgraph.reasons import DO_NOT_FIT, NOT_MATCHED, OVERFLOW, ExplainedReason, Undecidable


class Ends(Protocol):
    """Shows values of two models equal, by their names."""

    def show(self, segment: Segment) -> bool:
        """Return whether a segment has equal ends, which are taken to be equal from now on."""

    def equal(self, ours: str, theirs: str) -> bool:
        """Return whether two values are equal by what was shown."""


class Pairing:
    """Evaluates two models and pairs their roundings.

    Segments also begin with results of which nothing is known, such as those of an LSTM, where
    both models compute them from equal values.

    Args:
        reference, candidate: models with types and shapes, without functions.
        inputs, outputs: pairs of their values.
        ranges: ranges of inputs that are not quantized, by the names of the reference.
        accumulate, chunk: see :class:`Evaluation`.
        ends: makes what shows values equal; None if nothing does.

    Attributes:
        segments: one for each rounding of the candidate, and for each output.
        models, inputs, outputs: as given.
    """

    def __init__(
        self,
        reference: ir.Model,
        candidate: ir.Model,
        inputs: list[Pair],
        outputs: list[Pair],
        ranges: Ranges,
        *,
        accumulate: str | None = None,
        chunk: int | None = None,
        ends: Callable[[Pairing], Ends] | None = None,
    ) -> None:
        self.segments: list[Segment] = []
        self.models = reference, candidate
        self.inputs, self.outputs = inputs, outputs
        self._atoms = Atoms()
        self._settled: dict[Hashable, Quantity] = {}
        self._roundings: dict[int, list[RoundedData]] = {}
        self._serial = 0
        self._forced: dict[Hashable, Float64] = {}
        self._make_ends, self._shown = ends, 0
        self._opaque: dict[str, list[tuple[ir.Value, Quantity]]] = {}
        with np.errstate(all="ignore"):
            self._evaluate(
                (reference, candidate), inputs, outputs, ranges, accumulate=accumulate, chunk=chunk
            )

    def _evaluate(
        self,
        models: tuple[ir.Model, ir.Model],
        inputs: list[Pair],
        outputs: list[Pair],
        ranges: Ranges,
        **options: Any,
    ) -> None:
        names: list[Mapping[str, str]] = [
            {str(pair[side].name): str(pair[0].name) for pair in inputs} for side in (0, 1)
        ]
        options |= {"opaque": self._opaque_of_reference}
        self.reference = Evaluation(
            models[0], names[0], ranges, self._atoms, self._of_reference, **options
        )
        self.reference.run()
        ends = [self._end(self.reference, pair[0], self._of_reference) for pair in outputs]
        options |= {"opaque": self._opaque_of_candidate}
        for _ in range(_MOST_ATTEMPTS):
            self.segments, self._shown = [], 0
            self.candidate = Evaluation(
                models[1], names[1], ranges, self._atoms, self._of_candidate, **options
            )
            self._ends = None if self._make_ends is None else self._make_ends(self)
            self.candidate.run()
            if not self._renumber():
                break
        for pair, ours in zip(outputs, ends, strict=True):
            theirs = self._end(self.candidate, pair[1], self._of_candidate)
            self.segments.append(_output(pair, ours, theirs))

    def _opaque_of_reference(self, value: ir.Value) -> Quantity | None:
        if self._make_ends is None or value.shape is None:
            return None
        made = entered(self._atoms, value, ("opaque", str(value.name)))
        node = value.producer()
        self._opaque.setdefault("" if node is None else node.op_type, []).append((value, made))
        return made

    def _opaque_of_candidate(self, value: ir.Value) -> Quantity | None:
        """Return the quantity of the value of the reference that is equal to this one."""
        if self._ends is None:
            return None
        for segment in self.segments[self._shown :]:
            self._ends.show(segment)
        self._shown = len(self.segments)
        node = value.producer()
        for other, made in self._opaque.get("" if node is None else node.op_type, ()):
            if self._ends.equal(str(other.name), str(value.name)):
                self._atoms.conditions.add(EQUAL_OPERATORS)
                return made
        return None

    @property
    def conditions(self) -> set[str]:
        """What the bounds take for granted besides the order of additions."""
        return self._atoms.conditions

    def _end(self, side: Evaluation, value: ir.Value, settle: Settle) -> Quantity | ExplainedReason:
        try:
            found = side.of(value)
            return settle(found) if isinstance(found, Pending) else found
        except Undecidable as error:
            return error.reason

    def are_equal(self, ours: str, theirs: str) -> bool:
        """Return whether values of both models are equal if the codes of all roundings are."""
        programs = []
        for name, side in ((ours, self.reference), (theirs, self.candidate)):
            found = side.values.get(side.named[name]) if name in side.named else None
            if isinstance(found, Pending):
                codes = self._settled.get(_key(found))
                found = None if codes is None else _shifted(codes, found.offset)
            programs.append(None if found is None else program_of(found))
        if programs[0] is None or programs[1] is None:
            return False
        counted = compare(finished(programs[0]), finished(programs[1]), has_steps=False)
        return counted is not None and not counted.differing

    def _of_reference(self, codes: Pending) -> Quantity:
        key = _key(codes)
        if key not in self._settled:
            found = rounding_of(codes)
            self._settled[key] = unchanged(found) or self._fresh(found)
        return _shifted(self._settled[key], codes.offset)

    def _renumber(self) -> bool:
        """Force the numbering of codes that are decoded otherwise; return whether any are.

        Codes that still are decoded otherwise differ by so many steps.
        """
        sides = self.reference, self.candidate
        ours, theirs = map(zeros_of, sides)
        is_moved = False
        for place, segment in enumerate(self.segments):
            if segment.roundings is None:
                continue
            ((_, atom),) = segment.roundings[0].codes.terms
            if atom not in ours or atom not in theirs:
                continue
            nodes = segment.reference, segment.candidate
            offsets = offset_of(sides[0], nodes[0]), offset_of(sides[1], nodes[1])
            by = moved_by(segment.delta, offsets, (ours[atom], theirs[atom]))
            if by:
                self._forced[_place(segment.roundings[1])] = np.asarray(segment.delta + by)
                extra = segment.extra + abs(by)
                self.segments[place] = replace(segment, extra=extra, counted=None)
                is_moved = True
        return is_moved

    def _fresh(self, found: RoundedData) -> Quantity:
        self._serial += 1
        low, high = found.ends
        atom = self._atoms.make("codes", self._serial, (), (low, high))
        made = replace(found, codes=Combination.of(atom))
        self._roundings.setdefault(found.function.form, []).append(made)
        return Quantity(made.codes, low, high, unit=np.ones(()))

    def _of_candidate(self, codes: Pending) -> Quantity:
        key = _key(codes)
        found = rounding_of(codes)
        same = None if key in self._settled else unchanged(found)
        if same is not None:
            self._settled[key] = same
        elif key not in self._settled:
            partners = [
                (segment, rounding, delta)
                for rounding in self._roundings.get(found.function.form, ())
                for segment, delta in _compared(rounding, found, self._forced.get(_place(found)))
            ]
            if not partners:
                self._settled[key] = self._unpaired(found)
            else:
                segment, partner, delta = min(partners, key=lambda p: _size(p[0]))
                counted = _counted(partner, found, float(delta))
                self.segments.append(replace(segment, counted=counted))
                meant = partner.codes.plus(Combination.constant(delta))
                low, high = meant.range
                self._settled[key] = Quantity(meant, low, high, unit=np.ones(()))
        return _shifted(self._settled[key], codes.offset)

    def _unpaired(self, found: RoundedData) -> Quantity:
        node = found.event.node
        reason = NOT_MATCHED(
            f"no quantizer of the reference rounds what {node.name or node.op_type!r} does"
        )
        others = (one.function for rounded in self._roundings.values() for one in rounded)
        for function in (found.function, *others):
            for _, atom in function.terms:
                if atom.kind == "wrapped":
                    reason = OVERFLOW(str(atom.attributes))
        self.segments.append(Segment(None, node, (None, node.outputs[0]), reason=reason))
        self._serial += 1
        atom = self._atoms.make("codes", self._serial, (), found.ends)
        return Quantity(Combination.of(atom), *found.ends, unit=np.ones(()))


_MOST_ATTEMPTS = 3
"""Maximum number of evaluations of the candidate, with other numberings of codes."""


def _place(rounding: RoundedData) -> Hashable:
    """Return a key of a rounding that is the same whenever its model is evaluated."""
    return rounding.event.node, rounding.low.tobytes(), rounding.high.tobytes()


def _key(codes: Pending) -> Hashable:
    return codes.event, codes.low.tobytes(), codes.high.tobytes()


def _shifted(codes: Quantity, offset: Float64) -> Quantity:
    if not offset.any():
        return codes
    meant = codes.meant.plus(Combination.constant(offset))
    return Quantity(meant, codes.low + offset, codes.high + offset, unit=codes.unit)


def _compared(
    one: RoundedData, other: RoundedData, forced: Float64 | None
) -> list[tuple[Segment, Float64]]:
    """Return the bound of two roundings for each way in which their codes may correspond."""
    kinds = one.event.kind, other.event.kind
    if kinds[0] != kinds[1] and "Sign" in kinds:
        return []
    if one.event.mantissa != other.event.mantissa:
        return []
    if one.event.mantissa is not None and kinds[0] != kinds[1]:
        return []
    if forced is not None:
        return [(_bound(one, other, forced), forced)]
    # Only limits tell that codes are numbered otherwise: ranges move with a bias, too.
    (low, high), (bottom, top) = one.clips, other.clips
    shifts = {0.0, float(bottom.min() - low.min()), float(top.max() - high.max())}
    deltas = sorted((shift for shift in shifts if np.isfinite(shift)), key=abs)
    return [(_bound(one, other, delta), delta) for delta in map(np.asarray, deltas)]


def _bound(one: RoundedData, other: RoundedData, delta: Float64) -> Segment:
    # Beyond these values both codes are clipped, each to its own limit.
    bottom = np.minimum(one.ends[0], other.ends[0] - delta)
    top = np.maximum(one.ends[1], other.ends[1] - delta)
    window = bottom - one.event.spacing(bottom), top + one.event.spacing(top)
    shifted = one.function.plus(Combination.constant(delta))
    moved_window = window[0] + delta, window[1] + delta
    shift = distance(shifted, other.function, moved_window)
    if one.event.kind != other.event.kind:
        shift = np.maximum(shift, 2.0**-40)
    shift = np.where(np.isnan(shift), np.inf, shift)
    extra = np.maximum(*(_clipped_apart(end, one, other, delta) for end in one.reach))
    nodes = one.event.node, other.event.node
    kinds = one.event.kind, other.event.kind
    return Segment(
        *nodes,
        (nodes[0].outputs[0], nodes[1].outputs[0]),
        reference_error=_error(one.event.before, window),
        candidate_error=_error(other.event.before, moved_window),
        shift=shift,
        extra=extra,
        span=one.ends[1] - one.ends[0],
        kind=one.event.kind if kinds[0] == kinds[1] else "",
        roundings=(one, other),
        delta=delta,
    )


def _counted(one: RoundedData, other: RoundedData, delta: float) -> Counted | None:
    """Return where codes differ, if both are computed from the same few whole numbers."""
    models = []
    for data, shift in ((one, 0.0), (other, -delta)):
        program = program_of(data.event.before)
        if program is None:
            return None
        models.append(finished(program, limited_codes(data, shift), (data.low, data.high)))
    return compare(*models)


def _clipped_apart(code: Float64, one: RoundedData, other: RoundedData, delta: Float64) -> Float64:
    """Return how far apart the limits of both codes leave one code of the reference."""
    apart = np.abs(np.clip(code, *one.clips) + delta - np.clip(code + delta, *other.clips))
    return np.where(np.isnan(apart), 0.0, apart)


def _error(before: Quantity, window: tuple[Float64, Float64]) -> Float64:
    reach = np.maximum(*map(np.abs, window))
    reach = np.minimum(reach, before.largest)
    return before.absolute + product(before.relative, reach)


def _size(segment: Segment) -> float:
    return float(np.max(segment.deviation + segment.extra))


def _alike(one: ir.Value, other: ir.Value) -> bool:
    """Return whether two values are known to have one type and one shape."""
    is_known = one.shape is not None and not one.shape.has_unknown_dim()
    return is_known and one.dtype == other.dtype and one.shape == other.shape


def _output(
    pair: Pair, ours: Quantity | ExplainedReason, theirs: Quantity | ExplainedReason
) -> Segment:
    nodes = pair[0].producer(), pair[1].producer()
    if not isinstance(ours, Quantity):
        return Segment(*nodes, pair, is_output=True, reason=ours)
    if not isinstance(theirs, Quantity):
        return Segment(*nodes, pair, is_output=True, reason=theirs)
    if not _alike(*pair):
        unlike = DO_NOT_FIT("the results are of different types or shapes")
        return Segment(*nodes, pair, is_output=True, reason=unlike)
    shift = distance(ours.meant, theirs.meant)
    programs = program_of(ours), program_of(theirs)
    counted, reason = None, None
    if programs[0] is not None and programs[1] is not None:
        counted = compare(finished(programs[0]), finished(programs[1]), has_steps=False)
    if not np.isfinite(shift).all():
        reason = NOT_MATCHED("the output is computed from other values")
    return Segment(
        *nodes,
        pair,
        is_output=True,
        reference_error=ours.error,
        candidate_error=theirs.error,
        shift=shift,
        span=ours.high - ours.low,
        largest=ours.largest,
        reason=reason,
        counted=counted,
    )

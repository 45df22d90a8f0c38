"""Pair the roundings of two models, and bound the differences of their codes.

A segment runs from codes (or inputs) to the next rounding, or to an output. The codes at its start
are assumed to be equal in both models: each pair of roundings has one atom for the codes of both
models. So the functions before the next pair of roundings are linear combinations of the same
atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import onnx_ir as ir

from qgraph.bound import Against, Bounding
from qgraph.conditions import EQUAL_OPERATORS, Condition
from qgraph.graph.interface import Pair, interface
from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import Atom, Combination, part_of, placed
from qgraph.proof.bounds.distances import distance
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.bounds.executed import Finished, compare, program_of
from qgraph.proof.bounds.moved_elements import MovingAtoms
from qgraph.proof.bounds.quantity import Pending, Quantity, Settle
from qgraph.proof.bounds.roundings import (
    RoundedData,
    moved_by,
    offset_of,
    parts_of,
    rounding_of,
    source_of,
    unchanged,
    zeros_of,
)
from qgraph.proof.bounds.segment import (
    Segment,
    UnboundedResults,
    compared,
    counted_pair,
    one_of_each_pair,
    overflow_of,
    size_of,
)
from qgraph.reasons import (
    AT_RUN_TIME,
    DO_NOT_FIT,
    NOT_MATCHED,
    ExplainedReason,
    Undecidable,
)


class Ends(Protocol):
    """Proves values of two models equal; values are given by name."""

    def show(self, segment: Segment) -> bool:
        """Return whether a segment has equal ends; later calls may use them as equal."""

    def equal(self, ours: str, theirs: str) -> bool:
        """Return whether two values are known to be equal."""


class Pairing:
    """Evaluates two models and pairs their roundings.

    Segments also begin at results without a quantity, such as those of an LSTM, if both models
    compute them from equal values.

    Args:
        models: the reference and the candidate with types and shapes, without functions.
        request: options of bounds.
        ends: creates the object that proves values equal; None for none.
        limits: upper bounds of open sizes, by their texts.

    Attributes:
        segments: one for each rounding of the candidate, and one for each output.
        inputs, outputs: pairs of values of both models.
        unbounded: the results of the reference without a bound.
    """

    def __init__(
        self,
        models: Sequence[ir.Model],
        request: Bounding,
        *,
        ends: Callable[[Pairing], Ends] | None,
        limits: Mapping[str, int],
    ) -> None:
        self.segments: list[Segment] = []
        self.models = reference, candidate = models[0], models[1]
        face = interface(reference.graph, candidate.graph)
        self.inputs, self.outputs = list(face.inputs), list(face.outputs)
        self._atoms = MovingAtoms(lambda _, moved: self._enter(moved))
        self._settled: dict[Hashable, Quantity] = {}
        self._roundings: dict[Hashable, list[RoundedData]] = {}
        self._serial = 0
        self._open: dict[Atom, Segment] = {}
        self._forced: dict[Hashable, Float64] = {}
        self._make_ends, self._shown = ends, 0
        self._is_ideal = request.against == Against.IDEAL
        self._ends: Ends | None = None
        self.unbounded = UnboundedResults(self._atoms)
        evaluation = partial(
            Evaluation,
            ranges=request.ranges,
            atoms=self._atoms,
            accumulate=None if request.accumulate == "own" else "FLOAT",
            chunk=request.chunk,
            limits=limits,
        )
        with np.errstate(all="ignore"):
            self._evaluate(evaluation)

    def _evaluate(self, evaluation: Callable[..., Evaluation]) -> None:
        ours, theirs = (
            partial(evaluation, model, {str(p[side].name): str(p[0].name) for p in self.inputs})
            for side, model in enumerate(self.models)
        )
        self.reference = ours(settle=self._of_reference, opaque=self._opaque_of_reference)
        self.reference.run()
        ends = [self._end(self.reference, pair[0], self._of_reference) for pair in self.outputs]
        for _ in range(_MOST_ATTEMPTS):
            self.segments, self._shown = [], 0
            self._atoms.leave()
            self._atoms.found = self._moved_in_candidate
            self.candidate = theirs(settle=self._of_candidate, opaque=self._opaque_of_candidate)
            self._ends = None
            self.candidate.run()
            if not self._renumber():
                break
        self.segments = one_of_each_pair(self.segments, ideal=self._is_ideal)
        for pair, end in zip(self.outputs, ends, strict=True):
            other = self._end(self.candidate, pair[1], self._of_candidate)
            self.segments.append(self._output(pair, end, other))

    def _opaque_of_reference(self, value: ir.Value) -> Quantity | None:
        if self._make_ends is None or value.shape is None:
            return None
        node = value.producer()
        read = [] if node is None else [v for v in node.inputs if v is not None]
        ends = [self._end(self.reference, v, self._of_reference) for v in read]
        leaves = [end.meant.leaves for end in ends if isinstance(end, Quantity)]
        sources = frozenset[int]().union(*leaves)
        return self.unbounded.add(value, sources, self.reference.reasons[value])

    def _opaque_of_candidate(self, value: ir.Value) -> Quantity | None:
        """Return the quantity of the reference's value that equals a value of the candidate."""
        if self._make_ends is None:
            return None
        if self._ends is None:  # few models have results without a quantity
            self._ends = self._make_ends(self)
        for segment in self.segments[self._shown :]:
            self._ends.show(segment)
        self._shown = len(self.segments)
        equal = self.unbounded.equal_to(value, self._ends.equal)
        if equal is None:
            return self._taken_as_equal(value)
        self._atoms.conditions.add(EQUAL_OPERATORS)
        return equal

    def _taken_as_equal(self, value: ir.Value) -> Quantity | None:
        """Return the decoded codes of the reference that have the name of a value without a bound.

        Also adds their segment, which is undecided; so the segments that follow can be bounded.
        """
        own = self.reference.named.get(value.name)
        maker = None if own is None else own.producer()
        if own is None or maker is None or maker.op_type not in _DECODING or _unlike((own, value)):
            return None
        end = self._end(self.reference, own, self._of_reference)
        if not isinstance(end, Quantity):
            return None
        self.unbounded.assumed |= dict.fromkeys(end.meant.leaves, own)
        reason = self.candidate.reasons[value]
        self.segments.append(Segment(maker, value.producer(), (own, value), reason=reason))
        return end

    @property
    def conditions(self) -> set[Condition]:
        """Assumptions of the bounds, besides the order of additions."""
        return self._atoms.conditions

    def _end(self, side: Evaluation, value: ir.Value, settle: Settle) -> Quantity | ExplainedReason:
        try:
            operand = side.of(value)
            return settle(operand) if isinstance(operand, Pending) else operand
        except Undecidable as error:
            return error.reason

    def start_of(self, segment: Segment) -> ir.Value | None:
        """Return the result without a bound at which a segment begins; None for codes."""
        if segment.roundings is not None:
            return self.unbounded.start(segment.roundings[0].function)
        value = segment.values[0]
        end = None if value is None else self._end(self.reference, value, self._of_reference)
        return self.unbounded.start(end.meant) if isinstance(end, Quantity) else None

    def found(self, ours: str, theirs: str) -> list[Quantity | None]:
        """Return what is known of values of both models, given equal codes of all roundings."""
        found: list[Quantity | None] = []
        for name, side in ((ours, self.reference), (theirs, self.candidate)):
            operand = side.known(side.named[name]) if name in side.named else None
            if isinstance(operand, Pending):
                codes = self._settled.get(_key(operand))
                operand = None if codes is None else _shifted(codes, operand.offset)
            found.append(operand)
        return found

    def _of_reference(self, codes: Pending) -> Quantity:
        key = _key(codes)
        if key not in self._settled:
            rounding = rounding_of(codes)
            self._settled[key] = unchanged(rounding) or self._fresh(rounding)
        return _shifted(self._settled[key], codes.offset)

    def _renumber(self) -> bool:
        """Correct offsets of codes that contradict their decoders; return whether there were any.

        If a contradiction remains, the codes differ by this number of steps.
        """
        sides = self.reference, self.candidate
        ours, theirs = map(zeros_of, sides)
        is_moved = False
        for index, segment in enumerate(self.segments):
            if segment.roundings is None:
                continue
            ((_, atom),) = segment.roundings[0].codes.terms
            atom = source_of(atom)
            if atom not in ours or atom not in theirs:
                continue
            nodes = segment.reference, segment.candidate
            offsets = offset_of(sides[0], nodes[0]), offset_of(sides[1], nodes[1])
            by = moved_by(segment.delta, offsets, (ours[atom], theirs[atom]))
            if by:
                self._forced[_place(segment.roundings[1])] = np.asarray(segment.delta + by)
                shift = segment.shift + abs(by)
                self.segments[index] = replace(segment, shift=shift, counted=None)
                is_moved = True
        return is_moved

    def _fresh(self, rounded: RoundedData) -> Quantity:
        self._serial += 1
        low, high = rounded.ends
        atom = self._atoms.make("codes", self._serial, (), (low, high))
        rounding = replace(rounded, codes=Combination.of(atom))
        self._enter(rounding)
        for place, part in parts_of(self._atoms, rounding):
            codes = part_of(self._atoms, place, rounding.codes)
            self._enter(replace(part, codes=codes))
        self._atoms.follow(atom, rounding)
        return Quantity(rounding.codes, low, high, unit=np.ones(()))

    def _enter(self, rounding: RoundedData) -> None:
        """Register a rounding of the reference under keys that one of the candidate may share."""
        for key in _signatures(rounding.function):
            self._roundings.setdefault(key, []).append(rounding)

    def _moved_in_candidate(self, first: Atom, moved: RoundedData) -> Combination | None:
        codes = self._partner(moved)
        if codes is not None:
            self.segments = [s for s in self.segments if s is not self._open.get(first)]
        return codes

    def _of_candidate(self, codes: Pending) -> Quantity:
        key = _key(codes)
        rounding = rounding_of(codes)
        same = None if key in self._settled else unchanged(rounding)
        if same is not None:
            self._settled[key] = same
        elif key not in self._settled:
            meant = self._partner(rounding) or self._of_parts(rounding)
            if meant is None:
                self._settled[key] = self._unpaired(rounding)
            else:
                self._settled[key] = Quantity(meant, *meant.range, unit=np.ones(()))
        return _shifted(self._settled[key], codes.offset)

    def _partner(self, rounded: RoundedData) -> Combination | None:
        """Return the codes of the closest rounding of the reference, and add their segment."""
        forced = self._forced.get(_place(rounded))
        partners: list[tuple[Segment, RoundedData, Float64]] = []
        for limit, key in zip((np.inf, 1.0), _signatures(rounded.function), strict=False):
            partners = partners or [
                (segment, rounding, delta)
                for rounding in self._roundings.get(key, ())
                for segment, delta in compared(rounding, rounded, forced)
                if limit == np.inf or np.max(segment.shift) < limit
            ]
        if not partners:
            return None
        segment, partner, delta = min(partners, key=lambda p: size_of(p[0]))
        self.segments.append(replace(segment, counted=counted_pair(partner, rounded, float(delta))))
        return partner.codes.plus(Combination.constant(delta))

    def _of_parts(self, rounded: RoundedData) -> Combination | None:
        """Return codes of a concatenation whose parts the reference rounds separately, or None."""
        segments = list(self.segments)
        codes = []
        for place, part in parts_of(self._atoms, rounded):
            own = self._partner(part)
            if own is None:
                self.segments = segments
                return None
            codes.append((place, own))
        return placed(self._atoms, codes) if codes else None

    def _unpaired(self, data: RoundedData) -> Quantity:
        node = data.event.node
        reason = NOT_MATCHED(
            f"no quantizer of the reference rounds the same data as {node.name or node.op_type!r}"
        )
        others = [one.function for rounded in self._roundings.values() for one in rounded]
        reasons = (self.unbounded.reason(function, data.function) for function in others)
        reason = next(filter(None, reasons), reason)
        reason = overflow_of(data.function, *others) or reason
        segment = Segment(None, node, (None, node.outputs[0]), reason=reason)
        self.segments.append(segment)
        self._serial += 1
        atom = self._atoms.make("codes", self._serial, (), data.ends)
        self._open[atom] = segment
        self._atoms.follow(atom, data)
        return Quantity(Combination.of(atom), *data.ends, unit=np.ones(()))

    def _output(
        self, pair: Pair, ours: Quantity | ExplainedReason, theirs: Quantity | ExplainedReason
    ) -> Segment:
        nodes = pair[0].producer(), pair[1].producer()
        unlike = _unlike(pair)
        if not isinstance(ours, Quantity) or not isinstance(theirs, Quantity) or unlike:
            reasons = (r for r in (ours, theirs, unlike) if isinstance(r, ExplainedReason))
            return Segment(*nodes, pair, is_output=True, reason=next(reasons))
        shift = distance(ours.meant, theirs.meant)
        one, other = program_of(ours), program_of(theirs)
        counted, reason = None, None
        if one is not None and other is not None:
            counted = compare(Finished(one), Finished(other), has_steps=False)
        if not np.isfinite(shift).all():
            reason = overflow_of(ours.meant, theirs.meant) or (
                self.unbounded.first(ours.meant, theirs.meant)
                or NOT_MATCHED("the output is computed from other values")
            )
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


_DECODING = frozenset({"DequantizeLinear", "FakeQuantize", "IntQuant", "Quant"})
"""Operators whose results are codes, decoded."""

_MOST_ATTEMPTS = 3
"""Maximum number of evaluations of the candidate with corrected offsets of codes."""


def _signatures(function: Combination) -> Iterator[Hashable]:
    """Yield keys that equal functions may share: their form, and the codes that they depend on."""
    yield function.form
    yield function.leaves


def _place(rounding: RoundedData) -> Hashable:
    """Return a key of a rounding that is the same in each evaluation of its model."""
    return rounding.event.node, rounding.low.tobytes(), rounding.high.tobytes()


def _key(codes: Pending) -> Hashable:
    return codes.event, codes.low.tobytes(), codes.high.tobytes()


def _shifted(codes: Quantity, offset: Float64) -> Quantity:
    if not offset.any():
        return codes
    meant = codes.meant.plus(Combination.constant(offset))
    return Quantity(meant, codes.low + offset, codes.high + offset, unit=codes.unit)


def _unlike(pair: Pair) -> ExplainedReason | None:
    """Return why two values may differ in type or shape; None if they cannot."""
    for value in pair:
        if value.shape is None or value.shape.has_unknown_dim():
            return AT_RUN_TIME(f"the shape of {value.name!r} is not known")
    one, other = pair
    if one.dtype == other.dtype and one.shape == other.shape:
        return None
    return DO_NOT_FIT("the results are of different types or shapes")

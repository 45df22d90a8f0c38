"""Deciding where two expressions differ, over all finite float32 inputs, by branch and bound.

A box is a channel and an interval of inputs. Both expressions are evaluated on it with intervals.
Where both results are one number each, or do not meet, the box is settled on its whole length;
other boxes are split, and evaluated input by input once they are small.

Fake quantizers change near the midpoint between two of their output values, so boxes are cut there
first. A cut in the wrong place costs time but cannot make a result wrong.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qgraph.proof.environment import check_float_environment
from qgraph.proof.expression import Expr, Undecidable
from qgraph.proof.finding import Channels, Collector, Finding, Runs
from qgraph.proof.interval import Interval, Mask, either, settled
from qgraph.proof.keys import (
    HIGHEST,
    LOWEST,
    NEGATIVE_ZERO,
    POSITIVE_ZERO,
    Float32,
    Keys,
    from_keys,
    to_keys,
)
from qgraph.proof.program import Program

__all__ = ["MAX_BOXES", "Finding", "Runs", "decide"]

MAX_BOXES = 1 << 25
"""Boxes after which a comparison is given up."""

_BATCH = 1 << 16
_ENUMERATED = 8
_WINDOW = 2
_CUTS = 24
_SAMPLES = 4096
_PATIENCE = 1 << 18


def decide(
    reference: Expr,
    candidate: Expr,
    *,
    input_shape: tuple[int | None, ...] | None = None,
    max_boxes: int = MAX_BOXES,
    domain: tuple[float, float] | None = None,
) -> Finding:
    """Compare two expressions on every float32 input and in every channel.

    Args:
        reference, candidate: of one builder if common parts are to be recognised.
        input_shape: shape of the variable, None for unknown dimensions; used to see that the two
            results have one shape.
        max_boxes: after how many evaluated boxes to give up.
        domain: restricts the finite inputs to those from the first to the second number.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    one = np.zeros(1, np.int64)
    nothing = Collector(math.prod(reference.shape), one, one).finding()
    if reference is candidate:
        return nothing
    check_float_environment()
    try:
        _check_shapes(reference, candidate, input_shape)
        search = _Search(Program(reference, candidate), max_boxes)
    except Undecidable as undecidable:
        return replace(nothing, undecided=undecidable.reason)
    with np.errstate(all="ignore"):
        finding = search.run(domain)
    check_float_environment()
    return finding


class _Boxes(NamedTuple):
    """Boxes [lo, hi] in channels of a kind; ``cuts`` counts how often midpoints were cut at."""

    kind: Channels
    lo: Keys
    hi: Keys
    cuts: npt.NDArray[np.uint8]

    def at(self, chosen: Mask | slice) -> _Boxes:
        return _Boxes(*(array[chosen] for array in self))


class _Search:
    def __init__(self, program: Program, max_boxes: int) -> None:
        self._program = program
        self._max_boxes = max_boxes
        self._found = Collector(program.channels, program.first, program.count)
        self._stack: list[_Boxes] = []
        self._points: list[_Boxes] = []

    def run(self, domain: tuple[float, float] | None) -> Finding:
        try:
            self._push_first(domain)
            self._special_inputs()
            hopeful = False
            while self._stack or self._points:
                if not hopeful and self._found.boxes > _PATIENCE:
                    self._estimate()
                    hopeful = True
                if self._found.boxes > self._max_boxes:
                    raise Undecidable(f"not settled after {self._found.boxes} boxes")
                self._step()
        except Undecidable as undecidable:
            return self._found.finding(undecidable.reason)
        return self._found.finding()

    def _push_first(self, domain: tuple[float, float] | None) -> None:
        ends = np.array([LOWEST, HIGHEST] if domain is None else to_keys(np.float32(domain)))
        self._low = max(int(ends[0]), LOWEST)
        self._high = min(int(ends[1]), HIGHEST)
        kinds = np.arange(len(self._program.first), dtype=np.int64)
        spans = ((LOWEST, NEGATIVE_ZERO - 1), (POSITIVE_ZERO + 1, HIGHEST))
        zeros = ((NEGATIVE_ZERO, NEGATIVE_ZERO), (POSITIVE_ZERO, POSITIVE_ZERO))
        for stack, some in ((self._stack, spans), (self._points, zeros)):
            for lo, hi in some:
                lo, hi = max(lo, self._low), min(hi, self._high)
                if lo <= hi:
                    cuts = np.zeros(len(kinds), np.uint8)
                    stack.append(
                        _Boxes(kinds, np.full_like(kinds, lo), np.full_like(kinds, hi), cuts)
                    )

    def _step(self) -> None:
        """Evaluate one batch of boxes, or of inputs once there are many or no boxes are left."""
        points = not self._stack or sum(len(b.lo) for b in self._points) >= _BATCH
        boxes = _take(self._points if points else self._stack)
        self._found.boxes += len(boxes.lo)
        x = from_keys(boxes.lo)
        box = Interval(x, x if points else from_keys(boxes.hi), finite=True)
        a, b = self._program.intervals(box, boxes.kind)
        rest = self._settle(boxes, a, b)
        if not rest.any():
            return
        if points:
            self._single_inputs(boxes.at(rest))
        else:
            self._split(boxes.at(rest), _at(a, rest), _at(b, rest))

    def _settle(self, boxes: _Boxes, a: Interval, b: Interval) -> Mask:
        """Note what settled boxes show, and return which ones are left."""
        bad = either(a.bad, b.bad)
        apart = (a.hi < b.lo) | (b.hi < a.lo)
        done = settled(a) & settled(b)
        if bad is not None:
            apart &= ~bad
            done &= ~bad
        if apart.any():
            up = (a.hi - b.lo > b.hi - a.lo)[apart]
            reference = np.where(up, a.hi[apart], a.lo[apart])
            candidate = np.where(up, b.lo[apart], b.hi[apart])
            some = boxes.at(apart)
            self._found.differ(some.kind, some.lo, some.hi, reference, candidate)
        equal = done & ~apart
        signs = equal & ((a.lo.view(np.int32) != b.lo.view(np.int32)))
        for result in (a, b):
            if result.open is not None:
                signs |= equal & result.open
        if signs.any():
            some = boxes.at(signs)
            reference, candidate = a.lo[signs], b.hi[signs]
            self._found.differ_in_zero_sign(some.kind, some.lo, some.hi, reference, candidate)
        return np.asarray(~(done | apart))

    def _split(self, boxes: _Boxes, a: Interval, b: Interval) -> None:
        width = boxes.hi - boxes.lo + 1
        small = width <= _ENUMERATED
        if small.any():
            self._points.append(_every_input(boxes.at(small)))
        large = ~small
        if not large.any():
            return
        boxes, a, b = boxes.at(large), _at(a, large), _at(b, large)
        kind, lo, hi, cuts = boxes
        fixed = settled(a)
        low, high = np.where(fixed, b.lo, a.lo), np.where(fixed, b.hi, a.hi)
        guess = to_keys(low * np.float32(0.5) + high * np.float32(0.5))
        fresh = cuts < _CUTS
        inside = fresh & (guess - _WINDOW > lo) & (guess + _WINDOW < hi)
        # after a cut at the midpoint what changes nearby is sought in growing distance from it
        below, above = guess <= lo + _WINDOW, guess >= hi - _WINDOW
        reach = 4 * np.abs(guess - np.where(below, lo, hi)) + 2 * _ENUMERATED
        near = fresh & ~inside & (below | above) & (reach < (hi - lo) // 2)
        middle = (lo + hi) >> 1
        middle = np.where(near, np.where(below, lo + reach, hi - reach), middle)
        first_end = np.where(inside, guess - _WINDOW - 1, middle)
        second_start = np.where(inside, guess + _WINDOW + 1, middle + 1)
        cuts = cuts + (inside | near).astype(np.uint8)
        self._stack.append(_Boxes(kind, lo, first_end, cuts))
        self._stack.append(_Boxes(kind, second_start, hi, cuts))
        if inside.any():
            window = _Boxes(kind, guess - _WINDOW, guess + _WINDOW, cuts).at(inside)
            self._points.append(_every_input(window))

    def _single_inputs(self, boxes: _Boxes) -> None:
        """Compare at inputs that intervals do not settle: those with NaN on the way."""
        x = from_keys(boxes.lo)
        outcome = _Outcome.of(self._program, x, boxes.kind)
        if outcome.unknown.any():
            at = int(np.argmax(outcome.unknown))
            raise Undecidable(f"ONNX leaves open what is computed at the input {x[at]!r}")
        for note, mask in (
            (self._found.differ, outcome.differ),
            (self._found.differ_in_zero_sign, outcome.zero_sign),
        ):
            some = boxes.at(mask)
            note(some.kind, some.lo, some.hi, outcome.reference[mask], outcome.candidate[mask])

    def _special_inputs(self) -> None:
        kinds = np.arange(len(self._program.first), dtype=np.int64)
        for value in (np.inf, -np.inf, np.nan, -np.nan):
            x = np.full(len(kinds), value, np.float32)
            outcome = _Outcome.of(self._program, x, kinds)
            differ, sign = outcome.differ | outcome.unknown, outcome.zero_sign
            what = "nan" if np.isnan(value) else "infinity"
            if what == "nan":
                differ |= sign
                self._found.nan_differs |= bool(differ.any())
            else:
                self._found.infinity_differs |= bool(differ.any())
                self._found.infinity_sign_differs |= bool(sign.any())
            for name, mask in ((what, differ), ("zero", sign)):
                shown = (kinds, x, outcome.reference, outcome.candidate)
                self._found.show(name, *(array[mask] for array in shown))

    def _estimate(self) -> None:
        """Give up early if sampled boxes of a few inputs are seldom settled.

        Raises:
            Undecidable: the boxes needed are estimated to be far too many.
        """
        keys = self._high - self._low + 1
        random = np.random.default_rng(0)
        lo = random.integers(self._low, self._high + 1, _SAMPLES)
        kind = random.integers(0, len(self._program.first), _SAMPLES)
        hi = np.minimum(lo + _ENUMERATED - 1, self._high)
        a, b = self._program.intervals(Interval(from_keys(lo), from_keys(hi), finite=True), kind)
        left = ~((settled(a) & settled(b)) | (a.hi < b.lo) | (b.hi < a.lo))
        bad = either(a.bad, b.bad)
        left = left if bad is None else left | bad
        share = float(left.mean())
        if share * keys * len(self._program.first) > self._max_boxes:
            raise Undecidable(
                "it is no step function whose steps can be compared one by one: "
                f"{share:.0%} of all neighbouring inputs give different values"
            )


class _Outcome(NamedTuple):
    """How single inputs compare, whatever signs Min, Max and Relu give to zeros."""

    reference: Float32
    candidate: Float32
    differ: Mask
    zero_sign: Mask
    unknown: Mask

    @classmethod
    def of(cls, program: Program, x: Float32, kind: Channels) -> _Outcome:
        a, b = program.points(x, kind, zero=False)
        others = program.points(x, kind, zero=True)
        unknown = a.undefined | b.undefined
        differ = ~_same(a.values, b.values)
        sign = np.zeros(len(x), np.bool_)
        for one, other in zip((a, b), others, strict=True):
            unknown = unknown | ~_same(one.values, other.values)
            for zeros in (one, other):
                sign |= np.signbit(zeros.values) != np.signbit(a.values)
        zero_sign = sign & ~differ & (a.values == 0)
        return cls(a.values, others[1].values, differ & ~unknown, zero_sign & ~unknown, unknown)


def _same(a: Float32, b: Float32) -> Mask:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _take(stack: list[_Boxes]) -> _Boxes:
    """Remove a batch of boxes from the end of the stack."""
    taken: list[_Boxes] = []
    size = 0
    while stack and size < _BATCH:
        top = stack.pop()
        if (room := _BATCH - size) < len(top.lo):
            stack.append(top.at(slice(room, None)))
            top = top.at(slice(room))
        taken.append(top)
        size += len(top.lo)
    return _Boxes(*(np.concatenate(column) for column in zip(*taken, strict=True)))


def _every_input(boxes: _Boxes) -> _Boxes:
    """Return a box for each single input of ``boxes``."""
    width = boxes.hi - boxes.lo + 1
    ends = np.cumsum(width)
    lo = np.arange(ends[-1]) + np.repeat(boxes.lo - ends + width, width)
    return _Boxes(np.repeat(boxes.kind, width), lo, lo, np.repeat(boxes.cuts, width))


def _at(a: Interval, chosen: Mask) -> Interval:
    """Return the ends of some elements."""
    opened = None if a.open is None else a.open[chosen]
    return Interval(a.lo[chosen], a.hi[chosen], open=opened)


def _check_shapes(
    reference: Expr, candidate: Expr, shape: tuple[int | None, ...] | None
) -> None:
    """See that the constants on both sides give the result the same shape.

    Raises:
        Undecidable: they do not.
    """
    if shape is None:
        return
    found = [_result_shape(shape, expression.shape) for expression in (reference, candidate)]
    if found[0] != found[1]:
        raise Undecidable(f"the results have shapes {list(found[0])} and {list(found[1])}")


def _result_shape(
    shape: tuple[int | None, ...], constants: tuple[int, ...]
) -> tuple[int | None, ...]:
    rank = max(len(shape), len(constants))
    sizes = (1,) * (rank - len(shape)) + shape
    others = (1,) * (rank - len(constants)) + constants
    if any(a not in (None, 1, b) and b != 1 for a, b in zip(sizes, others, strict=True)):
        raise Undecidable(f"constants of shape {list(constants)} do not fit data of {list(shape)}")
    return tuple(b if a == 1 else a for a, b in zip(sizes, others, strict=True))

"""Branch and bound: boxes of inputs are evaluated, settled, or split.

A box is a kind of channel and an interval of inputs. Both expressions of a program are evaluated
on it with interval arithmetic. If both results are single numbers, or are disjoint intervals, the
box is settled. Other boxes are split, and evaluated input by input once they are small.

Fake quantizers have thresholds near the midpoint between two of their output values, so boxes are
split there first, the first few at all midpoints that samples show. A split in the wrong place
costs time but cannot make a result wrong.

Two results may be disjoint on a box on which they vary. Such boxes can also be split until the
results are single numbers. A limit on their number ends this for functions without steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qgraph.effort import is_over, step
from qgraph.numerics import Float32, Mask
from qgraph.numerics.float32 import (
    HIGHEST,
    LOWEST,
    NEGATIVE_ZERO,
    POSITIVE_ZERO,
    Keys,
    from_keys,
    to_keys,
)
from qgraph.proof.functions.interval import Interval, either, settled
from qgraph.proof.functions.program import Channels, PairProgram, PointResults
from qgraph.reasons import EFFORT, OUT_OF_TIME, Undecidable

MAX_BOXES = 1 << 27
"""Number of boxes after which a comparison stops undecided."""

_BATCH = 1 << 16
_ENUMERATED = 8
_WINDOW = 2
_CUTS = 24
_FEW = 16
_PROBES = 1024
_SAMPLES = 4096
_PATIENCE = 1 << 18
_MOST_REFINED = 1 << 20


class BoxBatch(NamedTuple):
    """Boxes ``[n]``: inputs from ``lo`` to ``hi`` in kinds of channels, after midpoint ``cuts``."""

    kind: Channels
    lo: Keys
    hi: Keys
    cuts: npt.NDArray[np.uint8]

    def at(self, chosen: Mask | slice) -> BoxBatch:
        """Return some of the boxes."""
        return BoxBatch(self.kind[chosen], self.lo[chosen], self.hi[chosen], self.cuts[chosen])


class BoxSearch:
    """One run over the finite inputs of all kinds of channels.

    Inputs lie between the numbers of ``domain``. If it ``refines``, boxes with disjoint results are
    split until the results do not vary. ``boxes`` is the number of evaluated boxes.
    """

    def __init__(
        self,
        program: PairProgram,
        max_boxes: int,
        domain: tuple[float, float] | None = None,
        *,
        refines: bool = False,
    ) -> None:
        self._program = program
        self._max_boxes = max_boxes
        ends = [LOWEST, HIGHEST] if domain is None else to_keys(domain)
        self._low, self._high = (int(end) for end in np.clip(ends, LOWEST, HIGHEST))
        self._wide: list[BoxBatch] = []
        self._single: list[BoxBatch] = []
        self._refinable = _MOST_REFINED if refines else 0
        self.boxes = 0
        self._settled = 0
        self._push_first()

    def settled(self) -> Iterator[tuple[BoxBatch, PointResults, Mask]]:
        """Yield boxes ``[n]``, their results and a mask of settled ones, until all are settled.

        If values differ and vary on a box, the results are the bounds with the largest distance.
        Inputs that intervals do not settle, because of NaN, are yielded as boxes of one input.
        Raises Undecidable if too many boxes are needed.
        """
        hopeful = False
        while self._wide or self._single:
            if not hopeful and self.boxes > _PATIENCE:
                self._estimate()
                hopeful = True
            if self.boxes > self._max_boxes:
                raise Undecidable(EFFORT(f"not settled after {self.boxes} boxes"), by_effort=True)
            if is_over():
                text = f"not settled after {self.boxes} boxes, at the time limit"
                raise Undecidable(OUT_OF_TIME(text), by_effort=True)
            for boxes, results, done in self._step():
                self._settled += int((boxes.hi - boxes.lo + 1)[done].sum())
                yield boxes, results, done
            step("comparing all inputs", self._settled, self._inputs)

    @property
    def _inputs(self) -> int:
        return (self._high - self._low + 1) * len(self._program.first)

    def drop(self, finished: Mask) -> None:
        """Drop the boxes of kinds of channels that are finished."""
        if finished.any():
            self._wide, self._single = (
                [rest for boxes in stack if len((rest := boxes.at(~finished[boxes.kind])).lo)]
                for stack in (self._wide, self._single)
            )

    def _push_first(self) -> None:
        kinds = np.arange(len(self._program.first), dtype=np.int64)
        spans = ((LOWEST, NEGATIVE_ZERO - 1), (POSITIVE_ZERO + 1, HIGHEST))
        zeros = ((NEGATIVE_ZERO, NEGATIVE_ZERO), (POSITIVE_ZERO, POSITIVE_ZERO))
        for stack, some in ((self._wide, spans), (self._single, zeros)):
            for ends in some:
                lo, hi = max(ends[0], self._low), min(ends[1], self._high)
                if lo <= hi:
                    bounds = np.full_like(kinds, lo), np.full_like(kinds, hi)
                    stack.append(BoxBatch(kinds, *bounds, np.zeros(len(kinds), np.uint8)))

    def _step(self) -> Iterator[tuple[BoxBatch, PointResults, Mask]]:
        """Evaluate a batch of boxes, or of single inputs if many wait or no boxes are left."""
        single = not self._wide or sum(len(b.lo) for b in self._single) >= _BATCH
        boxes = _take(self._single if single else self._wide)
        self.boxes += len(boxes.lo)
        x = from_keys(boxes.lo)
        box = Interval(x, x if single else from_keys(boxes.hi), finite=True)
        a, b = self._program.intervals(box, boxes.kind)
        apart, done = _decided(a, b)
        nan = np.float32(np.nan)
        for result in (a, b):
            if (mask := result.nan) is not None:
                result.lo, result.hi = (np.where(mask, nan, x) for x in (result.lo, result.hi))
        if self._refinable > 0 and not single:
            varying = apart & ~(settled(a) & settled(b))
            self._refinable -= int(varying.sum())
            apart &= ~varying
        either = apart | done
        yield boxes, _results(a, b, apart, done), either
        if either.all():
            return
        rest = ~either
        left = boxes.at(rest)
        if single:
            results = PointResults.of(self._program, from_keys(left.lo), left.kind)
            yield left, results, np.ones(len(left.lo), np.bool_)
        else:
            self._split(left, _at(a, rest), _at(b, rest))

    def _split(self, boxes: BoxBatch, a: Interval, b: Interval) -> None:
        small = boxes.hi - boxes.lo < _ENUMERATED
        if small.any():
            self._single.append(_every_input(boxes.at(small)))
            large = ~small
            if not large.any():
                return
            boxes, a, b = boxes.at(large), _at(a, large), _at(b, large)
        kind, lo, hi, cuts = boxes
        fixed = settled(a)
        low, high = np.where(fixed, b.lo, a.lo), np.where(fixed, b.hi, a.hi)
        if len(lo) <= _FEW and not cuts.any() and self._split_everywhere(boxes, fixed, low, high):
            return
        guess = to_keys(_middle(low, high))
        fresh = cuts < _CUTS
        inside = fresh & (guess - _WINDOW > lo) & (guess + _WINDOW < hi)
        # next to a window that was split off, search at growing distances from it
        below, above = guess <= lo + _WINDOW, guess >= hi - _WINDOW
        reach = 4 * np.abs(guess - np.where(below, lo, hi)) + 2 * _ENUMERATED
        near = fresh & ~inside & (below | above) & (reach < (hi - lo) // 2)
        middle = np.where(near, np.where(below, lo + reach, hi - reach), (lo + hi) >> 1)
        cuts = cuts + (inside | near).astype(np.uint8)
        ends = np.where(inside, guess - _WINDOW - 1, middle)
        starts = np.where(inside, guess + _WINDOW + 1, middle + 1)
        self._wide.append(BoxBatch(kind, lo, ends, cuts))
        self._wide.append(BoxBatch(kind, starts, hi, cuts))
        if inside.any():
            window = BoxBatch(kind, guess - _WINDOW, guess + _WINDOW, cuts)
            self._single.append(_every_input(window.at(inside)))

    def _split_everywhere(self, boxes: BoxBatch, fixed: Mask, low: Float32, high: Float32) -> bool:
        """Split boxes at midpoints between the results of inputs from ``low`` to ``high``.

        Where the first function is ``fixed``, the results are those of the second. Returns False,
        and splits nothing, if no results differ, or most of them: this is no step function.
        """
        kind, lo, hi, cuts = boxes
        share = np.linspace(0, 1, _PROBES, dtype=np.float32)
        ends = from_keys(lo)[:, None], from_keys(hi)[:, None]
        x = np.clip(low[:, None] * (1 - share) + high[:, None] * share, *ends)
        points = self._program.points(x.reshape(-1), np.repeat(kind, _PROBES), zero=True)
        first, second = (each.values.reshape(x.shape) for each in points)
        y = np.where(fixed[:, None], second, first)
        box, at = np.nonzero(y[:, 1:] != y[:, :-1])
        if 2 * len(box) > y.size:
            return False
        guess = to_keys(_middle(y[box, at], y[box, at + 1]))
        order = np.lexsort((guess, box))
        box, guess = box[order], guess[order]
        is_free = (guess - _WINDOW > lo[box]) & (guess + _WINDOW < hi[box])
        is_free[1:] &= (box[1:] != box[:-1]) | (guess[1:] - guess[:-1] > 2 * _WINDOW + 1)
        box, guess = box[is_free], guess[is_free]
        if not box.size:
            return False
        each = np.arange(len(lo))
        before, after = (np.searchsorted(box, each, side) for side in ("left", "right"))
        every = np.insert(box, before, each)
        starts = np.insert(guess + _WINDOW + 1, before, lo)
        stops = np.insert(guess - _WINDOW - 1, after, hi)
        self._wide.append(BoxBatch(kind[every], starts, stops, cuts[every] + np.uint8(1)))
        window = BoxBatch(kind[box], guess - _WINDOW, guess + _WINDOW, cuts[box])
        self._single.append(_every_input(window))
        return True

    def _estimate(self) -> None:
        """Raise Undecidable if most small sample boxes cannot be settled."""
        kinds = len(self._program.first)
        random = np.random.default_rng(0)
        lo = random.integers(self._low, self._high + 1, _SAMPLES)
        hi = np.minimum(lo + _ENUMERATED - 1, self._high)
        box = Interval(from_keys(lo), from_keys(hi), finite=True)
        a, b = self._program.intervals(box, random.integers(0, kinds, _SAMPLES))
        apart, done = _decided(a, b)
        share = 1 - float((apart | done).mean())
        if share * (self._high - self._low + 1) * kinds > self._max_boxes:
            reason = (
                f"it is no step function: of {_SAMPLES} samples of {_ENUMERATED} neighbouring "
                f"inputs, {share:.0%} have several values or NaN"
            )
            raise Undecidable(EFFORT(reason), by_effort=True)


def _decided(a: Interval, b: Interval) -> tuple[Mask, Mask]:
    """Return masks of boxes with disjoint results, and of others with one number, NaN or zero."""
    apart = np.asarray((a.hi < b.lo) | (b.hi < a.lo))
    done = settled(a) & settled(b) & ~apart
    bad = either(a.bad, b.bad)
    if bad is not None:
        apart &= ~bad
        done &= ~bad
    if (((a.lo > a.hi) | (b.lo > b.hi)) & (apart | done)).any():
        raise RuntimeError("an interval rule returned a lower end above the upper one")
    if a.nan is not None or b.nan is not None:
        ours, theirs = (np.zeros(len(a.lo), np.bool_) if m is None else m for m in (a.nan, b.nan))
        is_defined = [
            ~nan if bad is None else nan | ~bad for nan, bad in ((ours, a.bad), (theirs, b.bad))
        ]
        apart |= (ours != theirs) & is_defined[0] & is_defined[1]
        done |= ours & theirs
    return apart, done


def _results(a: Interval, b: Interval, apart: Mask, done: Mask) -> PointResults:
    """Return the results of boxes, by the masks of disjoint results and of single numbers."""
    ends = a.lo, b.hi
    if apart.any():  # of disjoint intervals, the ends with the largest distance
        up = a.hi - b.lo > b.hi - a.lo
        ends = np.where(up, a.hi, a.lo), np.where(up, b.lo, b.hi)
    signs = np.asarray(a.lo.view(np.int32) != b.lo.view(np.int32))
    for result in (a, b):
        if result.open is not None:
            signs |= result.open
    return PointResults(*ends, apart, signs & done, np.zeros(len(apart), np.bool_))


def _middle(low: Float32, high: Float32) -> Float32:
    half = np.float32(0.5)
    return low * half + high * half


def _take(stack: list[BoxBatch]) -> BoxBatch:
    taken: list[BoxBatch] = []
    size = 0
    while stack and size < _BATCH:
        top = stack.pop()
        if (room := _BATCH - size) < len(top.lo):
            stack.append(top.at(slice(room, None)))
            top = top.at(slice(room))
        taken.append(top)
        size += len(top.lo)
    return BoxBatch(*(np.concatenate(column) for column in zip(*taken, strict=True)))


def _every_input(boxes: BoxBatch) -> BoxBatch:
    """Return a box for each single input of ``boxes``."""
    width = boxes.hi - boxes.lo + 1
    ends = np.cumsum(width)
    lo = np.arange(ends[-1]) + np.repeat(boxes.lo - ends + width, width)
    return BoxBatch(np.repeat(boxes.kind, width), lo, lo, np.repeat(boxes.cuts, width))


def _at(a: Interval, chosen: Mask) -> Interval:
    opened = None if a.open is None else a.open[chosen]
    return Interval(a.lo[chosen], a.hi[chosen], open=opened)

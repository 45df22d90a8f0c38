"""Branch and bound: boxes of inputs are evaluated, settled, or split.

A box is a kind of channel and an interval of inputs. Both expressions of a program are evaluated
on it with intervals. Where both results are one number each, or do not meet, the box is settled on
its whole length; other boxes are split, and evaluated input by input once they are small.

Fake quantizers change near the midpoint between two of their output values, so boxes are cut there
first. A cut in the wrong place costs time but cannot make a result wrong.

Two results may be apart on a box on which they vary. Such boxes can be split on as well, up to a
number of them that no step function reaches, so that what differs is known by its values.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from qgraph.numerics.float32 import (
    HIGHEST,
    LOWEST,
    NEGATIVE_ZERO,
    POSITIVE_ZERO,
    Keys,
    from_keys,
    to_keys,
)
from qgraph.proof.functions.expression import Undecidable
from qgraph.proof.functions.interval import Array, Interval, Mask, either, settled
from qgraph.proof.functions.program import Channels, Program

MAX_BOXES = 1 << 27
"""Boxes after which a comparison is given up."""

_BATCH = 1 << 16
_ENUMERATED = 8
_WINDOW = 2
_CUTS = 24
_SAMPLES = 4096
_PATIENCE = 1 << 18
_MOST_REFINED = 1 << 20


class Boxes(NamedTuple):
    """Boxes ``[n]``: the inputs from key ``lo`` to ``hi`` in channels of a kind.

    ``cuts`` counts how often their ancestors were cut at a midpoint.
    """

    kind: Channels
    lo: Keys
    hi: Keys
    cuts: npt.NDArray[np.uint8]

    def at(self, chosen: Mask | slice) -> Boxes:
        """Return some of the boxes."""
        return Boxes(self.kind[chosen], self.lo[chosen], self.hi[chosen], self.cuts[chosen])


class Judge(Protocol):
    """What is to be made of boxes."""

    def settle(self, boxes: Boxes, a: Interval, b: Interval, apart: Mask, done: Mask) -> None:
        """Note boxes where the results do not meet, and others where both are one number."""

    def enumerate(self, boxes: Boxes) -> None:
        """Note single inputs that intervals do not settle: those with NaN on the way."""

    def finished(self) -> Mask | None:
        """Return which kinds of channels need no further boxes; None for none."""


class Search:
    """One run over the finite inputs of all kinds of channels.

    Args:
        program: the two expressions.
        judge: takes what is settled.
        max_boxes: after how many boxes to give up.
        domain: restricts the inputs to those from the first to the second number.
        refines: whether boxes on which the results are apart are split until they do not vary.

    Attributes:
        boxes: how many boxes were evaluated.
    """

    def __init__(
        self,
        program: Program,
        judge: Judge,
        max_boxes: int,
        domain: tuple[float, float] | None = None,
        *,
        refines: bool = False,
    ) -> None:
        self._program = program
        self._judge = judge
        self._max_boxes = max_boxes
        ends = [LOWEST, HIGHEST] if domain is None else to_keys(domain)
        self._low, self._high = (int(end) for end in np.clip(ends, LOWEST, HIGHEST))
        self._wide: list[Boxes] = []
        self._single: list[Boxes] = []
        self._refinable = _MOST_REFINED if refines else 0
        self.boxes = 0

    def run(self) -> None:
        """Settle everything.

        Raises:
            Undecidable: it takes too many boxes, or the judge cannot tell.
        """
        self._push_first()
        hopeful = False
        while self._wide or self._single:
            if not hopeful and self.boxes > _PATIENCE:
                self._estimate()
                hopeful = True
            if self.boxes > self._max_boxes:
                raise Undecidable(f"not settled after {self.boxes} boxes", by_effort=True)
            self._step()
            finished = self._judge.finished()
            if finished is not None and finished.any():
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
                    stack.append(Boxes(kinds, *bounds, np.zeros(len(kinds), np.uint8)))

    def _step(self) -> None:
        """Evaluate a batch of boxes, or of inputs once there are many or no boxes are left."""
        single = not self._wide or sum(len(b.lo) for b in self._single) >= _BATCH
        boxes = _take(self._single if single else self._wide)
        self.boxes += len(boxes.lo)
        x = from_keys(boxes.lo)
        box = Interval(x, x if single else from_keys(boxes.hi), finite=True)
        a, b = self._program.intervals(box, boxes.kind)
        apart, done = _decided(a, b)
        for result in (a, b):
            if result.nan is not None:
                result.lo, result.hi = (
                    _with_nan(end, result.nan) for end in (result.lo, result.hi)
                )
        if self._refinable > 0 and not single:
            varying = apart & ~(settled(a) & settled(b))
            self._refinable -= int(varying.sum())
            apart &= ~varying
        self._judge.settle(boxes, a, b, apart, done)
        rest = ~(apart | done)
        if not rest.any():
            return
        if single:
            self._judge.enumerate(boxes.at(rest))
        else:
            self._split(boxes.at(rest), _at(a, rest), _at(b, rest))

    def _split(self, boxes: Boxes, a: Interval, b: Interval) -> None:
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
        half = np.float32(0.5)
        guess = to_keys(low * half + high * half)
        fresh = cuts < _CUTS
        inside = fresh & (guess - _WINDOW > lo) & (guess + _WINDOW < hi)
        # beside a window that was cut out, what changes is sought in growing distance from it
        below, above = guess <= lo + _WINDOW, guess >= hi - _WINDOW
        reach = 4 * np.abs(guess - np.where(below, lo, hi)) + 2 * _ENUMERATED
        near = fresh & ~inside & (below | above) & (reach < (hi - lo) // 2)
        middle = np.where(near, np.where(below, lo + reach, hi - reach), (lo + hi) >> 1)
        cuts = cuts + (inside | near).astype(np.uint8)
        ends = np.where(inside, guess - _WINDOW - 1, middle)
        starts = np.where(inside, guess + _WINDOW + 1, middle + 1)
        self._wide.append(Boxes(kind, lo, ends, cuts))
        self._wide.append(Boxes(kind, starts, hi, cuts))
        if inside.any():
            window = Boxes(kind, guess - _WINDOW, guess + _WINDOW, cuts)
            self._single.append(_every_input(window.at(inside)))

    def _estimate(self) -> None:
        """Give up early if boxes of a few inputs are seldom settled.

        Raises:
            Undecidable: far too many boxes would be needed.
        """
        kinds = len(self._program.first)
        random = np.random.default_rng(0)
        lo = random.integers(self._low, self._high + 1, _SAMPLES)
        hi = np.minimum(lo + _ENUMERATED - 1, self._high)
        box = Interval(from_keys(lo), from_keys(hi), finite=True)
        a, b = self._program.intervals(box, random.integers(0, kinds, _SAMPLES))
        apart, done = _decided(a, b)
        share = 1 - float((apart | done).mean())
        if share * (self._high - self._low + 1) * kinds > self._max_boxes:
            raise Undecidable(
                f"it is no step function: of {_SAMPLES} samples of {_ENUMERATED} neighbouring "
                f"inputs, {share:.0%} have several values or NaN",
                by_effort=True,
            )


def _decided(a: Interval, b: Interval) -> tuple[Mask, Mask]:
    """Return where two results do not meet, and where else both are one number, or an open zero.

    NaN counts as a number here.
    """
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
        known = [
            ~nan if bad is None else nan | ~bad for nan, bad in ((ours, a.bad), (theirs, b.bad))
        ]
        apart |= (ours != theirs) & known[0] & known[1]
        done |= ours & theirs
    return apart, done


def _with_nan(end: Array, where: Mask) -> Array:
    return np.where(where, np.float32(np.nan), end)


def _take(stack: list[Boxes]) -> Boxes:
    """Remove a batch of boxes from the end of the stack."""
    taken: list[Boxes] = []
    size = 0
    while stack and size < _BATCH:
        top = stack.pop()
        if (room := _BATCH - size) < len(top.lo):
            stack.append(top.at(slice(room, None)))
            top = top.at(slice(room))
        taken.append(top)
        size += len(top.lo)
    return Boxes(*(np.concatenate(column) for column in zip(*taken, strict=True)))


def _every_input(boxes: Boxes) -> Boxes:
    """Return a box for each single input of ``boxes``."""
    width = boxes.hi - boxes.lo + 1
    ends = np.cumsum(width)
    lo = np.arange(ends[-1]) + np.repeat(boxes.lo - ends + width, width)
    return Boxes(np.repeat(boxes.kind, width), lo, lo, np.repeat(boxes.cuts, width))


def _at(a: Interval, chosen: Mask) -> Interval:
    """Return the ends of some elements."""
    opened = None if a.open is None else a.open[chosen]
    return Interval(a.lo[chosen], a.hi[chosen], open=opened)

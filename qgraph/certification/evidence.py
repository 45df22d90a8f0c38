"""The division of all inputs on which two expressions were compared: evidence for a checker."""

from __future__ import annotations

import numpy as np

from qgraph.certification.certificate import Boxes
from qgraph.proof.engine import MAX_BOXES
from qgraph.proof.environment import check_float_environment
from qgraph.proof.expression import Expr
from qgraph.proof.finding import Channels, Mask
from qgraph.proof.interval import Interval
from qgraph.proof.keys import Float32, Keys, from_keys
from qgraph.proof.outcome import Outcome
from qgraph.proof.program import Program
from qgraph.proof.search import Boxes as Searched
from qgraph.proof.search import Search

_MOST_PARTS = 1 << 16
"""So many parts with values of their own are told apart where values differ."""


def boxes(reference: Expr, candidate: Expr) -> tuple[Boxes, ...]:
    """Return how the finite inputs divide into parts with one pair of results each.

    Neighbours of one pair of values are one part, unless the signs of zeros differ on one of them.
    Where values differ and vary, neighbours are one part too if there are too many otherwise.
    Nothing is returned for one function.

    Raises:
        Undecidable: the expressions take too many boxes.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    if reference is candidate:
        return ()
    check_float_environment()
    program = Program(reference, candidate)
    for refines in (True, False):
        kept = _Kept(program)
        with np.errstate(all="ignore"):
            Search(program, kept, MAX_BOXES, refines=refines).run()
        found = kept.boxes(joined=not refines)
        if sum(len(part.starts) for part in found) <= _MOST_PARTS:
            break
    return found


class _Kept:
    """The judge of a search that keeps every settled box."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._columns: list[tuple[Channels, Keys, Float32, Float32, Mask, Mask]] = []

    def settle(self, boxes: Searched, a: Interval, b: Interval, apart: Mask, done: Mask) -> None:
        signs = np.asarray(a.lo.view(np.int32) != b.lo.view(np.int32))
        for result in (a, b):
            if result.open is not None:
                signs |= result.open
        signs &= (a.lo == 0) & (b.lo == 0)
        for mask, differs in ((done, False), (apart, True)):
            some = boxes.at(mask)
            values = a.lo[mask], b.lo[mask]
            flags = np.full(len(some.lo), differs), signs[mask] & (not differs)
            self._columns.append((some.kind, some.lo, *values, *flags))

    def enumerate(self, boxes: Searched) -> None:
        found = Outcome.of(self._program, from_keys(boxes.lo), boxes.kind)
        values = found.reference, found.candidate
        self._columns.append((boxes.kind, boxes.lo, *values, found.differ, found.zero_sign))

    def finished(self) -> None:
        """Return None: all inputs are covered."""

    def boxes(self, *, joined: bool) -> tuple[Boxes, ...]:
        """Return what was kept, joined where neighbours have equal values.

        Args:
            joined: whether neighbours on which values differ are one part whatever they are.
        """
        columns = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        kind, lo, a, b, differs, signs = columns
        order = np.lexsort((lo, kind))
        kind, lo, a, b, differs, signs = (
            column[order] for column in (kind, lo, a, b, differs, signs)
        )
        new = differs[1:] != differs[:-1]
        for side in (a, b):
            both = np.isnan(side[1:]) & np.isnan(side[:-1])
            varies = (side[1:] != side[:-1]) & ~both
            new |= varies & ~(differs[1:] & joined)
        starts = np.ones(len(lo), np.bool_)
        starts[1:] = new | (kind[1:] != kind[:-1]) | (signs[1:] != signs[:-1])
        kind, lo, differs, signs = kind[starts], lo[starts], differs[starts], signs[starts]
        return tuple(
            Boxes(
                int(first),
                int(count),
                *(
                    tuple(column.tolist())
                    for column in (
                        lo[own],
                        np.flatnonzero(differs[own]),
                        np.flatnonzero(signs[own]),
                    )
                ),
            )
            for place, (first, count) in enumerate(
                zip(self._program.first, self._program.count, strict=True)
            )
            if (own := kind == place).any()
        )

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
from qgraph.proof.program import Program
from qgraph.proof.search import Boxes as Searched
from qgraph.proof.search import Search


def boxes(reference: Expr, candidate: Expr) -> tuple[Boxes, ...]:
    """Return how the finite inputs divide into parts with one pair of results each.

    Neighbours of one pair of values are one part; zeros of both signs are one value.

    Raises:
        Undecidable: the expressions take too many boxes.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    check_float_environment()
    program = Program(reference, candidate)
    kept = _Kept(program)
    with np.errstate(all="ignore"):
        Search(program, kept, MAX_BOXES).run()
    return kept.boxes()


class _Kept:
    """The judge of a search that keeps every settled box."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._columns: list[tuple[Channels, Keys, Float32, Float32, Mask]] = []

    def settle(self, boxes: Searched, a: Interval, b: Interval, apart: Mask, done: Mask) -> None:
        for mask, differs in ((done, False), (apart, True)):
            some = boxes.at(mask)
            values = a.lo[mask], b.lo[mask]
            self._columns.append((some.kind, some.lo, *values, np.full(len(some.lo), differs)))

    def enumerate(self, boxes: Searched) -> None:
        a, b = self._program.points(from_keys(boxes.lo), boxes.kind, zero=True)
        same = (a.values == b.values) | (np.isnan(a.values) & np.isnan(b.values))
        self._columns.append((boxes.kind, boxes.lo, a.values, b.values, ~same))

    def finished(self) -> None:
        """Return None: all inputs are covered."""

    def boxes(self) -> tuple[Boxes, ...]:
        """Return what was kept, joined where neighbours have equal values."""
        columns = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        kind, lo, a, b, differs = columns
        order = np.lexsort((lo, kind))
        kind, lo, a, b, differs = kind[order], lo[order], a[order], b[order], differs[order]
        starts = np.ones(len(lo), np.bool_)
        starts[1:] = kind[1:] != kind[:-1]
        for side in (a, b):
            both = np.isnan(side[1:]) & np.isnan(side[:-1])
            starts[1:] |= (side[1:] != side[:-1]) & ~both
        kind, lo, differs = kind[starts], lo[starts], differs[starts]
        found = []
        for place, (first, count) in enumerate(
            zip(self._program.first, self._program.count, strict=True)
        ):
            own = kind == place
            found.append(
                Boxes(
                    int(first),
                    int(count),
                    tuple(lo[own].tolist()),
                    tuple(np.flatnonzero(differs[own]).tolist()),
                )
            )
        return tuple(found)

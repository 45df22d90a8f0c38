"""How the inputs divide into stretches on which expressions have one value each.

Of one function that are its plateaus. Of two functions it is the evidence of a comparison, which a
checker evaluates again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qgraph.certificate import Boxes as Listed
from qgraph.numerics import Float32
from qgraph.numerics.float32 import Keys, check_float_environment, from_keys
from qgraph.proof.functions.expression import Expr
from qgraph.proof.functions.finding import Mask, PointResults
from qgraph.proof.functions.interval import Interval
from qgraph.proof.functions.program import Channels, Program
from qgraph.proof.functions.search import MAX_BOXES, Boxes, Search

_MOST_PARTS = 1 << 16
"""Up to this many parts, stretches of inputs that differ are divided by their values."""


@dataclass(frozen=True)
class Plateaus:
    """Stretches ``[n]`` of inputs with one value, or NaN, in the order of channels and inputs.

    Attributes:
        channel: the first channel with these constants.
        lo, hi: keys of the first and the last input.
        value: the value there; zeros of both signs are one value.
    """

    channel: Channels
    lo: Keys
    hi: Keys
    value: Float32


def plateaus(root: Expr, *, max_boxes: int) -> Plateaus:
    """Return the plateaus of ``root`` over all finite inputs.

    Raises:
        Undecidable: it is no step function, or one with too many steps.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    program = Program(root, root)
    kind, lo, hi, value, *_ = _divide(program, max_boxes, refines=False)
    starts = np.ones(len(lo), np.bool_)
    starts[1:] = (kind[1:] != kind[:-1]) | _varies(value)
    return Plateaus(program.first[kind[starts]], lo[starts], hi[np.roll(starts, -1)], value[starts])


def boxes(reference: Expr, candidate: Expr) -> tuple[Listed, ...]:
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
    program = Program(reference, candidate)
    for refines in (True, False):
        kind, lo, _, a, b, differs, signs = _divide(program, MAX_BOXES, refines=refines)
        split = (_varies(a) | _varies(b)) & (refines | ~differs[1:])
        starts = np.ones(len(lo), np.bool_)
        for column in (kind, differs, signs):
            split |= column[1:] != column[:-1]
        starts[1:] = split
        if np.count_nonzero(starts) <= _MOST_PARTS:
            break
    kind, lo, differs, signs = kind[starts], lo[starts], differs[starts], signs[starts]
    return tuple(
        Listed(
            int(first),
            int(count),
            tuple(lo[own].tolist()),
            tuple(np.flatnonzero(differs[own]).tolist()),
            tuple(np.flatnonzero(signs[own]).tolist()),
        )
        for number, (first, count) in enumerate(zip(program.first, program.count, strict=True))
        if (own := kind == number).any()
    )


_Columns: TypeAlias = tuple[Channels, Keys, Keys, Float32, Float32, Mask, Mask]


def _divide(program: Program, max_boxes: int, *, refines: bool) -> _Columns:
    """Return settled boxes in order: kinds, ends, both values, whether these or signs differ."""
    check_float_environment()
    settled = _Settled(program)
    with np.errstate(all="ignore"):
        Search(program, settled, max_boxes, refines=refines).run()
    check_float_environment()
    columns = [np.concatenate(column) for column in zip(*settled.columns, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    kind, lo, hi, a, b, differs, signs = (column[order] for column in columns)
    return kind, lo, hi, a, b, differs, signs


def _varies(values: Float32) -> Mask:
    """Return where a value is not that of the stretch before."""
    both = np.isnan(values[1:]) & np.isnan(values[:-1])
    return np.asarray((values[1:] != values[:-1]) & ~both)


class _Settled:
    """The judge of a search that keeps every settled box."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.columns: list[_Columns] = []

    def settle(self, boxes: Boxes, a: Interval, b: Interval, apart: Mask, done: Mask) -> None:
        signs = np.asarray(a.lo.view(np.int32) != b.lo.view(np.int32))
        for result in (a, b):
            if result.open is not None:
                signs |= result.open
        signs &= (a.lo == 0) & (b.lo == 0) & ~apart
        either = apart | done
        some = boxes.at(either)
        values = a.lo[either], b.lo[either]
        self.columns.append((some.kind, some.lo, some.hi, *values, apart[either], signs[either]))

    def enumerate(self, boxes: Boxes) -> None:
        found = PointResults.of(self._program, from_keys(boxes.lo), boxes.kind)
        columns = found.reference, found.candidate, found.differ, found.zero_sign
        self.columns.append((boxes.kind, boxes.lo, boxes.hi, *columns))

    def finished(self) -> None:
        """Return None: all inputs are covered."""

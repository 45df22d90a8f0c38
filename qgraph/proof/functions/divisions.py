"""Divisions of all inputs by what functions return.

The boxes of a search are joined to the plateaus of one function. Those of two functions are the
evidence of a comparison, which the checker evaluates again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qgraph.numerics import Float32, Mask
from qgraph.numerics.float32 import Keys, check_float_environment
from qgraph.proof.functions.expression import Expr
from qgraph.proof.functions.program import Channels, PairProgram, PointResults
from qgraph.proof.functions.search import MAX_BOXES, BoxSearch
from qgraph.records import dataclass

if TYPE_CHECKING:
    from qgraph.conditions import Division

_MOST_PARTS = 1 << 16
"""Maximum number of parts into which differing inputs are divided by their values."""


@dataclass(frozen=True)
class Plateaus:
    """Intervals ``[n]`` of inputs with one value, or NaN, in the order of channels and inputs.

    The channel is the first one with these constants; ends are keys; -0 and +0 are one value.
    """

    channel: Channels
    lo: Keys
    hi: Keys
    value: Float32


def plateaus(root: Expr, *, max_boxes: int) -> Plateaus:
    """Return the plateaus of ``root`` over all finite inputs.

    Raises Undecidable if it is not a step function, or has too many steps; UnsupportedError if this
    thread does not follow IEEE 754.
    """
    program = PairProgram(root, root)
    kind, lo, hi, (value, *_) = _divide(program, max_boxes, refines=False)
    starts = np.ones(len(lo), np.bool_)
    starts[1:] = (kind[1:] != kind[:-1]) | _varies(value)
    return Plateaus(program.first[kind[starts]], lo[starts], hi[np.roll(starts, -1)], value[starts])


def boxes(reference: Expr, candidate: Expr) -> tuple[Division, ...]:
    """Return a division of the finite inputs into parts with one pair of results each.

    Neighbouring boxes with equal results form one part, unless zeros of different signs occur on
    only one of them. If there would be too many parts, neighbours with different and varying
    results form one part too. If both expressions are the same, the result is empty. Raises
    Undecidable if too many boxes are needed, UnsupportedError if this thread does not follow IEEE
    754.
    """
    if reference is candidate:
        return ()
    from qgraph.conditions import Division

    program = PairProgram(reference, candidate)
    for refines in (True, False):
        kind, lo, _, (a, b, differs, signs, _) = _divide(program, MAX_BOXES, refines=refines)
        split = (_varies(a) | _varies(b)) & (refines | ~differs[1:])
        starts = np.ones(len(lo), np.bool_)
        for column in (kind, differs, signs):
            split |= column[1:] != column[:-1]
        starts[1:] = split
        if np.count_nonzero(starts) <= _MOST_PARTS:
            break
    kind, lo, differs, signs = kind[starts], lo[starts], differs[starts], signs[starts]
    return tuple(
        Division(
            int(first),
            int(count),
            tuple(lo[own].tolist()),
            tuple(np.flatnonzero(differs[own]).tolist()),
            tuple(np.flatnonzero(signs[own]).tolist()),
        )
        for number, (first, count) in enumerate(zip(program.first, program.count, strict=True))
        if (own := kind == number).any()
    )


def _divide(
    program: PairProgram, max_boxes: int, *, refines: bool
) -> tuple[Channels, Keys, Keys, PointResults]:
    """Return settled boxes in order: kinds, ends and results."""
    check_float_environment()
    parts = []
    with np.errstate(all="ignore"):
        search = BoxSearch(program, max_boxes, refines=refines)
        for boxes, results, settled in search.settled():
            parts.append([column[settled] for column in (*boxes[:3], *results)])
    check_float_environment()
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    kind, lo, hi, *compared = (column[order] for column in columns)
    return kind, lo, hi, PointResults(*compared)


def _varies(values: Float32) -> Mask:
    """Return where a value differs from the one before."""
    both = np.isnan(values[1:]) & np.isnan(values[:-1])
    return np.asarray((values[1:] != values[:-1]) & ~both)

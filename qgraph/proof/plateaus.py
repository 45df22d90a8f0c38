"""The steps of a function: on which inputs it has which value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qgraph.proof.environment import check_float_environment
from qgraph.proof.expression import Expr
from qgraph.proof.finding import Channels
from qgraph.proof.interval import Interval, Mask
from qgraph.proof.keys import Float32, Keys, from_keys
from qgraph.proof.program import Program
from qgraph.proof.search import Boxes, Search


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
    check_float_environment()
    program = Program(root, root)
    judge = _Gathering(program)
    with np.errstate(all="ignore"):
        Search(program, judge, max_boxes).run()
    check_float_environment()
    return judge.plateaus()


class _Gathering:
    """The judge of a search that keeps every settled box."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kept: list[tuple[Channels, Keys, Keys, Float32]] = []

    def settle(self, boxes: Boxes, a: Interval, b: Interval, apart: Mask, done: Mask) -> None:
        some = boxes.at(done)
        self._kept.append((some.kind, some.lo, some.hi, a.lo[done]))

    def enumerate(self, boxes: Boxes) -> None:
        points, _ = self._program.points(from_keys(boxes.lo), boxes.kind, zero=True)
        self._kept.append((boxes.kind, boxes.lo, boxes.hi, points.values))

    def finished(self) -> None:
        return None

    def plateaus(self) -> Plateaus:
        kind, lo, hi, value = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        order = np.lexsort((lo, kind))
        kind, lo, hi, value = kind[order], lo[order], hi[order], value[order]
        starts = np.ones(len(lo), np.bool_)
        same = (value[1:] == value[:-1]) | (np.isnan(value[1:]) & np.isnan(value[:-1]))
        starts[1:] = (kind[1:] != kind[:-1]) | ~same
        ends = np.roll(starts, -1)
        return Plateaus(self._program.first[kind[starts]], lo[starts], hi[ends], value[starts])

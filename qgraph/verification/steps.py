"""How far two step functions are apart, in steps of the first one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Exactness
from qgraph.verification.bounds import numbers
from qgraph.verification.box_check import HIGHEST, LOWEST, Boxes, Functions

Numbers = npt.NDArray[np.float64]

_SAME_CODE = 2.0**-8
_ONE_STEP = 1.5
_NARROW = 2.0**-7


@dataclass(frozen=True)
class Measured:
    """The rung below equal values, and the largest difference in steps; None where not finite."""

    rung: Exactness
    largest_steps: float | None


def grade(both: Functions, boxes: Boxes) -> Measured | None:
    """Return how far values are apart on boxes that hold; None where a value is not constant.

    The step and the width of a plateau are the medians over it and two plateaus on either side. Up
    to 2**-8 steps are no difference of codes; up to 1.5 steps, on stretches of up to 2**-7 widths,
    are a moved threshold.
    """
    wrong = boxes.at(boxes.differing)
    if not (both.alone(0).hold_values(wrong) and both.alone(1).hold_values(wrong)):
        return None
    order = np.lexsort((boxes.lo, boxes.channel))
    boxes = boxes.at(order)
    found = both.at(boxes.channel, numbers(boxes.lo))
    a, b = found.reference.astype(np.float64), found.candidate.astype(np.float64)
    with np.errstate(all="ignore"):
        step, width, plateau = _measures(boxes, a)
        size = _width(boxes.lo, boxes.hi)
        gap = (np.abs(a - b) / step[plateau])[boxes.differing]
        wide = ~(size <= _NARROW * width[plateau])[boxes.differing]
        rung = Exactness.CODES
        beyond = ~(gap <= _SAME_CODE)
        if beyond.any():
            moved = not (beyond & (wide | ~(gap <= _ONE_STEP))).any()
            rung = Exactness.NEAR if moved else Exactness.DIFFERENT
        for x, key in ((-np.inf, LOWEST), (np.inf, HIGHEST)):
            outer = np.flatnonzero(boxes.lo == key if key == LOWEST else boxes.hi == key)
            at = both.at(boxes.channel[outer], np.full(len(outer), x, np.float32))
            far = np.abs(at.reference.astype(np.float64) - at.candidate) / step[plateau[outer]]
            if ((at.differ | at.left_open) & ~(far <= _SAME_CODE)).any():
                rung = Exactness.DIFFERENT
    largest = float(gap.max()) if gap.size else np.nan
    return Measured(rung, largest if np.isfinite(largest) else None)


def _measures(boxes: Boxes, value: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.int64]]:
    """Return step and width around each plateau of a function, and the plateau of each box."""
    new = np.ones(len(value), np.bool_)
    same = (value[1:] == value[:-1]) | (np.isnan(value[1:]) & np.isnan(value[:-1]))
    new[1:] = ~same | (boxes.channel[1:] != boxes.channel[:-1])
    channel, level, lo = boxes.channel[new], value[new], boxes.lo[new]
    hi = boxes.hi[np.roll(new, -1)]
    step = np.full(len(level), np.nan)
    inside = channel[1:] == channel[:-1]
    step[1:] = np.where(inside, np.abs(level[1:] - level[:-1]), np.nan)
    width = np.where((lo == LOWEST) | (hi == HIGHEST), np.nan, _width(lo, hi))
    # the steps beside plateau i are those to i and to i + 1
    near_step, near_width = _medians(step, channel, -1, 2), _medians(width, channel, -2, 2)
    return near_step, np.where(np.isnan(near_width), near_step, near_width), np.cumsum(new) - 1


def _medians(values: Numbers, channel: npt.NDArray[np.int64], first: int, last: int) -> Numbers:
    """Return the median of what is known from ``first`` to ``last`` places on, by channel."""
    padded = np.pad(values, (-first, last), constant_values=np.nan)
    owner = np.pad(channel, (-first, last), constant_values=-1)
    columns = []
    for shift in range(last - first + 1):
        part = slice(shift, shift + len(values))
        columns.append(np.where(owner[part] == channel, padded[part], np.nan))
    table = np.sort(np.stack(columns), axis=0)  # NaN last
    count = np.maximum((~np.isnan(table)).sum(axis=0) - 1, 0)
    here = np.arange(len(values))
    return np.asarray((table[count // 2, here] + table[(count + 1) // 2, here]) / 2)


def _width(lo: npt.NDArray[np.int64], hi: npt.NDArray[np.int64]) -> Numbers:
    """Return the distance from the first input to the one after the last."""
    return np.asarray(numbers(hi + 1).astype(np.float64) - numbers(lo).astype(np.float64))

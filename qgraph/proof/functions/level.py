"""The level of exactness of a finding, measured in steps of the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Exactness
from qgraph.numerics import Float64, Mask
from qgraph.numerics.float32 import HIGHEST, LOWEST, from_keys, to_keys
from qgraph.proof.functions.divisions import Plateaus, plateaus
from qgraph.proof.functions.expression import Expr
from qgraph.proof.functions.finding import PairFinding, Runs
from qgraph.proof.functions.pair import FunctionPair
from qgraph.proof.functions.program import PairProgram
from qgraph.proof.functions.search import MAX_BOXES
from qgraph.reasons import Undecidable
from qgraph.records import dataclass

SAME_LEVEL = 2.0**-8
"""Largest difference of values of the same code, in steps."""
ONE_STEP = 1.5
"""Largest difference of values of neighbouring codes, in steps."""
NARROW = 2.0**-7
"""Longest interval of inputs that counts as a moved threshold, in widths of a plateau."""

_NEIGHBOURS = 2

_BOXES = 1 << 22
_BOXES_OF_CHANNEL = 1 << 14
"""Functions that need more boxes count as functions without steps."""


@dataclass(frozen=True)
class Graded:
    """The level of a finding, and its differences in steps of the reference.

    Attributes:
        level: the highest level that it proves; None if it is undecided.
        largest: the largest difference in steps. None if no finite input differs, a difference is
            not finite, the reference is not a step function, or differing inputs were counted one
            by one.
        codes: number of inputs that give another code; None if not known.
        noise: the largest difference at the other inputs, in units in the last place; likewise.
        noise_steps: the same in steps.
    """

    level: Exactness | None
    largest: float | None = None
    codes: int | None = None
    noise: int | None = None
    noise_steps: float | None = None


def grade(finding: PairFinding, pair: FunctionPair) -> Graded:
    """Return the highest level that a finding proves, and its differences in steps.

    ==========  ====================================================================================
    bits        nothing differs, including infinity, NaN and the signs of zeros
    values      no value differs, including infinity
    codes       every difference is at most 2**-8 steps
    near        every larger difference is at most 1.5 steps, on an interval of inputs of at most
                2**-7 plateaus; there is none at infinity
    different   otherwise; also if the reference is not a step function, or if differing inputs
                were counted one by one
    ==========  ====================================================================================

    Step and width are medians over the plateau of the input and two plateaus on either side. A step
    is the difference of neighbouring values of the reference. The two outer plateaus, which reach
    to the largest floats, have no width. If there are no others, the step is used as the width.

    Args:
        finding: the finding of the comparison.
        pair: the functions; the steps of the reference are the unit.
    """
    if finding.undecided is not None:
        return Graded(None)
    if not finding.differing and not finding.infinity_differs:
        signs = finding.zero_sign or finding.infinity_sign_differs
        return Graded(Exactness.VALUES if signs or finding.nan_differs else Exactness.BITS)
    steps = None if finding.enumerated else _steps(pair.reference)
    if steps is None:
        return Graded(Exactness.DIFFERENT)
    with np.errstate(all="ignore"):
        return _measure(finding, steps)


def _steps(reference: Expr) -> Plateaus | None:
    try:
        kinds = len(PairProgram(reference, reference).first)
        most = min(MAX_BOXES, _BOXES + _BOXES_OF_CHANNEL * kinds)
        return plateaus(reference, max_boxes=most)
    except Undecidable:
        return None


def _measure(finding: PairFinding, steps: Plateaus) -> Graded:
    step, width = _local_measures(steps)
    level, largest = Exactness.CODES, None
    codes, noise, noise_steps = 0, None, None
    for runs in (finding.runs, finding.at_infinity):
        at = _plateau_of(runs, steps)
        gap = _gap(runs, step[at])
        beyond = ~(gap <= SAME_LEVEL)
        if runs is finding.runs and len(runs):
            largest = float(gap.max()) if np.isfinite(gap.max()) else None
            codes, noise = _counted(finding, beyond)
            noise_steps = float(gap[~beyond].max()) if noise is not None else None
        if not beyond.any():
            continue
        wide = ~(_width(runs.lo, runs.hi) <= NARROW * width[at])
        if runs is finding.at_infinity or (beyond & (wide | ~(gap <= ONE_STEP))).any():
            level = Exactness.DIFFERENT
        level = min(level, Exactness.NEAR)
    return Graded(level, largest, codes, noise, noise_steps)


def other_codes(runs: Runs, reference: Expr) -> Mask:
    """Return ``[n]`` whether each run gives another code; true for all if it is not known."""
    steps = _steps(reference) if len(runs) else None
    if steps is None:
        return np.ones(len(runs), np.bool_)
    with np.errstate(all="ignore"):
        return ~(_gap(runs, _local_measures(steps)[0][_plateau_of(runs, steps)]) <= SAME_LEVEL)


def _gap(runs: Runs, step: Float64) -> Float64:
    return np.asarray(np.abs(runs.reference.astype(np.float64) - runs.candidate) / step)


def _counted(finding: PairFinding, beyond: Mask) -> tuple[int, int | None]:
    """Return the number of inputs with another code, and the largest other difference in ulps."""
    runs = finding.runs
    channels = np.array([channel for channel, _ in finding.by_channel], np.int64)
    order = np.argsort(channels)
    copies = np.array(finding.alike, np.int64)[order]
    copies = copies[np.searchsorted(channels[order], runs.channel)]
    codes = int(((runs.hi - runs.lo + 1) * copies)[beyond].sum())
    ulps = np.abs(to_keys(runs.reference) - to_keys(runs.candidate))[~beyond]
    return codes, int(ulps.max()) if len(ulps) else None


def _plateau_of(runs: Runs, steps: Plateaus) -> npt.NDArray[np.int64]:
    starts = (steps.channel << 33) + steps.lo
    start = (runs.channel << 33) + np.clip(runs.lo, LOWEST, HIGHEST)
    return np.asarray(np.searchsorted(starts, start, "right") - 1)


def _local_measures(steps: Plateaus) -> tuple[Float64, Float64]:
    """Return the typical step and width around each plateau."""
    value = steps.value.astype(np.float64)
    step = np.full(len(value), np.nan)
    step[1:] = np.abs(value[1:] - value[:-1])
    step[1:][steps.channel[1:] != steps.channel[:-1]] = np.nan
    width = _width(steps.lo, steps.hi)
    width[(steps.lo == LOWEST) | (steps.hi == HIGHEST)] = np.nan
    # step i lies before plateau i, so plateau i lies between the steps i and i + 1
    typical_step = _running_median(step, steps.channel, -_NEIGHBOURS + 1, _NEIGHBOURS)
    typical_width = _running_median(width, steps.channel, -_NEIGHBOURS, _NEIGHBOURS)
    return typical_step, np.where(np.isnan(typical_width), typical_step, typical_width)


def _running_median(
    values: Float64, channel: npt.NDArray[np.int64], first: int, last: int
) -> Float64:
    """Return running medians over the offsets ``first`` to ``last``, within each channel."""
    here = np.arange(len(values))
    columns = []
    for shift in range(first, last + 1):
        index = np.clip(here + shift, 0, len(values) - 1)
        outside = (index != here + shift) | (channel[index] != channel)
        columns.append(np.where(outside, np.nan, values[index]))
    table = np.sort(np.stack(columns), axis=0)  # NaN last
    last_known = np.maximum((~np.isnan(table)).sum(axis=0) - 1, 0)
    low, high = table[last_known // 2, here], table[(last_known + 1) // 2, here]
    return np.asarray((low + high) / 2)


def _width(lo: npt.NDArray[np.int64], hi: npt.NDArray[np.int64]) -> Float64:
    """Return the distance from the first input to the input after the last one."""
    ends = from_keys(hi + 1).astype(np.float64)
    return np.asarray(ends - from_keys(lo).astype(np.float64))

"""The level of exactness of a finding, measured in steps of the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Exactness
from qgraph.numerics.float32 import HIGHEST, LOWEST, from_keys
from qgraph.proof.functions.expression import Expr, Undecidable
from qgraph.proof.functions.finding import PairFinding, Runs
from qgraph.proof.functions.program import PairProgram
from qgraph.proof.functions.search import MAX_BOXES, Plateaus, plateaus

SAME_LEVEL = 2.0**-8
"""Up to this share of a step, two values belong to the same code."""
ONE_STEP = 1.5
"""Beyond this many steps, two values are no longer those of neighbouring codes."""
NARROW = 2.0**-7
"""Up to this share of the width of a plateau, a stretch of inputs is a moved threshold."""

_NEIGHBOURS = 2

_BOXES = 1 << 22
_BOXES_OF_CHANNEL = 1 << 14
"""Functions of more boxes count as functions without steps."""

Float64 = npt.NDArray[np.float64]


def grade(finding: PairFinding, reference: Expr) -> tuple[Exactness | None, float | None]:
    """Return the highest level that a finding shows, and the largest difference in steps.

    ==========  ====================================================================================
    bits        nothing differs, at infinity, at NaN and in the signs of zeros neither
    values      no value differs, at infinity neither
    codes       every difference is at most 2**-8 steps
    near        the differences larger than that are at most 1.5 steps, their stretches of inputs
                are at most 2**-7 plateaus wide, and there are none at infinity
    different   otherwise, where the reference is no step function, and where inputs that differ
                were counted one by one
    ==========  ====================================================================================

    Step and width are those of ``reference`` around the input: the medians over the plateau of the
    input and two on either side, where a step is the difference of neighbouring values, and the two
    plateaus that reach to the largest floats have no width. Without any width (two plateaus), the
    step serves as width.

    Args:
        finding: of a comparison with ``reference``.
        reference: the function whose steps are the measure.

    Returns: None for the level if the finding is undecided; None for the difference if no finite
        input differs, if a difference is not finite, and if nothing measures it: the reference is
        no step function, or inputs that differ were counted one by one.
    """
    if finding.undecided is not None:
        return None, None
    if not finding.differing and not finding.infinity_differs:
        signs = finding.zero_sign or finding.infinity_sign_differs
        return (Exactness.VALUES if signs or finding.nan_differs else Exactness.BITS), None
    steps = None if finding.enumerated else _steps(reference)
    if steps is None:
        return Exactness.DIFFERENT, None
    with np.errstate(all="ignore"):
        return _measure(finding, steps)


def _steps(reference: Expr) -> Plateaus | None:
    """Return the steps of a function; None if it has none, or too many."""
    try:
        kinds = len(PairProgram(reference, reference).first)
        most = min(MAX_BOXES, _BOXES + _BOXES_OF_CHANNEL * kinds)
        return plateaus(reference, max_boxes=most)
    except Undecidable:
        return None


def _measure(finding: PairFinding, steps: Plateaus) -> tuple[Exactness, float | None]:
    step, width = _local_measures(steps)
    level, largest = Exactness.CODES, None
    for runs in (finding.runs, finding.at_infinity):
        at = _plateau_of(runs, steps)
        gap = np.abs(runs.reference.astype(np.float64) - runs.candidate) / step[at]
        if runs is finding.runs and len(runs) and np.isfinite(gap.max()):
            largest = float(gap.max())
        beyond = ~(gap <= SAME_LEVEL)
        if not beyond.any():
            continue
        wide = ~(_width(runs.lo, runs.hi) <= NARROW * width[at])
        if runs is finding.at_infinity or (beyond & (wide | ~(gap <= ONE_STEP))).any():
            level = Exactness.DIFFERENT
        level = min(level, Exactness.NEAR)
    return level, largest


def _plateau_of(runs: Runs, steps: Plateaus) -> npt.NDArray[np.int64]:
    """Return the plateau in which each run starts."""
    place = (steps.channel << 33) + steps.lo
    start = (runs.channel << 33) + np.clip(runs.lo, LOWEST, HIGHEST)
    return np.asarray(np.searchsorted(place, start, "right") - 1)


def _local_measures(steps: Plateaus) -> tuple[Float64, Float64]:
    """Return the typical step and width around each plateau."""
    value = steps.value.astype(np.float64)
    step = np.full(len(value), np.nan)
    step[1:] = np.abs(value[1:] - value[:-1])
    step[1:][steps.channel[1:] != steps.channel[:-1]] = np.nan
    width = _width(steps.lo, steps.hi)
    width[(steps.lo == LOWEST) | (steps.hi == HIGHEST)] = np.nan
    # step i leads to plateau i, so plateau i has the steps i and i + 1 beside it
    typical_step = _running_median(step, steps.channel, -_NEIGHBOURS + 1, _NEIGHBOURS)
    typical_width = _running_median(width, steps.channel, -_NEIGHBOURS, _NEIGHBOURS)
    return typical_step, np.where(np.isnan(typical_width), typical_step, typical_width)


def _running_median(
    values: Float64, channel: npt.NDArray[np.int64], first: int, last: int
) -> Float64:
    """Return medians over the places ``first`` to ``last`` from each one, within its channel."""
    here = np.arange(len(values))
    columns = []
    for shift in range(first, last + 1):
        place = np.clip(here + shift, 0, len(values) - 1)
        outside = (place != here + shift) | (channel[place] != channel)
        columns.append(np.where(outside, np.nan, values[place]))
    table = np.sort(np.stack(columns), axis=0)  # NaN last
    last_known = np.maximum((~np.isnan(table)).sum(axis=0) - 1, 0)
    low, high = table[last_known // 2, here], table[(last_known + 1) // 2, here]
    return np.asarray((low + high) / 2)


def _width(lo: npt.NDArray[np.int64], hi: npt.NDArray[np.int64]) -> Float64:
    """Return the distance from the first input to the one after the last."""
    ends = from_keys(hi + 1).astype(np.float64)
    return np.asarray(ends - from_keys(lo).astype(np.float64))

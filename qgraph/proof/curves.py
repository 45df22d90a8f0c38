"""Compute the data for pictures of one quantizer, or of two that are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Float32
from qgraph.numerics.float32 import HIGHEST, LOWEST, from_keys, to_keys
from qgraph.proof.functions.decide import decide
from qgraph.proof.functions.divisions import Plateaus, plateaus
from qgraph.proof.functions.expression import TABLE, Builder, Expr, evaluate, known, rebuilt
from qgraph.proof.functions.finding import Runs
from qgraph.proof.functions.level import grade, other_codes
from qgraph.proof.functions.pair import FunctionPair
from qgraph.reasons import Undecidable

_MAX_BOXES = 1 << 20
_MAX_STEPS = 2048
"""Maximum number of steps that can be distinguished in a picture."""

_SAMPLES = 513
_MARGIN = 0.08
_FAR = 1e30
_FEW_FLOATS = 4096
_SHOWN_FLOATS = 65
_SHOWN_RUNS = 512


def channels(*functions: Expr) -> int:
    """Return the number of channels to which the parameters of functions broadcast."""
    return math.prod(np.broadcast_shapes(*(function.shape for function in functions)))


def in_channel(functions: Sequence[Expr], channel: int) -> list[Expr]:
    """Return functions with the parameters of one channel, as expressions of one builder.

    ``channel`` is a flat index into the shape that all their constants broadcast to.
    """
    shape = np.broadcast_shapes(*(function.shape for function in functions))
    return rebuilt(
        functions,
        Builder(),
        lambda e: known(e) if e.op == TABLE else np.broadcast_to(known(e), shape).flat[channel],
    )


def staircase(
    functions: Sequence[Expr], labels: Sequence[str], channel: int = 0, near: float | None = None
) -> dict[str, Any]:
    """Return the data for a picture of one quantizer, or of two that are compared, for JSON.

    ``functions`` are one, or a reference and a candidate. ``channel`` is the flat index of the
    channel whose parameters are used, ``near`` a differing input to enlarge; None for the one with
    the largest difference.

    Returns:
        ``channel``, ``channels``, ``labels``; ``curves`` over the whole range; and of two also
        ``differing``: how many inputs, ``places``: first and last of each stretch of them, and
        ``near``: the neighbourhood of one, None where nothing differs.
    """
    number = channels(*functions)
    alone = in_channel(functions, channel)
    steps = [_plateaus(function) for function in alone]
    low, high = _range(steps, near)
    document: dict[str, Any] = {
        "channel": channel,
        "channels": number,
        "labels": list(labels),
        "curves": [
            _curve(function, some, low, high) for function, some in zip(alone, steps, strict=True)
        ],
    }
    if len(alone) == 2:
        document |= _differences(alone[0], alone[1], near, (low, high))
    return document


def _differences(
    reference: Expr, candidate: Expr, near: float | None, ends: tuple[float, float]
) -> dict[str, Any]:
    finding = decide(reference, candidate, max_boxes=_MAX_BOXES)
    runs, pair = finding.runs, FunctionPair(reference, candidate)
    codes = other_codes(runs, reference)
    # first those that give another code, then large ones
    shown = np.sort(np.lexsort((runs.lo - runs.hi, ~codes))[:_SHOWN_RUNS])
    stretches = zip(*(from_keys(keys[shown]).tolist() for keys in (runs.lo, runs.hi)), strict=True)
    stretch = _stretch(reference, candidate, runs, near, ends)
    return {
        "differing": None if finding.undecided else finding.differing,
        "differing_codes": None if finding.enumerated else grade(finding, pair).codes,
        "places": [list(pair) for pair in stretches],
        "place_codes": codes[shown].tolist(),
        "near": None if stretch is None else _around(reference, candidate, stretch, ends),
    }


def _stretch(
    reference: Expr, candidate: Expr, runs: Runs, near: float | None, ends: tuple[float, float]
) -> tuple[int, int] | None:
    """Return the keys of the interval of differing inputs to enlarge; None if there is none.

    It contains ``near``, or else has the largest difference.
    """
    low, high = to_keys(np.array(ends, np.float32)).tolist()
    seen = np.flatnonzero((runs.hi >= low) & (runs.lo <= high))
    if near is not None:
        (key,) = to_keys([near]).tolist()
        around = seen[(runs.lo[seen] <= key) & (key <= runs.hi[seen])]
        seen = around if len(around) else seen
        if not len(seen) and low <= key <= high:
            # if no intervals were found, one differing input may be known
            x = np.array([near], np.float32)
            a, b = (_values(function, x) for function in (reference, candidate))
            return (key, key) if (a != b).any() else None
    if not len(seen):
        return None
    with np.errstate(all="ignore"):
        gaps = np.abs(runs.reference[seen].astype(np.float64) - runs.candidate[seen])
    widest = seen[int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)))]
    return int(runs.lo[widest]), int(runs.hi[widest])


def _around(
    reference: Expr, candidate: Expr, stretch: tuple[int, int], ends: tuple[float, float]
) -> dict[str, Any] | None:
    """Return both functions around an interval of inputs, at each float if it is short.

    ``places`` are distances from the first input of the stretch, in floats, where ``unit`` is
    ``floats``; else inputs between ``ends``. None where too little of the stretch is there.
    """
    lo, hi = stretch
    if hi - lo < _FEW_FLOATS:
        pad = max(6, (hi - lo + 1) // 2)
        first, last = max(lo - pad, LOWEST), min(hi + pad, HIGHEST)
        number = min(last - first + 1, _SHOWN_FLOATS)
        keys = np.unique(np.linspace(first, last, number).round().astype(np.int64))
        x = from_keys(keys)
        points, unit = (keys - lo).tolist(), "floats"
    else:
        left, right = (min(max(float(end), ends[0]), ends[1]) for end in from_keys([lo, hi]))
        width = right - left
        if not width > 0:
            return None
        around = max(left - width, ends[0]), min(right + width, ends[1])
        x = np.linspace(*around, _SAMPLES).astype(np.float32)
        points, unit = x.tolist(), "input"
    return {
        "unit": unit,
        "first": float(from_keys([lo])[0]),
        "last": float(from_keys([hi])[0]),
        "count": hi - lo + 1,
        "places": points,
        "values": [_values(function, x).tolist() for function in (reference, candidate)],
    }


def _plateaus(function: Expr) -> Plateaus | None:
    try:
        steps = plateaus(function, max_boxes=_MAX_BOXES)
    except Undecidable:
        return None
    return steps if len(steps.value) <= _MAX_STEPS else None


def _range(steps: Sequence[Plateaus | None], near: float | None) -> tuple[float, float]:
    """Return the range of inputs to draw: all steps and a margin."""
    ends: list[float] = []
    for some in steps:
        if some is not None and len(some.value) > 1:
            ends += [float(from_keys(some.hi[:1])[0]), float(from_keys(some.lo[-1:])[0])]
            # with only one step, its height is used as its width
            ends += [float(v) for v in (some.value[0], some.value[-1]) if abs(v) < _FAR]
    ends = [end for end in ends if math.isfinite(end)]
    if near is not None and (not ends or abs(near) < 4 * max(map(abs, ends))):
        # a distant difference would make the steps too small to see
        ends.append(near)
    if not ends or max(map(abs, ends)) > _FAR:
        return -8.0, 8.0
    low, high = min(ends), max(ends)
    margin = _MARGIN * (high - low) or max(abs(low), 1.0)
    return low - margin, high + margin


def _curve(function: Expr, steps: Plateaus | None, low: float, high: float) -> dict[str, Any]:
    """Return ``x``, where steps begin, with the end of the last one; and ``y``, the step values."""
    if steps is None:
        x = np.linspace(low, high, _SAMPLES).astype(np.float32)
        return {"x": x.tolist(), "y": _values(function, x[:-1]).tolist()}
    first, last = from_keys(steps.lo).astype(np.float64), from_keys(steps.hi).astype(np.float64)
    seen = (last >= low) & (first <= high)
    starts = np.maximum(first[seen], low).tolist()
    return {"x": [*starts, high], "y": steps.value[seen].astype(np.float64).tolist()}


def _values(function: Expr, x: Float32) -> npt.NDArray[np.float64]:
    return np.broadcast_to(evaluate(function, x), x.shape).astype(np.float64)

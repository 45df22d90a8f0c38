"""Recompute the figures of a bound, and compare them with those of a certificate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qgraph.bound import STEPS_OF_OUTPUT, Against, Bound
from qgraph.numerics import Float64
from qgraph.ops.approximation import largest_of, product
from qgraph.text import amount
from qgraph.verify.distances import distance
from qgraph.verify.findings import need
from qgraph.verify.ideals import Executed, Ideal, TracedRounding

_MOST_STEPS = 2.0**31


class Figures(NamedTuple):
    """Figures of a bound: errors and shift by channel, in steps; steps between codes."""

    reference_error: Float64
    candidate_error: Float64
    ideal_shift: Float64
    max_steps: float
    levels: float
    absolute: float | None = None
    ulps: float | None = None


def of_roundings(one: TracedRounding, other: TracedRounding, bound: Bound) -> Figures:
    """Return the bound of two roundings, whose codes differ by a constant shift."""
    need(one.kind == other.kind, "the models round in different ways")
    delta = np.asarray(float(bound.code_shift))
    # Beyond these values both codes are clipped, each to its own limit.
    window = (
        np.minimum(one.ends[0], other.ends[0] - delta) - 1,
        np.maximum(one.ends[1], other.ends[1] - delta) + 1,
    )
    moved = window[0] + delta, window[1] + delta
    shift = distance(one.function.plus(Ideal.fixed(delta)), other.function, moved)
    ours, theirs = _error(one.before, window), _error(other.before, moved)
    apart = [
        np.abs(np.clip(end, *one.clips) + delta - np.clip(end + delta, *other.clips))
        for end in one.reach
    ]
    extra = np.nan_to_num(np.maximum(*apart), nan=0.0, posinf=np.inf)
    far = _counted(bound, ours) + theirs + shift
    steps = np.max(np.where(far > 0, np.floor(far) + 1, 0.0) + extra)
    levels = float(np.max(one.ends[1] - one.ends[0]))
    # Limits of codes that differ shift what both models mean.
    return Figures(ours, theirs, shift + extra, float(min(steps, _MOST_STEPS)), levels)


def _error(before: Executed, window: tuple[Float64, Float64]) -> Float64:
    reach = np.minimum(largest_of(*window), before.largest)
    return before.absolute + product(before.relative, reach)


def _counted(bound: Bound, ours: Float64) -> Float64:
    """Return the error of the reference, or 0 if bounds are against its ideal values."""
    return ours if bound.against == Against.EXECUTION else np.zeros_like(ours)


def of_output(ours: Executed, theirs: Executed, bound: Bound, is_whole: bool) -> Figures:
    """Return the bound of two outputs, in steps of whole numbers or of the range of the first."""
    parts, span = (
        (ours.error, theirs.error, distance(ours.meant, theirs.meant)),
        ours.high - ours.low,
    )
    unit, levels = np.ones(()), float(np.max(span))
    if not is_whole:
        unit, levels = np.where(span > 0, span, np.inf) / STEPS_OF_OUTPUT, float(STEPS_OF_OUTPUT)
    far = _counted(bound, parts[0]) + parts[1] + parts[2]
    ulps = float(np.max(far / np.spacing(ours.largest.astype(np.float32))))
    steps = min((np.floor if is_whole else np.ceil)(np.max(far / unit)), _MOST_STEPS)
    one, other, shift = (part / unit for part in parts)
    return Figures(one, other, shift, float(steps), levels, float(np.max(far)), ulps)


def problem_of(figures: Figures, bound: Bound, slack: float = 0.0) -> str | None:
    """Return which figure of a bound is smaller than the recomputed one; None if none is."""
    ours, theirs, shift = figures[:3]
    least: dict[str, float | None] = {
        "deviation_steps": float(np.max(_counted(bound, ours) + theirs + shift)),
        "tie_distance_steps": float(np.max(np.maximum(_counted(bound, ours), theirs + shift))),
        "reference_error": float(np.max(ours)),
        "candidate_error": float(np.max(theirs)),
        "ideal_shift": float(np.max(shift)),
        **{name: getattr(figures, name) for name in ("max_steps", "absolute", "ulps")},
    }
    for name, number in least.items():
        stated = getattr(bound, name)
        is_enough = None not in (number, stated) and stated + slack >= number
        if not (is_enough or number is stated is None):
            texts = amount(number, 12), amount(stated, 12)
            return f"{name.replace('_', ' ')}: {texts[0]} was found, not {texts[1]}"
    if not bound.levels <= figures.levels:
        return f"levels: {figures.levels:g} were found, not {bound.levels:g}"
    if not bound.channels:
        return None
    rows = np.stack([np.ravel(part) for part in np.broadcast_arrays(ours, theirs, shift)], axis=1)
    listed = np.asarray(bound.channels, np.float64)
    if len(rows) > 1 and len(listed) not in (1, len(rows)):
        is_multiple = not len(listed) % len(rows) or not len(rows) % len(listed)
        need(not is_multiple, "its channels may be those of other axes")
        return f"{len(rows)} channels were found, not {len(listed)}"
    return None if (listed + slack >= rows).all() else "an error of a channel is too small"

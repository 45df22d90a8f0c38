"""Bound the distance of the codes of two roundings, one of each model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import ZERO
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.counted import Counted, compare, finished
from qgraph.proof.bounds.distances import distance
from qgraph.proof.bounds.executed import Pick, program_of
from qgraph.proof.bounds.minifloat_steps import apart_in_steps, error_within
from qgraph.proof.bounds.roundings import limited_codes
from qgraph.proof.bounds.segment import RoundedData, Segment


def compared(
    one: RoundedData, other: RoundedData, forced: Float64 | None
) -> list[tuple[Segment, Float64]]:
    """Return the bound of two roundings for each possible offset between their codes."""
    kinds = one.event.kind, other.event.kind
    if not _fit(one, other) or (kinds[0] != kinds[1] and "Sign" in kinds):
        return []
    if one.event.mantissa != other.event.mantissa:
        return []
    if one.event.mantissa is not None and kinds[0] != kinds[1]:
        return []
    if forced is not None or one.event.mantissa is not None:
        delta = ZERO if forced is None else forced
        return [(_bound(one, other, delta), delta)]
    # Only limits tell that codes are numbered otherwise: ranges move with a bias, too.
    (low, high), (bottom, top) = one.clips, other.clips
    shifts = {0.0, float(bottom.min() - low.min()), float(top.max() - high.max())}
    deltas = sorted((shift for shift in shifts if np.isfinite(shift)), key=abs)
    return [(_bound(one, other, delta), delta) for delta in map(np.asarray, deltas)]


def _fit(one: RoundedData, other: RoundedData) -> bool:
    """Return whether the data of two roundings may have equal shapes."""
    functions = one.function, other.function
    shapes = [c.shape for function in functions for c, _ in function.terms]
    shapes += [end.shape for data in (one, other) for end in (*data.ends, data.function.offset)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _bound(one: RoundedData, other: RoundedData, delta: Float64) -> Segment:
    # Beyond these values both codes are clipped, each to its own limit.
    bottom = np.minimum(one.ends[0], other.ends[0] - delta)
    top = np.maximum(one.ends[1], other.ends[1] - delta)
    window = bottom - one.event.spacing(bottom), top + one.event.spacing(top)
    shifted = one.function.plus(Combination.constant(delta))
    moved_window = window[0] + delta, window[1] + delta
    ours, theirs, shift = (
        error_within(one.event.before, window),
        error_within(other.event.before, moved_window),
        distance(shifted, other.function, moved_window),
    )
    mantissa = one.event.mantissa
    if mantissa is not None:
        ours, theirs, shift = apart_in_steps(one, other, window)
    if one.event.kind != other.event.kind:
        shift = np.maximum(shift, 2.0**-40)
    shift = np.where(np.isnan(shift), np.inf, shift)
    # Both codes lie within these ends, so their limits move them apart most at one of them.
    reach = (
        np.minimum(one.reach[0], other.reach[0] - delta),
        np.maximum(one.reach[1], other.reach[1] - delta),
    )
    extra = np.maximum(*(_clipped_apart(end, one, other, delta) for end in reach))
    nodes = one.event.node, other.event.node
    kinds = one.event.kind, other.event.kind
    return Segment(
        *nodes,
        (nodes[0].outputs[0], nodes[1].outputs[0]),
        reference_error=ours,
        candidate_error=theirs,
        shift=shift,
        extra=extra,
        span=one.event.place(one.ends[1]) - one.event.place(one.ends[0]),
        kind=one.event.kind if kinds[0] == kinds[1] else "",
        roundings=(one, other),
        delta=delta,
    )


def counted_pair(one: RoundedData, other: RoundedData, delta: float) -> Counted | None:
    """Return the differing codes, if both are computed from the same few whole numbers."""
    models = []
    for data, shift in ((one, 0.0), (other, -delta)):
        program = program_of(data.event.before)
        if program is None:
            return None
        models.append(finished(program, _places(data, shift), (data.low, data.high)))
    return compare(*models)


def _places(data: RoundedData, shift: float) -> Callable[[Array, Pick], Array]:
    codes = limited_codes(data, shift)
    return lambda values, pick: data.event.place(codes(values, pick))


def _clipped_apart(code: Float64, one: RoundedData, other: RoundedData, delta: Float64) -> Float64:
    """Return the largest difference that the limits of both codes cause."""
    step = one.event.place
    apart = np.abs(
        step(np.clip(code, *one.clips) + delta) - step(np.clip(code + delta, *other.clips))
    )
    return np.where(np.isnan(apart), 0.0, apart)

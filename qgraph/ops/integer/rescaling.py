"""Whether sums of codes become the same codes by one multiplication and by way of real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.ops.integer.codes import requantize
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_MOST = 1 << 26
"""Sums that are tried out, at most."""

_LOWEST, _HIGHEST = -50, 50
"""Exponents of scales between which no product of codes and scales leaves the normal range."""


def compare_sums(
    bound: int | None, s_a: Float32, s_b: Float32, s_y: Float32 | None, z_y: Array | None
) -> Verdict:
    """Return how equal the integer operator and its form with real numbers between are.

    operator    code = saturate(round_half_even(float32(acc) * (s_a * s_b / s_y)) + z_y)
    reals       code = saturate(round_half_even(r / s_y) + z_y), r the sum of products of
                (a - z_a) * s_a and (b - z_b) * s_b in float32

    With powers of two for ``s_a`` and ``s_b``, and sums below 2**24, ``r`` is ``acc * s_a * s_b``
    without any rounding, and all sums can be tried out. Otherwise ``r`` depends on the order of the
    additions, and nothing is proved.

    Args:
        bound: the largest sum; None if it is not known.
        s_a: scale of the data.
        s_b: scale, or scales of the channels, of the weights.
        s_y: scale of the result; None if the real numbers are the result.
        z_y: its zero point.
    """
    if bound is None or bound >= EXACT_IN_FLOAT32:
        size = "are not known" if bound is None else f"may reach {bound}"
        return unproved(f"the sums {size}, and float32 is exact below 2**24 only")
    if not (are_powers_of_two(s_a) and are_powers_of_two(s_b)):
        return unproved(
            "scales that are no powers of two are rounded in each product there, and once here; "
            "codes may differ by a step near ties"
        )
    if s_y is None or z_y is None:
        return Verdict(Exactness.BITS, Method.CONGRUENCE, reason=f"sums of at most {bound}")
    return _try_out(bound, s_a, s_b, s_y, z_y)


def compare_tables(candidate: Array, reference: Array, inputs: str) -> Verdict:
    """Return how equal two tables of results are.

    Args:
        candidate: results of what is written.
        reference: results of what was read, for the same inputs.
        inputs: what the tables are indexed by, in the plural.
    """
    wrong = np.flatnonzero(candidate != reference)
    if not wrong.size:
        return Verdict(Exactness.BITS, Method.EXHAUSTIVE)
    first = int(wrong[0])
    far = np.abs(candidate.astype(np.int64) - reference.astype(np.int64)).max()
    return Verdict(
        Exactness.NEAR if far <= 1 else Exactness.DIFFERENT,
        Method.EXHAUSTIVE,
        differing_inputs=int(wrong.size),
        reason=f"{wrong.size} of {candidate.size} {inputs} differ by up to {far}, the first "
        f"gives {reference.flat[first]} and {candidate.flat[first]}",
    )


def _try_out(bound: int, s_a: Float32, s_b: Float32, s_y: Float32, z_y: Array) -> Verdict:
    units = np.broadcast_to(s_a * s_b, np.broadcast_shapes(s_b.shape, s_a.shape)).reshape(-1)
    steps = np.broadcast_to(s_y, units.shape) if s_y.size == 1 else None
    if steps is None:
        return unproved("the scale of the result differs by rows")
    limits = np.iinfo(z_y.dtype)
    widest = limits.max - limits.min + 3
    differing, witness, tried = 0, None, 0
    with np.errstate(all="ignore"):
        multipliers = units / steps
    rows = zip(units.tolist(), steps.tolist(), multipliers.tolist(), strict=True)
    for unit, step, multiplier in dict.fromkeys(rows):
        # Both forms are monotone in the sum, so that beyond the window both are saturated.
        window = min(bound, int(min(widest * step / unit, 2.0**40)) + 1) if step > 0 else _MOST
        tried += 2 * window + 1
        if tried > _MOST:
            return unproved("there are too many sums to try out")
        acc = np.arange(-window, window + 1, dtype=np.int32)
        here = requantize(acc, np.array(multiplier, np.float32), z_y)
        with np.errstate(all="ignore"):
            real = acc.astype(np.float32) * np.float32(unit) / np.float32(step)
        there = requantize(real, np.ones((), np.float32), z_y)
        wrong = np.flatnonzero(here != there)
        differing += int(wrong.size)
        if wrong.size and witness is None:
            place = int(wrong[0])
            witness = Witness(float(acc[place]), float(here[place]), float(there[place]))
    if differing:
        reason = f"{differing} of the sums that occur at most give codes one step apart"
        return Verdict(Exactness.NEAR, Method.EXHAUSTIVE, differing, witness=witness, reason=reason)
    return Verdict(Exactness.BITS, Method.EXHAUSTIVE, reason=f"sums of at most {bound}")


def are_powers_of_two(scale: Float32) -> bool:
    """Return whether products with scales are exact: powers of two, far from the limits."""
    mantissa, exponent = np.frexp(scale)
    inside = (exponent > _LOWEST) & (exponent < _HIGHEST)
    return bool(((mantissa == 0.5) & inside).all())


def unproved(reason: str) -> Verdict:
    """Return the verdict on what is near but not proved equal."""
    return Verdict(Exactness.NEAR, Method.NONE, reason=f"not proved equal: {reason}")

"""The range next to a given one whose zero point is whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qgraph.choices import Choice
from qgraph.transforms.ranges.grids import Grid

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Mode(Choice):
    """Where the zero point goes."""

    AUTO = "auto"
    """As ``symmetric`` where both ends are equally far from zero, else as ``asymmetric``."""

    SYMMETRIC = "symmetric"
    """To the middle code, ``levels // 2``, which is 0 in signed codes."""

    ASYMMETRIC = "asymmetric"
    """To the nearest whole code."""


class Scales(Choice):
    """Which scales are allowed."""

    ANY = "any"
    """Any; up to 256 levels, they get so few bits that all multiples of them are exact."""

    POWER_OF_TWO = "power-of-two"
    """Powers of two only."""


_SIGNIFICAND = 24
_KEPT = 8
"""A scale that loses bits moves the far end of its range by less than 2**-8 steps."""

_MIDDLE = 0.25
"""A zero point so near to the middle, in steps, is that of a symmetric range."""


def whole_range(
    low: Float32, high: Float32, levels: int, mode: Mode, scales: Scales
) -> tuple[Float32, Float32]:
    """Return the ends of the range next to ``[low, high]`` that has a whole zero point.

    With n = levels - 1, scale s = (high - low) / n and zero point z = round(-low / s):

    * asymmetric: [-z*s, (n - z)*s], which moves both ends by the same, at most half a step; no
      smaller move of the wider moved end exists. Where z is an end itself, the other end stays.
    * symmetric: z = levels // 2, and s just large enough for both ends. For low = -high that is
      low = -high / (1 - 2 / levels) if the number of levels is even; nothing moves if it is odd.

    Zero is taken into the range first. The scale is then rounded: to so many bits that its
    multiples are exact, or up to a power of two, which makes the range wider.

    Args:
        low: one end; it broadcasts to the other.
        high: the other end, above it.
        levels: how many levels there are, 3 at least for a symmetric range.
        mode: where the zero point goes.
        scales: which scales are allowed.
    """
    top = levels - 1
    below = np.maximum(-low.astype(np.float64), 0.0)
    above = np.maximum(high.astype(np.float64), 0.0)
    below, above = np.broadcast_arrays(below, above)
    if mode is Mode.SYMMETRIC or (mode is Mode.AUTO and _is_symmetric(low, high, levels)):
        zero_point = np.full(below.shape, float(levels // 2))
        scale = np.maximum(below / zero_point, above / (top - zero_point))
    else:
        scale = (below + above) / top
        zero_point = np.rint(below / scale)
        scale = np.where(zero_point == 0, above / top, scale)
        scale = np.where(zero_point == top, below / top, scale)
    if scales is Scales.POWER_OF_TWO:
        scale = _power_of_two_above(scale)
        if not (zero_point == levels // 2).all():
            zero_point = np.rint(below / scale)
    else:
        scale = _rounded(scale, top.bit_length())
    with np.errstate(over="ignore", under="ignore"):
        ends = -zero_point * scale, (top - zero_point) * scale
        return ends[0].astype(np.float32) + np.float32(0), ends[1].astype(np.float32)


def _is_symmetric(low: Float32, high: Float32, levels: int) -> bool:
    """Return whether zero lies within a quarter of a step of the middle, in all channels."""
    middle = (levels - 1) / 2
    zero_point = Grid.of(low, high, levels).zero_point
    return levels > 2 and bool((np.abs(zero_point - middle) <= _MIDDLE).all())


def _power_of_two_above(scale: Float64) -> Float64:
    mantissa, exponent = np.frexp(scale)
    return np.asarray(np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)))


def _rounded(scale: Float64, code_bits: int) -> Float64:
    """Return the nearest scales whose products with codes are exact, if precise enough."""
    bits = max(_SIGNIFICAND - code_bits, min(_SIGNIFICAND, code_bits + _KEPT))
    mantissa, exponent = np.frexp(scale)
    whole = np.rint(np.ldexp(mantissa, bits))
    return np.asarray(np.ldexp(whole, exponent - bits))

"""Codes of dequantized values."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float32
from qgraph.numerics.minifloat import snap
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Quantizer, Ranged, Recipe

_MOST_LEVELS = 1 << 16
"""Maximum number of levels of formats whose codes are counted one by one."""


def levels_of(quantizer: Quantizer) -> int | None:
    """Return the number of codes of a format; None if it is too large, or not known."""
    match quantizer:
        case Affine(_, _, lo, hi):
            levels = float(hi.max()) - float(lo.min()) + 1
        case Ranged(levels=given):
            levels = given
        case Floating(format=grid):
            exponent = math.frexp(grid.max_value)[1] - 1
            largest = exponent + grid.bias + grid.max_value / 2.0**exponent - 1
            levels = 2 * float(np.ceil(largest * 2**grid.mantissa_bits)) + 1
        case Bipolar():
            levels = 2
        case _:
            return None
    return int(levels) if 0 < levels <= _MOST_LEVELS else None


def is_clipped(quantizer: Quantizer, x: Float32) -> npt.NDArray[np.bool_]:
    """Return where the code nearest to a value is outside the format."""
    match quantizer:
        case Affine(scale, zero_point, lo, hi, rounding, recipe):
            q = x / scale
            if recipe is Recipe.OFFSET_FIRST:
                q = round_to_integer(q + zero_point, rounding)
            else:
                q = round_to_integer(q, rounding) + zero_point
            return (q < lo) | (q > hi)
        case Ranged(low, high, _, _, levels):
            top = np.float32(levels - 1)
            q = round_to_integer((x - low) / (high - low) * top, Rounding.ROUND)
            return (q < 0) | (q > top)
        case Floating(scale, grid, rounding):
            q = snap(x / scale, grid.mantissa_bits, 1 - grid.bias, np.inf, rounding)
            return np.abs(q) > np.float32(grid.max_value)
    return np.zeros(x.shape, np.bool_)


def codes_of(quantizer: Quantizer, y: Float32) -> Array:
    """Return the codes of dequantized values, as floats; NaN stays NaN."""
    match quantizer:
        case Affine(scale, zero_point, lo, hi):
            codes: Array = np.clip(np.rint(y / scale + zero_point), lo, hi)
            return codes
        case Ranged(_, _, low, high, levels):
            top = np.float32(levels - 1)
            places: Array = np.rint((y - low) / (high - low) * top)
            return np.clip(places, 0, top)
        case Floating(scale, grid):
            return grid.snap(y / scale)
        case Bipolar(scale):
            signs: Array = np.sign(y / scale)
            return signs
    return y

"""Scale and zero point of the numbers that a quantizer gives, whatever its dialect."""

from __future__ import annotations

import numpy as np

from qgraph.inventory.weight_steps import StepRange, step_range
from qgraph.numerics import Array
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Bipolar, Ranged

_NOISE = 2.0**-21  # error of a zero point given by two rounded limits of FakeQuantize, in ranges


def used_steps(site: Site) -> StepRange | None:
    """Return the range of the codes of a constant, from that of real zero; None without steps."""
    scale = scale_of(site)
    return None if scale is None else step_range(site, scale, fraction(zero_point_of(site)))


@np.errstate(all="ignore")
def fraction(zero_point: Array) -> Array:
    """Return by how much a zero point lies above a whole number."""
    return zero_point - np.floor(zero_point)


def scale_of(site: Site) -> Array | None:
    """Return the scale of a quantizer's output, None if it has no steps."""
    match site.meaning:
        case Affine(scale=scale, decoding=decoding):
            return scale if decoding is None else decoding.scale
        case Ranged(output_low=low, output_high=high, levels=levels):
            return of_range(low, high, levels)[0]
        case Bipolar(scale=scale):
            return scale
    return None


def zero_point_of(site: Site) -> Array:
    """Return the zero point of a quantizer's output in codes, 0 if it has none."""
    match site.meaning:
        case Affine(zero_point=zero_point, decoding=decoding):
            return zero_point if decoding is None else decoding.zero_point
        case Ranged(output_low=low, output_high=high, levels=levels):
            return of_range(low, high, levels)[1]
    return np.zeros((), np.float32)


def of_range(low: Array, high: Array, levels: int) -> tuple[Array, Array]:
    """Return the scale and zero point of a range.

    The quotient of rounded limits may miss the scale by an ulp; its neighbours are tried. Only the
    lower limit and the width in float32 are used, because some forms keep only these.
    """
    low, extent = np.broadcast_arrays(low, high - low)
    last = np.float32(levels - 1)
    quotient = extent.astype(np.float64) / last
    near = quotient.astype(np.float32)
    zero_point = (-low / quotient).astype(np.float32)
    whole = np.round(zero_point)
    is_whole = np.abs(zero_point - whole) <= np.float32(levels * _NOISE)
    zero_point = np.where(is_whole, whole, zero_point).astype(np.float32)
    scale, is_found = near.copy(), np.zeros(near.shape, bool)
    for other in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
        least, most = -zero_point * other, (last - zero_point) * other
        fits = (least == low) & (most - least == extent)
        scale = np.where(fits & ~is_found, other, scale)
        is_found |= fits
    return scale, zero_point

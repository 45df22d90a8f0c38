"""Trunc as a described quantizer, in both of its versions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qgraph.numerics.rounding import Rounding
from qgraph.ops.quant import code_bounds
from qgraph.ops.trunc import nearest_power_of_two
from qgraph.quantizer import Truncating

Float32 = npt.NDArray[np.float32]

_INPUTS_OF_VERSION_1 = 4


def truncating(
    given: list[Float32], rounding: Rounding, *, signed: bool, narrow: bool
) -> Truncating:
    """Return what a Trunc means.

    Args:
        given: its inputs after the data: (scale, zero point, input width, output width) in version
            1, with the output scale before the output width in version 2.
        rounding: of the second rounding.
        signed: whether output codes are signed; version 1 does not limit them.
        narrow: whether they leave one out.
    """
    scale, zero_point, in_bits, *_, out_bits = given
    if len(given) == _INPUTS_OF_VERSION_1:
        ratio = np.ldexp(np.float32(1), (in_bits - out_bits).astype(np.int32))
        end = np.asarray(np.inf, np.float32)
        return Truncating(scale, zero_point, ratio, -end, end, rounding, scale, zero_point)
    out_scale = given[3]
    with np.errstate(all="ignore"):
        ratio = nearest_power_of_two(out_scale / scale)
        lo, hi = code_bounds(out_bits, signed, narrow)
        moved = np.asarray(zero_point / ratio)
    return Truncating(scale, zero_point, ratio, lo, hi, rounding, out_scale, moved)

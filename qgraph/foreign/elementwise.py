"""Kernels of com.microsoft that add and multiply codes, as ONNX Runtime computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.parameters import float32, ratio, saturated, shifted, single
from qgraph.kernels.standard import Kernel

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def q_linear_mul(node: ir.Node) -> Kernel:
    """``code = saturate(round_half_even(float32(acc) * m + z_y))``: the zero point comes first."""

    def run(
        a: Array,
        s_a: Array,
        z_a: Array | None,
        b: Array,
        s_b: Array,
        z_b: Array | None,
        s_y: Array,
        z_y: Array | None = None,
    ) -> Sequence[Array]:
        left, right = shifted(a, z_a, np.int32), shifted(b, z_b, np.int32)
        m = ratio(single(s_a), single(s_b), single(s_y))
        z = np.zeros((), a.dtype) if z_y is None else single(z_y)
        product = (left * right).astype(np.float32)
        return [saturated(product * m + z.astype(np.float32), z)]

    return run


def q_linear_add(node: ir.Node) -> Kernel:
    """``y = fma(a, r_a, fma(b, r_b, z_y - fma(z_a, r_a, z_b * r_b)))`` with ``r = s / s_y``.

    Fused operations, rounded once, are what ONNX Runtime uses on processors that have them; others
    differ by a step for some codes near a tie. Then ``code = saturate(round_half_even(y))``.
    """

    def run(
        a: Array,
        s_a: Array,
        z_a: Array | None,
        b: Array,
        s_b: Array,
        z_b: Array | None,
        s_y: Array,
        z_y: Array | None = None,
    ) -> Sequence[Array]:
        z = np.zeros((), a.dtype) if z_y is None else single(z_y)
        unit = float32(single(s_y))
        of_a, of_b = float32(single(s_a)) / unit, float32(single(s_b)) / unit
        left, right = (shifted(x, None, np.float32) for x in (a, b))
        none = np.zeros((), np.float32)
        zero_a, zero_b = (none if x is None else single(x).astype(np.float32) for x in (z_a, z_b))
        fixed = z.astype(np.float32) - _fused(zero_a, of_a, zero_b * of_b)
        return [saturated(_fused(left, of_a, _fused(right, of_b, fixed)), z)]

    return run


def _fused(a: Array, b: Array, c: Array) -> Float32:
    """Return ``a * b + c``, rounded once to float32: the product of a code and a float32 is exact.

    The sum in float64 may not be. Where it is not, it gets an odd last bit on the side of what was
    lost, so that rounding it to float32 does what rounding the exact sum would.
    """
    product, other = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    with np.errstate(all="ignore"):
        total = np.asarray(product + other)
        part = total - product
        lost = (product - (total - part)) + (other - part)
        toward = np.where(lost > 0, np.inf, -np.inf)
        is_even = total.view(np.int64) & 1 == 0
        inexact = is_even & ((lost > 0) | (lost < 0))
        return np.asarray(np.where(inexact, np.nextafter(total, toward), total), np.float32)

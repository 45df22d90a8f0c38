"""Kernels of com.microsoft that average codes, as ONNX Runtime computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.parameters import float32, requantize, result, saturated, shifted, single
from qgraph.kernels.standard import Kernel, Windows

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def q_linear_global_average_pool(node: ir.Node) -> Kernel:
    """``m = s_x / (s_y * n)`` for ``n`` elements of each channel."""
    last = node.attributes.get_int("channels_last", 0)

    def run(x: Array, s_x: Array, z_x: Array, s_y: Array, z_y: Array) -> Sequence[Array]:
        axes = tuple(range(1, x.ndim - 1) if last else range(2, x.ndim))
        return [_average_of_all(x, axes, s_x, z_x, s_y, z_y)]

    return run


def q_linear_average_pool(node: ir.Node) -> Kernel:
    """``code = saturate(round_half_even(sum(r) / n / s_y + z_y))`` with ``r = s_x * (x - z_x)``.

    The real numbers of a window are added in float32, in row order; padding adds nothing. ``n`` is
    the number of elements in the window, with ``count_include_pad`` always that of the whole
    window. A window that is the whole image is averaged as in
    :func:`q_linear_global_average_pool`, which is rounded otherwise.
    """
    last = node.attributes.get_int("channels_last", 0)
    kernel = node.attributes.get_ints("kernel_shape", [])

    def run(
        x: Array,
        s_x: Array,
        z_x: Array | None,
        s_y: Array,
        z_y: Array | None = None,
    ) -> Sequence[Array]:
        x = np.moveaxis(x, -1, 1) if last else x
        windows = Windows.of(node, x.shape[2:], kernel)
        if _is_whole(windows, x.shape[2:]):
            y = _average_of_all(x, tuple(range(2, x.ndim)), s_x, z_x, s_y, z_y)
            return [np.moveaxis(y, 1, -1) if last else y]
        real = shifted(x, None if z_x is None else single(z_x), np.float32) * float32(single(s_x))
        total = np.zeros((*x.shape[:2], *windows.out), np.float32)
        for part in windows.positions(windows.unfold(real)):
            total += part
        count = counts(node, windows, x.shape[2:])
        z = np.zeros((), x.dtype) if z_y is None else single(result(z_y))
        with np.errstate(all="ignore"):
            steps: Float32 = (total / count).astype(np.float32) / float32(single(s_y))
            y = saturated(steps + z.astype(np.float32), z)
        return [np.moveaxis(y, 1, -1) if last else y]

    return run


def averages_all(node: ir.Node, sizes: Sequence[int]) -> bool:
    """Return whether the one window of a QLinearAveragePool is an image of these sizes."""
    kernel = node.attributes.get_ints("kernel_shape", [])
    return len(kernel) == len(sizes) and _is_whole(Windows.of(node, sizes, kernel), sizes)


def counts(node: ir.Node, windows: Windows, sizes: Sequence[int]) -> Float32:
    """Return by what the sum over each window of a QLinearAveragePool is divided."""
    if node.attributes.get_int("count_include_pad", 0):
        return np.asarray(math.prod(windows.kernel), np.float32)
    ones = np.ones((1, 1, *sizes), np.float32)
    inside: Float32 = sum(windows.positions(windows.unfold(ones)), start=np.zeros((), np.float32))
    return inside


def _is_whole(windows: Windows, sizes: Sequence[int]) -> bool:
    return windows.kernel == tuple(sizes) and not any(windows.before) and not any(windows.after)


def _average_of_all(
    x: Array, axes: tuple[int, ...], s_x: Array, z_x: Array | None, s_y: Array, z_y: Array | None
) -> Array:
    zero = None if z_x is None else single(z_x)
    acc = shifted(x, zero, np.int32).sum(axis=axes, keepdims=True, dtype=np.int32)
    count = np.float32(x.size // max(acc.size, 1))
    m = float32(single(s_x)) / (float32(single(s_y)) * count)
    z = np.zeros((), x.dtype) if z_y is None else single(result(z_y))
    return requantize(acc, m, z)

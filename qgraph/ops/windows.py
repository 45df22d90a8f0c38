"""Windows of pools, convolutions and products: whether each contains data, and which elements are
added up.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.ops.sums_of_products import Taps

_MOST_WINDOWS = 1 << 16


def is_never_empty(node: ir.Node, sizes: Sequence[object], *, trusts_ceil: bool = False) -> bool:
    """Return whether no window of a pool of data of some ``sizes`` lies in the padding alone.

    A window of neighbouring elements contains data if the padding at either end is smaller than the
    window. Windows with gaps are examined one by one. Versions and runtimes disagree on which
    windows ``ceil_mode`` adds: with ``trusts_ceil`` only those that begin before the padding at the
    end, as ONNX defines it; otherwise the result is False if it is set.
    """
    ints = node.attributes.get_ints
    kernel = ints("kernel_shape", ())
    rank = len(kernel)
    if not rank or len(sizes) != rank + 2 or 0 in sizes:
        return False
    strides, dilations = ints("strides", (1,) * rank), ints("dilations", (1,) * rank)
    pads = tuple(ints("pads", (0,) * 2 * rank))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    is_ceil = node.attributes.get_int("ceil_mode", 0) != 0
    if is_ceil and not (trusts_ceil and set(dilations) == {1}):
        return False
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(pads) < 0:
        return False
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return set(dilations) == {1}
    if auto == "VALID":
        return True
    if is_ceil:
        pads = pads[:rank] + (0,) * rank
    return auto == "NOTSET" and all(
        _reaches_data(size, *window)
        for size, window in zip(
            sizes[2:],
            zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True),
            strict=True,
        )
    )


def _reaches_data(
    size: object, kernel: int, stride: int, dilation: int, before: int, after: int
) -> bool:
    if not before and not after:
        return True
    if not isinstance(size, int):  # it may be 0; then no window fits into so little padding
        return dilation == 1 and before + after < kernel
    if dilation == 1:
        return before < kernel and after < kernel
    count = (size + before + after - (kernel - 1) * dilation - 1) // stride + 1
    return count <= _MOST_WINDOWS and all(
        any(0 <= window * stride - before + index * dilation < size for index in range(kernel))
        for window in range(count)
    )


RIGHT = Taps(("MatMul",), 1, 0, 0, False)
"""How weights ``[rows, taps]`` are multiplied whose transpose stands right of the data."""


def pointwise_taps(axes: object) -> Taps | None:
    """Return the layout of sums of a matrix whose last axis a Transpose moves after the first.

    These are the sums of a Conv of one place. None for other orders of axes.
    """
    count = len(axes) - len(("batch", "channel")) if isinstance(axes, tuple) else 0
    if count < 1 or axes != (0, count + 1, *range(1, count + 1)):
        return None
    return convolution_taps(ir.Node("", "Conv", [], num_outputs=1), (1,) * count)


def convolution_taps(
    node: ir.Node, kernel: tuple[int, ...], sizes: Sequence[Hashable] = ()
) -> Taps:
    """Return the layout of the sums of a node of the family of Conv or ConvTranspose.

    ``kernel`` has the sizes of its windows, ``sizes`` those of the data that windows move over, to
    which smaller data may broadcast.
    """
    count, attributes = len(kernel), node.attributes
    is_turned = node.op_type == "ConvTranspose"
    groups, pads = attributes.get_int("group", 1), attributes.get_ints("pads", (0,) * 2 * count)
    automatic = attributes.get_string("auto_pad", "NOTSET")
    is_padded = is_turned or any(pads) or automatic not in ("NOTSET", "VALID")
    geometry = (
        "ConvTranspose" if is_turned else "Conv",
        tuple(attributes.get_ints("strides", (1,) * count)),
        tuple(attributes.get_ints("dilations", (1,) * count)),
        tuple(pads),
        automatic,
        groups,
        kernel,
        tuple(attributes.get_ints("output_padding", ())),
        tuple(attributes.get_ints("output_shape", ())),
        tuple(sizes) if is_padded or max(kernel, default=1) > 1 else (),
    )
    return Taps(geometry, groups, count, count, is_padded)


def padded_taps(layout: Taps, padding: object) -> Taps | None:
    """Return the layout of the sums of a Conv of data to which a Pad has added zeros.

    ``layout`` is that of the padded data. ``padding`` is "Pad", the sizes of the data before it,
    and the numbers of zeros, as in ONNX. None for other sums and movements.
    """
    match layout.geometry, padding:
        case (
            ("Conv", strides, dilations, own, ("NOTSET" | "VALID") as mode, *rest, _),
            ("Pad", (_, _, *sizes), tuple() as pads),
        ):
            zeros = np.reshape(pads, (2, -1))
            if (zeros < 0).any() or zeros[:, :2].any():
                return None
            total = zeros[:, 2:].reshape(-1) + (own if mode == "NOTSET" else 0)
            geometry = "Conv", strides, dilations, tuple(total.tolist()), "NOTSET", *rest
            return replace(layout, geometry=(*geometry, tuple(sizes)), is_padded=True)
    return None


def rows_of_transposed(weights: Float64, groups: int) -> Float64:
    """Return the weights of a ConvTranspose, ``[channels, rows of a group, *places]``, by row."""
    channels, rows, *kernel = weights.shape
    parts = weights.reshape(groups, channels // groups, rows, *kernel).swapaxes(1, 2)
    return np.ascontiguousarray(parts).reshape(groups * rows, channels // groups, *kernel)

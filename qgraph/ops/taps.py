"""Which elements of the data Conv, ConvTranspose and MatMul add up: rows of taps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.ops.sums_of_products import Taps

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

    Args:
        node: the node.
        kernel: the sizes of its windows.
        sizes: those of the data that windows move over, to which smaller data may broadcast.
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

    Args:
        layout: that of the padded data.
        padding: "Pad", the sizes of the data before it, and the numbers of zeros, as in ONNX.

    Returns:
        that of the data before the Pad; None for other sums and movements.
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

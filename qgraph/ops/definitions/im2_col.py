"""Im2Col of QONNX: the windows of a convolution as rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.ops import pieces
from qgraph.ops.composite import composite


@composite(
    "Im2Col",
    "qonnx.custom_op.general",
    "finn.custom_op.general",
    "finn",
    remark="of several images QONNX mixes the elements; here each image has its own rows",
)
def im2_col(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y[n, i, j] = x[n, i * s + a * d, j * s + b * d, c]`` for all ``a, b, c``, in order.

    The data is ``[N, H, W, C]``, padded with ``pad_value``; a row of the result has
    ``KH * KW * C`` elements.

    Source: QONNX 1.0, by reading and running it, for one image.
    """
    sizes = pieces.sizes_of(node, 0)
    kernel, strides, dilations = (
        tuple(node.attributes.get_ints(name, default))
        for name, default in (("kernel_size", ()), ("stride", ()), ("dilations", (1, 1)))
    )
    pads = node.attributes.get_ints("pad_amount", (0, 0, 0, 0))
    if len(sizes) != 4 or (len(kernel), len(strides), len(dilations), len(pads)) != (2, 2, 2, 4):
        raise ValueError(
            f"its data has shape {list(sizes)}, its kernel_size, stride, dilations and pad_amount "
            f"are {list(kernel)}, {list(strides)}, {list(dilations)}, {list(pads)}; expected "
            "[N, H, W, C], three times two numbers, and four"
        )
    x, dtype = pieces.operand(node, 0), pieces.dtype_of(node, 0)
    if any(pads):
        value = np.asarray(node.attributes.get_int("pad_value", 0), dtype.numpy())
        amounts = np.asarray([0, *pads[:2], 0, 0, *pads[2:], 0], np.int64)
        x = draft.node("Pad", [x, amounts, value], dtype=dtype)
    counts = []
    for index, axis in ((0, 1), (1, 3)):
        length = sizes[index + 1]
        if length is None:
            raise ValueError(
                f"its data has shape {list(sizes)}, expected known height and width. Infer shapes"
            )
        padded = length + pads[index] + pads[index + 2]
        reach = dilations[index] * (kernel[index] - 1)
        count = (padded - reach - 1) // strides[index] + 1
        starts = np.arange(count) * strides[index]
        windows = starts[:, None] + np.arange(kernel[index]) * dilations[index]
        x = draft.node("Gather", [x, windows.astype(np.int64)], {"axis": axis}, dtype=dtype)
        counts.append(count)
    x = pieces.moved(draft, x, [0, 1, 3, 2, 4, 5])
    channels = sizes[3]
    row = None if channels is None else channels * kernel[0] * kernel[1]
    return pieces.reshape(draft, x, [0, *counts, row])

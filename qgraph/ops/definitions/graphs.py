"""Operators of QONNX and TensorFlow defined by graphs, and those without a known graph."""

from __future__ import annotations

from collections.abc import Callable

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


_CHANNELS_OF_RANK = {2: 1, 3: 2, 4: 1}
"""Axis of the channels if the node names no layout: NC, NWC and NCHW."""


@composite("MultiThreshold", "qonnx.custom_op.general", "finn.custom_op.general", "finn")
def multi_threshold(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = out_scale * sum(x >= threshold) + out_bias``, one rounding per operation.

    Thresholds ``[C, T]`` hold for the channels of the data, or one row for all. NaN reaches none.

    Source: QONNX 1.0, by reading and running it.
    """
    x, thresholds = pieces.operand(node, 0), pieces.operand(node, 1)
    sizes, table = pieces.sizes_of(node, 0), pieces.sizes_of(node, 1)
    rank, dtype = len(sizes), pieces.dtype_of(node, 0)
    layout = node.attributes.get_string("data_layout", "")
    axis = layout.index("C") if "C" in layout else 1
    axis = axis if layout else _CHANNELS_OF_RANK.get(rank, 1)
    if len(table) != 2 or rank < 2 or (layout and len(layout) != rank):
        raise ValueError(
            f"its data has {rank} dimensions, layout {layout!r}, and its thresholds {len(table)}; "
            "expected thresholds [channels, steps] and data with an axis for each letter"
        )
    aligned = [1] * rank + [0]
    aligned[axis] = -1
    if table[1] is None:
        raise ValueError("the number of its thresholds is not known, expected a constant. Fold it")
    aligned[rank] = table[1]
    op = draft.op
    wide = draft.node("Unsqueeze", [x, pieces.LAST], dtype=dtype)
    reached = op.GreaterOrEqual(wide, pieces.reshape(draft, thresholds, aligned))
    ones = op.Cast(reached, to=pieces.FLOAT)
    count = draft.node("ReduceSum", [ones, pieces.LAST], {"keepdims": 0}, dtype=pieces.FLOAT)
    scale, bias = (
        node.attributes.get_float(name, default)
        for name, default in (("out_scale", 1.0), ("out_bias", 0.0))
    )
    return op.Add(op.Mul(count, scale), bias)


@composite("QuantAvgPool2d", "qonnx.custom_op.general", "finn.custom_op.general", "finn")
def quant_avg_pool(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = floor(round(average * k**2) / 2**shift)``, the average over windows of ``k * k``.

    The shift leaves ``obits`` of the bits that the largest sum of codes of ``ibits`` bits has.

    Source: QONNX 1.0, by reading and running it.
    """
    get = node.attributes.get_int
    side, stride, wide, thin = (get(name, 0) for name in ("kernel", "stride", "ibits", "obits"))
    layout = node.attributes.get_string("data_layout", "NCHW")
    if min(side, stride, wide, thin) < 1 or layout not in ("NCHW", "NHWC"):
        raise ValueError(
            f"its kernel, stride, ibits, obits and data_layout are {side}, {stride}, {wide}, "
            f"{thin}, {layout!r}; expected positive numbers, and NCHW or NHWC"
        )
    largest = ((1 << wide) - 1) * side * side
    shift = max(largest.bit_length() - thin, 0)
    op, x = draft.op, pieces.operand(node, 0)
    is_last = layout == "NHWC"
    x = pieces.moved(draft, x, [0, 3, 1, 2]) if is_last else x
    window = {"kernel_shape": [side, side], "strides": [stride, stride]}
    y = draft.node("AveragePool", [x], window, dtype=pieces.FLOAT)
    total = op.Round(op.Mul(y, float(side * side)))
    codes = op.Floor(op.Mul(total, 2.0**-shift))
    if is_last and isinstance(codes, ir.Value):
        return pieces.moved(draft, codes, [0, 2, 3, 1])
    return codes


_MOST_BITS = 16


_REMARK = (
    "an empty range gives NaN here, and zeros in TensorFlow; a build of TensorFlow may fuse a "
    "product with the difference after it, which moves results next to ties"
)


@composite("FakeQuantWithMinMaxVarsPerChannel", "", remark=_REMARK)
@composite("FakeQuantWithMinMaxVars", "", remark=_REMARK)
def fake_quant_with_min_max_vars(draft: Draft, node: ir.Node) -> Operand:
    """Write ``floor((clip(x, low, high) - low) / scale - origin + 0.5) * scale``.

    Codes are ``first = narrow_range`` to ``last = 2**num_bits - 1``. The range from ``min`` to
    ``max`` is moved first, so that 0 is one of its levels::

        scale = (max - min) / (last - first)
        z = round(clip(first - min / scale, first, last))        halves up
        low, high = (first - z) * scale, (last - z) * scale

    The quotient is a product with ``1 / scale``, and ``origin`` is ``floor(-low / scale + 0.5)``.
    Ranges of channels are those of the last axis.

    Source: TensorFlow 2.21, by reading and running its CPU kernels.
    """
    bits = node.attributes.get_int("num_bits", 8)
    if not 2 <= bits <= _MOST_BITS:
        raise ValueError(f"num_bits is {bits}, expected 2 to {_MOST_BITS}. Correct the exporter")
    x, least, most = (pieces.operand(node, index) for index in range(3))
    op, first = draft.op, float(bool(node.attributes.get_int("narrow_range", 0)))
    last = 2.0**bits - 1
    scale = op.Div(op.Sub(most, least), last - first)
    z = op.Min(op.Max(op.Sub(first, op.Div(least, scale)), first), last)
    whole = op.Floor(z)
    z = op.Where(op.GreaterOrEqual(op.Sub(z, whole), 0.5), op.Add(whole, 1.0), whole)
    low, high = (op.Mul(op.Sub(end, z), scale) for end in (first, last))
    inverse = op.Div(1.0, scale)
    origin = op.Floor(op.Add(op.Mul(op.Neg(low), inverse), 0.5))
    steps = op.Mul(op.Sub(op.Max(op.Min(x, high), low), low), inverse)
    return op.Mul(op.Floor(op.Add(op.Sub(steps, origin), 0.5)), scale)


_NO_GRAPH = "so that no graph is known to be equal. "
_DYNAMIC = (
    "it computes scales of blocks at run time, and NVIDIA does not publish where it rounds, "
    f"{_NO_GRAPH}Run the model in TensorRT, or export it with static scales"
)
_CELL = (
    "it stands for a whole quantized LSTM, and neither Brevitas nor QONNX says where it rounds, "
    f"{_NO_GRAPH}Run the model in Brevitas, or export its steps as separate operators"
)
_QUARK = (
    f"AMD documents no formula for it, {_NO_GRAPH}Run the model with Quark's library, or quantize "
    "it without extended operators"
)

UNDEFINED = {
    "TRT_FP4DynamicQuantize": (("trt",), _DYNAMIC),
    "TRT_MXFP8DynamicQuantize": (("trt",), _DYNAMIC),
    "QuantLSTMCell": (("qonnx.custom_op.general", "onnx.brevitas"), _CELL),
    "ExtendedLSTM": (("com.amd.quark",), _QUARK),
    "ExtendedInstanceNormalization": (("com.amd.quark",), _QUARK),
}
"""The domains of each operator, and why it has no graph."""


def _refusal(reason: str) -> Callable[[Draft, ir.Node], Operand]:
    def refuse(draft: Draft, node: ir.Node) -> Operand:
        raise ValueError(reason)

    return refuse


for _name, (_domains, _reason) in UNDEFINED.items():
    composite(_name, *_domains, is_defined=False)(_refusal(_reason))

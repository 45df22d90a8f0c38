"""Operators of QONNX, TensorFlow and TensorRT defined by graphs, and those without a known graph.

NVIDIA ModelOpt writes the quantizers for TensorRT, in the domain ``trt``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import OpKey
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.ops.composite import (
    FLOAT,
    LAST,
    blocks_of,
    cast,
    composite,
    dtype_of,
    element,
    joined_blocks,
    largest,
    moved,
    operand,
    reshape,
    sizes_of,
)


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
    sizes = sizes_of(node, 0)
    kernel, strides, dilations = (
        tuple(node.attributes.get_ints(name, default))
        for name, default in (("kernel_size", ()), ("stride", ()), ("dilations", (1, 1)))
    )
    pads = node.attributes.get_ints("pad_amount", (0, 0, 0, 0))
    if len(sizes) != 4 or (len(kernel), len(strides), len(dilations), len(pads)) != (2, 2, 2, 4):
        raise ValueError(
            f"its data has shape {list(sizes)}, its kernel_size, stride, dilations and pad_amount "
            f"are {list(kernel)}, {list(strides)}, {list(dilations)}, {list(pads)}; expected "
            "[N, H, W, C], two numbers for each of the first three, and four pads"
        )
    x, dtype = operand(node, 0), dtype_of(node, 0)
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
    x = moved(draft, x, [0, 1, 3, 2, 4, 5])
    channels = sizes[3]
    row = None if channels is None else channels * kernel[0] * kernel[1]
    return reshape(draft, x, [0, *counts, row])


_CHANNELS_OF_RANK = {2: 1, 3: 2, 4: 1}
"""Axis of the channels if the node names no layout: NC, NWC and NCHW."""


@composite("MultiThreshold", "qonnx.custom_op.general", "finn.custom_op.general", "finn")
def multi_threshold(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = out_scale * sum(x >= threshold) + out_bias``, one rounding per operation.

    Thresholds ``[C, T]`` hold for the channels of the data, or one row for all. NaN reaches none.

    Source: QONNX 1.0, by reading and running it.
    """
    x, thresholds = operand(node, 0), operand(node, 1)
    sizes, table = sizes_of(node, 0), sizes_of(node, 1)
    rank, dtype = len(sizes), dtype_of(node, 0)
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
    wide = draft.node("Unsqueeze", [x, LAST], dtype=dtype)
    reached = op.GreaterOrEqual(wide, reshape(draft, thresholds, aligned))
    ones = op.Cast(reached, to=FLOAT)
    count = draft.node("ReduceSum", [ones, LAST], {"keepdims": 0}, dtype=FLOAT)
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
    op, x = draft.op, operand(node, 0)
    is_last = layout == "NHWC"
    x = moved(draft, x, [0, 3, 1, 2]) if is_last else x
    window = {"kernel_shape": [side, side], "strides": [stride, stride]}
    y = draft.node("AveragePool", [x], window, dtype=FLOAT)
    total = op.Round(op.Mul(y, float(side * side)))
    codes = op.Floor(op.Mul(total, 2.0**-shift))
    if is_last and isinstance(codes, ir.Value):
        return moved(draft, codes, [0, 2, 3, 1])
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
    x, least, most = (operand(node, index) for index in range(3))
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


_TRT = "trt"
_FP8 = ir.DataType.FLOAT8E4M3FN
_LARGEST_FP8, _LEAST_FP8, _LARGEST_FP4 = 448.0, 2.0**-9, 6.0
_OPSET_OF_BLOCKS = 21


@composite("TRT_FP8QuantizeLinear", _TRT)
def fp8_quantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``code = FLOAT8E4M3FN(clip(x / scale, -448, 448))``, half to even.

    Source: TensorRT's documentation of quantization schemes.
    """
    zero = np.zeros((), _FP8.numpy())
    return _linear(draft, node, "QuantizeLinear", [draft.constant(zero, "zero_point")], _FP8)


@composite("TRT_FP8DequantizeLinear", _TRT)
def fp8_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = code * scale``, with a zero point: ONNX Runtime copies pairs across reshapes.

    Without a zero point, its copy of the encoder has codes of type UINT8.

    Source: TensorRT's documentation of quantization schemes.
    """
    scale = constant_expression(node.inputs[1])
    zero = None if scale is None else np.zeros(scale.shape, _FP8.numpy())
    more = [] if zero is None else [draft.constant(zero, "zero_point")]
    return _dequantized(draft, node, (_FP8,), more)


@composite("TRT_INT4QuantizeLinear", _TRT, also=[OpKey("", "TRT_INT4QuantizeLinear")])
def int4_quantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``code = round_half_even(clip(x / scale, -8, 7))``, with a scale for each block.

    Source: TensorRT's documentation of quantization schemes.
    """
    draft.needs(_OPSET_OF_BLOCKS)
    dtype = ir.DataType.INT4
    sizes = sizes_of(node, 1)
    if any(size is None for size in sizes):
        raise ValueError("the shape of its scales is not known, expected constants. Fold them")
    zero = np.zeros([size or 0 for size in sizes], dtype.numpy())
    return _linear(draft, node, "QuantizeLinear", [draft.constant(zero, "zero_point")], dtype)


@composite(
    "TRT_INT4DequantizeLinear",
    _TRT,
    also=[OpKey("", "TRT_INT4DequantizeLinear"), OpKey(_TRT, "DequantizeLinear")],
)
def int4_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = code * scale``, with a scale for each block.

    Source: TensorRT's documentation of quantization schemes.
    """
    return _dequantized(draft, node, (ir.DataType.INT4, ir.DataType.INT8))


@composite("TRT_MXFP8DequantizeLinear", _TRT)
def mxfp8_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = code * 2**(scale - 127)`` with scales in bytes, 255 for NaN, for each block.

    In float32, rounded once to the type of the result.

    Source: TensorRT's documentation of quantization schemes; ModelOpt 0.47 for the attributes.
    """
    if dtype_of(node, 0) is not _FP8 or dtype_of(node, 1) is not ir.DataType.UINT8:
        raise ValueError(
            "its data or scales are not FLOAT8E4M3FN and UINT8, so that ModelOpt has not packed "
            "its weights yet. Export the model with ModelOpt's exporter of MXFP8"
        )
    draft.needs(_OPSET_OF_BLOCKS)
    powers = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.nan)
    table = draft.constant(powers.astype(np.float32), "powers")
    index = cast(draft, operand(node, 1), ir.DataType.INT32)
    scale = draft.node("Gather", [table, index], dtype=FLOAT)
    get = node.attributes.get_int
    attributes = {"axis": get("axis", -1), "block_size": get("block_size", 32)}
    operands = [operand(node, 0), scale]
    y = draft.node("DequantizeLinear", operands, attributes, dtype=FLOAT)
    return cast(draft, y, ir.DataType(get("output_dtype", FLOAT.value)))


@composite("TRT_FP4QDQ", _TRT)
def fp4_quantize_dequantize(draft: Draft, node: ir.Node) -> Operand:
    """Write weights in NVFP4: FLOAT4E2M1 in blocks along the last axis, with scales of their own.

    With ``g = max |w| / 2688``, or 1 for a zero matrix, and for each block
    ``s = FLOAT8E4M3FN(clip(max |w| / (6 * g), 2**-9, 448))``, or 1 for a block of zeros,
    ``y = FLOAT4E2M1(w / (s * g)) * (s * g)``; one rounding per operation in float32.

    Source: ModelOpt 0.47, by reading how it replaces this operator by two DequantizeLinear.
    """
    draft.needs(_OPSET_OF_BLOCKS)
    sizes, dtype = sizes_of(node, 0), dtype_of(node, 0)
    size = node.attributes.get_int("block_size", 0)
    if len(sizes) != 2 or size < 1 or not sizes[1] or sizes[1] % size:
        raise ValueError(f"its data has shape {list(sizes)}, expected a matrix of whole blocks")
    op, x = draft.op, cast(draft, operand(node, 0), FLOAT)
    magnitude = op.Abs(x)
    everywhere = draft.node("ReduceMax", [magnitude], {"keepdims": 0}, dtype=FLOAT)
    unit = op.Div(everywhere, _LARGEST_FP4 * _LARGEST_FP8)
    unit = op.Where(op.Equal(unit, 0.0), 1.0, unit)
    blocks = blocks_of(draft, x, sizes, 1, size)
    scale = op.Div(largest(draft, op.Abs(blocks)), op.Mul(unit, _LARGEST_FP4))
    scale = op.Where(op.Equal(scale, 0.0), 1.0, scale)
    scale = op.Min(op.Max(scale, _LEAST_FP8), _LARGEST_FP8)
    scale = op.Mul(op.Cast(op.Cast(scale, to=_FP8), to=FLOAT), unit)
    y = op.Mul(element(draft, op.Div(blocks, scale), MINIFLOATS["FLOAT4E2M1"]), scale)
    return cast(draft, joined_blocks(draft, y, sizes, 1), dtype)


def _dequantized(
    draft: Draft, node: ir.Node, kinds: tuple[ir.DataType, ...], more: Sequence[ir.Value] = ()
) -> Operand:
    dtype = dtype_of(node, 0)
    if dtype not in kinds:
        raise ValueError(
            f"its data is {dtype.name}, expected {' or '.join(k.name for k in kinds)}: ModelOpt "
            "has not packed its weights yet. Export the model with ModelOpt's exporter"
        )
    draft.needs(QDQ_SINCE[dtype.name])
    return _linear(draft, node, "DequantizeLinear", more, dtype_of(node, 1))


def _linear(
    draft: Draft, node: ir.Node, name: str, more: Sequence[ir.Value], dtype: ir.DataType
) -> ir.Value:
    """Return the standard operator with the operands and attributes of ``node``."""
    draft.needs(QDQ_SINCE[dtype.name] if name == "QuantizeLinear" else 1)
    attributes = {
        key: node.attributes.get_int(key, 0)
        for key in ("axis", "block_size")
        if key in node.attributes
    }
    if attributes.get("block_size"):
        draft.needs(_OPSET_OF_BLOCKS)
    operands = [operand(node, 0), operand(node, 1), *more]
    return draft.node(name, operands, attributes, dtype=dtype)


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

"""Quantizers that NVIDIA ModelOpt writes for TensorRT, in the domain ``trt``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import OpKey
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.ops import pieces
from qgraph.ops.composite import composite

_DOMAIN = "trt"
_FP8 = ir.DataType.FLOAT8E4M3FN
_LARGEST_FP8, _LEAST_FP8, _LARGEST_FP4 = 448.0, 2.0**-9, 6.0
_OPSET_OF_BLOCKS = 21


@composite("TRT_FP8QuantizeLinear", _DOMAIN)
def fp8_quantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``code = FLOAT8E4M3FN(clip(x / scale, -448, 448))``, half to even.

    Source: TensorRT's documentation of quantization schemes.
    """
    zero = np.zeros((), _FP8.numpy())
    return _linear(draft, node, "QuantizeLinear", [draft.constant(zero, "zero_point")], _FP8)


@composite("TRT_FP8DequantizeLinear", _DOMAIN)
def fp8_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = code * scale``, with a zero point: ONNX Runtime copies pairs across reshapes.

    Without a zero point, its copy of the encoder has codes of type UINT8.

    Source: TensorRT's documentation of quantization schemes.
    """
    scale = constant_expression(node.inputs[1])
    zero = None if scale is None else np.zeros(scale.shape, _FP8.numpy())
    more = [] if zero is None else [draft.constant(zero, "zero_point")]
    return _dequantized(draft, node, (_FP8,), more)


@composite("TRT_INT4QuantizeLinear", _DOMAIN, also=[OpKey("", "TRT_INT4QuantizeLinear")])
def int4_quantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``code = round_half_even(clip(x / scale, -8, 7))``, with a scale for each block.

    Source: TensorRT's documentation of quantization schemes.
    """
    draft.needs(_OPSET_OF_BLOCKS)
    dtype = ir.DataType.INT4
    sizes = pieces.sizes_of(node, 1)
    if any(size is None for size in sizes):
        raise ValueError("the shape of its scales is not known, expected constants. Fold them")
    zero = np.zeros([size or 0 for size in sizes], dtype.numpy())
    return _linear(draft, node, "QuantizeLinear", [draft.constant(zero, "zero_point")], dtype)


@composite(
    "TRT_INT4DequantizeLinear",
    _DOMAIN,
    also=[OpKey("", "TRT_INT4DequantizeLinear"), OpKey(_DOMAIN, "DequantizeLinear")],
)
def int4_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = code * scale``, with a scale for each block.

    Source: TensorRT's documentation of quantization schemes.
    """
    return _dequantized(draft, node, (ir.DataType.INT4, ir.DataType.INT8))


@composite("TRT_MXFP8DequantizeLinear", _DOMAIN)
def mxfp8_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = code * 2**(scale - 127)`` with scales in bytes, 255 for NaN, for each block.

    In float32, rounded once to the type of the result.

    Source: TensorRT's documentation of quantization schemes; ModelOpt 0.47 for the attributes.
    """
    if pieces.dtype_of(node, 0) is not _FP8 or pieces.dtype_of(node, 1) is not ir.DataType.UINT8:
        raise ValueError(
            "its data or scales are not FLOAT8E4M3FN and UINT8, so that ModelOpt has not packed "
            "its weights yet. Export the model with ModelOpt's exporter of MXFP8"
        )
    draft.needs(_OPSET_OF_BLOCKS)
    powers = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.nan)
    table = draft.constant(powers.astype(np.float32), "powers")
    index = pieces.cast(draft, pieces.operand(node, 1), ir.DataType.INT32)
    scale = draft.node("Gather", [table, index], dtype=pieces.FLOAT)
    get = node.attributes.get_int
    attributes = {"axis": get("axis", -1), "block_size": get("block_size", 32)}
    operands = [pieces.operand(node, 0), scale]
    y = draft.node("DequantizeLinear", operands, attributes, dtype=pieces.FLOAT)
    return pieces.cast(draft, y, ir.DataType(get("output_dtype", pieces.FLOAT.value)))


@composite("TRT_FP4QDQ", _DOMAIN)
def fp4_quantize_dequantize(draft: Draft, node: ir.Node) -> Operand:
    """Write weights in NVFP4: FLOAT4E2M1 in blocks along the last axis, with scales of their own.

    With ``g = max |w| / 2688``, or 1 for a zero matrix, and for each block
    ``s = FLOAT8E4M3FN(clip(max |w| / (6 * g), 2**-9, 448))``, or 1 for a block of zeros,
    ``y = FLOAT4E2M1(w / (s * g)) * (s * g)``; one rounding per operation in float32.

    Source: ModelOpt 0.47, by reading how it replaces this operator by two DequantizeLinear.
    """
    draft.needs(_OPSET_OF_BLOCKS)
    sizes, dtype = pieces.sizes_of(node, 0), pieces.dtype_of(node, 0)
    size = node.attributes.get_int("block_size", 0)
    if len(sizes) != 2 or size < 1 or not sizes[1] or sizes[1] % size:
        raise ValueError(f"its data has shape {list(sizes)}, expected a matrix of whole blocks")
    op, x = draft.op, pieces.cast(draft, pieces.operand(node, 0), pieces.FLOAT)
    magnitude = op.Abs(x)
    everywhere = draft.node("ReduceMax", [magnitude], {"keepdims": 0}, dtype=pieces.FLOAT)
    unit = op.Div(everywhere, _LARGEST_FP4 * _LARGEST_FP8)
    unit = op.Where(op.Equal(unit, 0.0), 1.0, unit)
    blocks = pieces.blocks_of(draft, x, sizes, 1, size)
    scale = op.Div(pieces.largest(draft, op.Abs(blocks)), op.Mul(unit, _LARGEST_FP4))
    scale = op.Where(op.Equal(scale, 0.0), 1.0, scale)
    scale = op.Min(op.Max(scale, _LEAST_FP8), _LARGEST_FP8)
    scale = op.Mul(op.Cast(op.Cast(scale, to=_FP8), to=pieces.FLOAT), unit)
    y = op.Mul(pieces.element(draft, op.Div(blocks, scale), MINIFLOATS["FLOAT4E2M1"]), scale)
    return pieces.cast(draft, pieces.joined_blocks(draft, y, sizes, 1), dtype)


def _dequantized(
    draft: Draft, node: ir.Node, kinds: tuple[ir.DataType, ...], more: Sequence[ir.Value] = ()
) -> Operand:
    dtype = pieces.dtype_of(node, 0)
    if dtype not in kinds:
        raise ValueError(
            f"its data is {dtype.name}, expected {' or '.join(k.name for k in kinds)}: ModelOpt "
            "has not packed its weights yet. Export the model with ModelOpt's exporter"
        )
    draft.needs(QDQ_SINCE[dtype.name])
    return _linear(draft, node, "DequantizeLinear", more, pieces.dtype_of(node, 1))


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
    operands = [pieces.operand(node, 0), pieces.operand(node, 1), *more]
    return draft.node(name, operands, attributes, dtype=dtype)

"""DequantizeLinear: the real values of codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.constants import constant
from qgraph.graph.schema import Attribute, OpSchema
from qgraph.numerics import blocks
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.minifloat import MINIFLOATS, decode
from qgraph.ops import chunks, parameters
from qgraph.ops.operator import operator
from qgraph.ops.quantize_linear import check_zero_point, require_float32_scale

Array = npt.NDArray[Any]

SCHEMA = OpSchema(
    name="DequantizeLinear",
    domains=("", "com.microsoft"),
    inputs=("x", "scale", "zero_point"),
    optional=1,
    since=10,
    attributes=(
        Attribute("axis", 1),
        Attribute("block_size", 0),
        Attribute("output_dtype", 0, parse=ir.DataType),
    ),
    standard=True,
)


def resolve(node: ir.Node) -> dict[str, Any]:
    """Refuse what the definition in float32 does not say.

    Raises: ValueError if the result is not float32, or int32 codes are shifted: their difference
        is one of integers.
    """
    require_float32_scale(node)
    result = ir.DataType(node.attributes.get_int("output_dtype", 0))
    parameters.require_float32("output_dtype", result)
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    if parameters.element_type(zero_point) == ir.DataType.INT32:
        known = constant(zero_point)
        if known is None or known.any():
            raise ValueError(
                "its zero point is INT32 and not 0, whose subtraction float32 cannot express; "
                "expected 0 or a narrower type. Fold it into the codes"
            )
    return {}


def define(
    op: Any,
    x: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: ir.DataType,
) -> Any:
    """Write DequantizeLinear in primitives, for a scale and zero point aligned to the data.

    Both are float32 values and broadcast to ``x``. See :func:`dequantize_linear`.
    """
    q = op.Cast(x, to=ir.DataType.FLOAT)
    return op.Mul(q if zero_point is None else op.Sub(q, zero_point), scale)


@operator(SCHEMA, define=define, resolve=resolve)
def dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: ir.DataType,
) -> Array:
    """Turn codes into real values (ONNX DequantizeLinear; also that of com.microsoft).

    out = (x - zero_point) * scale                       one rounding per operation, in this order

    Computed in float32 and rounded once to the type of the result; the difference is exact, except
    that int32 codes are subtracted in int32 and then rounded to float32.

    Args:
        x: ``[*shape]`` codes of an integer type of up to 32 bits, or a minifloat.
        scale: real units per step: one element, ``[D]`` along ``axis``, or blocked with the rank of
            ``x``. E8M0 scales are their float32 values.
        zero_point: code of the real zero, in the shape of ``scale`` and the type of ``x``; None
            means 0. Must be 0 for minifloats.
        axis: of ``x``, along which scales differ.
        block_size: elements of ``x`` per scale along ``axis``; 0 when not blocked. The last block
            may be smaller.
        output_dtype: type of the result; that of ``scale`` if UNDEFINED.

    Returns: ``[*shape]`` real values.
    Raises: ValueError if shapes, axis and block size do not fit, ``x`` holds no codes, or a
        minifloat has a zero point.
    Source: ONNX DequantizeLinear, versions 10 to 28.
    """
    kind = ir.DataType.from_numpy(x.dtype).name
    if kind not in FORMATS:
        raise ValueError(
            f"its data is {x.dtype}, expected codes of one of {', '.join(FORMATS)}. "
            "Quantize the data first"
        )
    check_zero_point(scale, zero_point, FORMATS[kind])
    result = _result_type(scale, output_dtype)
    shifted = zero_point is not None and bool(zero_point.any())
    if zero_point is not None and shifted and zero_point.dtype != x.dtype:
        raise ValueError(
            f"its zero point is {zero_point.dtype} and its data {x.dtype}, expected the same "
            "type. Cast one of them"
        )
    params = [scale.astype(np.float32, copy=False)]
    if shifted and zero_point is not None:
        params.append(zero_point.astype(np.int32 if kind == "INT32" else np.float32))
    shape, aligned = blocks.align_views(params, x.shape, axis, block_size)

    def work(y: Array, x: Array, s: Array, z: Array | None = None) -> None:
        values = y if y.dtype == np.float32 else np.empty(y.shape, np.float32)
        if z is not None and kind == "INT32":
            np.copyto(values, x - z, casting="same_kind")
        else:
            _decode(x, kind, values)
            if z is not None:
                np.subtract(values, z, out=values)
        np.multiply(values, s, out=values)
        if values is not y:
            np.copyto(y, values, casting="unsafe")

    y = np.empty(shape, result)
    return chunks.fill(work, y, x.reshape(shape), *aligned).reshape(x.shape)


def _decode(x: Array, kind: str, out: Array) -> None:
    """Write the values of codes."""
    if kind in MINIFLOATS:
        decode(x, out)
    else:
        np.copyto(out, x, casting="unsafe")


def _result_type(scale: Array, output_dtype: ir.DataType) -> np.dtype[Any]:
    if output_dtype != ir.DataType.UNDEFINED:
        return numpy_dtype(output_dtype.name)
    if scale.dtype == numpy_dtype("FLOAT8E8M0"):
        raise ValueError(
            "its scale is FLOAT8E8M0 and it has no output_dtype, expected one, since the result "
            "cannot have the type of the scale. Set output_dtype to FLOAT"
        )
    return scale.dtype if scale.dtype.kind not in "iu" else np.dtype(np.float32)

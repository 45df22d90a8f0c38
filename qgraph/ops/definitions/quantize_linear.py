"""QuantizeLinear and DequantizeLinear: codes of an integer type or a minifloat, and their values.

The zero point is added after rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant
from qgraph.graph.schema import Attribute, OpSchema, element_type
from qgraph.graph.scopes import input_of
from qgraph.numerics import Array, blocks, chunks, minifloat
from qgraph.numerics.formats import FORMATS, IntFormat, NumberFormat, container, numpy_dtype
from qgraph.ops import steps
from qgraph.ops.operator import operator
from qgraph.ops.steps import linear_stages

SCHEMA = OpSchema(
    name="QuantizeLinear",
    domains=("", "com.microsoft"),
    inputs=("x", "scale", "zero_point"),
    optional=1,
    since=10,
    attributes=(
        Attribute("axis", 1),
        Attribute("saturate", 1, parse=bool),
        Attribute("block_size", 0),
        Attribute("output_dtype", 0, parse=ir.DataType),
        Attribute("precision", 0, parse=ir.DataType),
    ),
    standard=True,
)


def resolve(node: ir.Node) -> dict[str, ir.DataType]:
    """Return the type of the codes: that of the zero point if it is present.

    Raises: ValueError if the graph does not contain the type of the zero point, or the division is
    not in float32.
    """
    steps.require_float32("data", element_type(node.inputs[0]))
    require_float32_scale(node)
    steps.require_float32("precision", ir.DataType(node.attributes.get_int("precision", 0)))
    zero_point = input_of(node, 2)
    if zero_point is None:
        named = ir.DataType(node.attributes.get_int("output_dtype", 0))
        return {"to": named if named != ir.DataType.UNDEFINED else ir.DataType.UINT8}
    dtype = element_type(zero_point)
    if dtype is None:
        raise ValueError(
            f"the type of its zero point {zero_point.name!r} is unknown, expected a typed value. "
            "Run shape inference first"
        )
    return {"to": dtype}


def define(
    op: Any,
    x: Any,
    scale: Any,
    zero_point: Any = None,
    *,
    axis: int,
    saturate: bool,
    block_size: int,
    output_dtype: ir.DataType,
    precision: ir.DataType,
    to: ir.DataType,
) -> Any:
    """Write QuantizeLinear in primitives, for a scale and zero point aligned to the data.

    Both are float32 values and broadcast to ``x``; ``to`` is the type of the codes. See
    :func:`quantize_linear`.
    """
    target = _target(to)
    y = op.Div(x, scale)
    if not isinstance(target, IntFormat):
        return op.Cast(y, to=to) if saturate else op.Cast(y, to=to, saturate=0)
    z = 0.0 if zero_point is None else zero_point
    lowest, highest = op.Sub(float(target.lo), z), op.Sub(float(target.hi), z)
    q = steps.clamp(op, op.Round(y), lowest, highest)
    q = op.Where(op.IsNaN(q), lowest, q)
    return op.Cast(op.Add(q, z), to=to)


@operator(SCHEMA, define=define, resolve=resolve, stages=linear_stages)
def quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int,
    saturate: bool,
    block_size: int,
    output_dtype: ir.DataType,
    precision: ir.DataType,
) -> Array:
    """Turn real values into codes (ONNX QuantizeLinear; also that of com.microsoft).

    integers    q = min(max(round_half_even(x / scale), lo - zero_point), hi - zero_point)
                code = q + zero_point
    minifloats  code = cast(x / scale)                   one rounding per operation, in this order

    The division is one of its own type (see ``precision``), the rest is exact. NaN gives the lowest
    code of an integer type; everything beyond the range saturates, infinities too. Minifloats
    follow :func:`qgraph.numerics.minifloat.cast`.

    Args:
        x: ``[*shape]`` real values; int32 is converted to the type of the division.
        scale: real units per step: one element, ``[D]`` along ``axis``, or blocked with the rank of
            ``x``. E8M0 scales are their float32 values.
        zero_point: code of the real zero, in the shape of ``scale``; its type is that of the codes.
            None means 0. Must be 0 for minifloats.
        axis: of ``x``, along which scales differ.
        saturate: for 8-bit minifloats, whether overflow stays finite.
        block_size: elements of ``x`` per scale along ``axis``; 0 when not blocked. The last block
            may be smaller.
        output_dtype: type of the codes where there is no zero point; UINT8 if UNDEFINED.
        precision: type of the division; that of ``scale`` if UNDEFINED, and float32 for scales that
            are E8M0 or integers.

    Returns: ``[*shape]`` codes, in the NumPy or ml_dtypes type of their ONNX type.
    Raises: ValueError if shapes, axis and block size do not fit, the type has no codes, or a
        minifloat has a zero point.
    Source: ONNX QuantizeLinear, versions 10 to 28; beyond |x / scale| = 2**31 and for NaN, where
        implementations differ, saturation and the lowest code.
    """
    to = _code_type(zero_point, output_dtype)
    target = _target(to)
    check_zero_point(scale, zero_point, target)
    division = _division_type(scale, precision)
    offset = np.zeros((), np.float32) if zero_point is None else zero_point.astype(np.float32)
    params = scale.astype(division, copy=False), offset
    shape, (s, z) = blocks.align_views(params, x.shape, axis, block_size)
    codes = np.empty(shape, numpy_dtype(to.name))

    def quotient(x: Array, s: Array, like: Array) -> Array:
        y = np.empty(like.shape, division)
        np.divide(x.astype(division, copy=False), s, out=y)
        return y.astype(np.float32, copy=False)

    if not isinstance(target, IntFormat):

        def encode(q: Array, x: Array, s: Array) -> None:
            q[...] = minifloat.encode(quotient(x, s, q), to.name, saturate)

        return chunks.fill(encode, codes, x.reshape(shape), s).reshape(x.shape)

    mask = (1 << target.bits) - 1 if target.bits < 8 else None

    def work(q: Array, x: Array, s: Array, z: Array, lo: Array, hi: Array) -> None:
        y = quotient(x, s, q)
        np.rint(y, out=y)
        np.fmax(y, lo, out=y)  # fmax takes the bound where y is NaN
        np.minimum(y, hi, out=y)
        np.add(y, z, out=y)
        np.copyto(q, y, casting="unsafe")
        if mask is not None:
            np.bitwise_and(q, q.dtype.type(mask), out=q)

    bounds = np.float32(target.lo) - z, np.float32(target.hi) - z
    chunks.fill(work, codes.view(container(to.name)), x.reshape(shape), s, z, *bounds)
    return codes.reshape(x.shape)


def require_float32_scale(node: ir.Node) -> None:
    """Refuse a scale of another type than float32, or E8M0, which is a subset of it.

    Raises: ValueError.
    """
    dtype = element_type(node.inputs[1])
    if dtype != ir.DataType.FLOAT8E8M0:
        steps.require_float32("scale", dtype)


def check_zero_point(scale: Array, zero_point: Array | None, target: NumberFormat) -> None:
    """Refuse a zero point of another shape than the scale, or of a minifloat.

    Raises: ValueError.
    """
    if zero_point is None:
        return
    blocks.expect_one_shape(scale, zero_point)
    if not isinstance(target, IntFormat) and zero_point.astype(np.float32).any():
        raise ValueError(
            f"its zero point of type {target.name} is not 0, which has no meaning for a "
            "minifloat; expected 0. Remove it"
        )


def _code_type(zero_point: Array | None, output_dtype: ir.DataType) -> ir.DataType:
    if zero_point is None:
        return output_dtype if output_dtype != ir.DataType.UNDEFINED else ir.DataType.UINT8
    to = ir.DataType.from_numpy(zero_point.dtype)
    if output_dtype not in (ir.DataType.UNDEFINED, to):
        raise ValueError(
            f"output_dtype is {output_dtype.name} but the zero point is {to.name}, expected the "
            "same type. Remove output_dtype"
        )
    return to


def _target(to: ir.DataType) -> NumberFormat:
    target = FORMATS.get(to.name)
    if target is None or to.name in ("INT32", "FLOAT8E8M0"):
        raise ValueError(
            f"its codes would be {to.name}, expected an integer type of 2 to 16 bits, or a "
            "minifloat of 4 to 8 bits. Change the type of the zero point"
        )
    return target


def _division_type(scale: Array, precision: ir.DataType) -> np.dtype[Any]:
    if precision != ir.DataType.UNDEFINED:
        return numpy_dtype(precision.name)
    # A power of two or an integer names no type to divide in.
    real = scale.dtype.kind not in "iu" and scale.dtype != numpy_dtype("FLOAT8E8M0")
    return scale.dtype if real else np.dtype(np.float32)


DEQUANTIZE_SCHEMA = OpSchema(
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


def resolve_dequantize(node: ir.Node) -> dict[str, Any]:
    """Refuse nodes that the definition in float32 does not cover.

    Raises: ValueError if the result is not float32, or int32 codes have a zero point, which is
    subtracted in integers.
    """
    require_float32_scale(node)
    result = ir.DataType(node.attributes.get_int("output_dtype", 0))
    steps.require_float32("output_dtype", result)
    zero_point = input_of(node, 2)
    if element_type(zero_point) == ir.DataType.INT32:
        stored = constant(zero_point)
        if stored is None or stored.any():
            raise ValueError(
                "its zero point is INT32 and not 0, whose subtraction float32 cannot express; "
                "expected 0 or a narrower type. Fold it into the codes"
            )
    return {}


def define_dequantize(
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


@operator(DEQUANTIZE_SCHEMA, define=define_dequantize, resolve=resolve_dequantize)
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
    codes = ir.DataType.from_numpy(x.dtype).name
    if codes not in FORMATS:
        raise ValueError(
            f"its data is {x.dtype}, expected codes of one of {', '.join(FORMATS)}. "
            "Quantize the data first"
        )
    check_zero_point(scale, zero_point, FORMATS[codes])
    result = _result_type(scale, output_dtype)
    shifted = zero_point is not None and bool(zero_point.any())
    if zero_point is not None and shifted and zero_point.dtype != x.dtype:
        raise ValueError(
            f"its zero point is {zero_point.dtype} and its data {x.dtype}, expected the same "
            "type. Cast one of them"
        )
    params = [scale.astype(np.float32, copy=False)]
    if shifted and zero_point is not None:
        params.append(zero_point.astype(np.int32 if codes == "INT32" else np.float32))
    shape, aligned = blocks.align_views(params, x.shape, axis, block_size)

    def work(y: Array, x: Array, s: Array, z: Array | None = None) -> None:
        values = y if y.dtype == np.float32 else np.empty(y.shape, np.float32)
        if z is not None and codes == "INT32":
            np.copyto(values, x - z, casting="same_kind")
        else:
            if codes in minifloat.MINIFLOATS:
                minifloat.decode(x, values)
            else:
                np.copyto(values, x, casting="unsafe")
            if z is not None:
                np.subtract(values, z, out=values)
        np.multiply(values, s, out=values)
        if values is not y:
            np.copyto(y, values, casting="unsafe")

    y = np.empty(shape, result)
    return chunks.fill(work, y, x.reshape(shape), *aligned).reshape(x.shape)


def _result_type(scale: Array, output_dtype: ir.DataType) -> np.dtype[Any]:
    if output_dtype != ir.DataType.UNDEFINED:
        return numpy_dtype(output_dtype.name)
    if scale.dtype == numpy_dtype("FLOAT8E8M0"):
        raise ValueError(
            "its scale is FLOAT8E8M0 and it has no output_dtype, expected one, since the result "
            "cannot have the type of the scale. Set output_dtype to FLOAT"
        )
    return scale.dtype if scale.dtype.kind not in "iu" else np.dtype(np.float32)

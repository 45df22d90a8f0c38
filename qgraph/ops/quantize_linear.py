"""QuantizeLinear: codes of an integer type or a minifloat, the zero point added after rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.schema import Attribute, OpSchema
from qgraph.numerics import blocks, minifloat
from qgraph.numerics.formats import FORMATS, IntFormat, NumberFormat, numpy_dtype
from qgraph.ops import chunks, parameters, steps
from qgraph.ops.operator import operator

Array = npt.NDArray[Any]

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

_CONTAINERS: dict[tuple[bool, bool], type[np.integer[Any]]] = {
    (False, False): np.uint8,
    (False, True): np.uint16,
    (True, False): np.int8,
    (True, True): np.int16,
}
"""Signed, more than 8 bits: the type that holds one code."""


def resolve(node: ir.Node) -> dict[str, ir.DataType]:
    """Return the type of the codes, which the zero point has where it is present.

    Raises: ValueError if the graph does not tell the type of the zero point, or the division is not
        one of float32.
    """
    parameters.require_float32("data", parameters.element_type(node.inputs[0]))
    require_float32_scale(node)
    parameters.require_float32("precision", ir.DataType(node.attributes.get_int("precision", 0)))
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    if zero_point is None:
        given = ir.DataType(node.attributes.get_int("output_dtype", 0))
        return {"to": given if given != ir.DataType.UNDEFINED else ir.DataType.UINT8}
    known = parameters.element_type(zero_point)
    if known is None:
        raise ValueError(
            f"the type of its zero point {zero_point.name!r} is unknown, expected a typed value. "
            "Run shape inference first"
        )
    return {"to": known}


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


@operator(SCHEMA, define=define, resolve=resolve)
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
    container = codes.view(_CONTAINERS[target.signed, target.bits > 8])
    chunks.fill(work, container, x.reshape(shape), s, z, *bounds)
    return codes.reshape(x.shape)


def require_float32_scale(node: ir.Node) -> None:
    """Refuse a scale of another type than float32, or E8M0, which is a subset of it.

    Raises: ValueError.
    """
    kind = parameters.element_type(node.inputs[1])
    if kind != ir.DataType.FLOAT8E8M0:
        parameters.require_float32("scale", kind)


def check_zero_point(scale: Array, zero_point: Array | None, target: NumberFormat) -> None:
    """Refuse a zero point of another shape than the scale, or of a minifloat.

    Raises: ValueError.
    """
    if zero_point is None:
        return
    if zero_point.shape != scale.shape and (zero_point.size, scale.size) != (1, 1):
        raise ValueError(
            f"its zero point has shape {list(zero_point.shape)}, expected the shape of its scale, "
            f"{list(scale.shape)}. Expand one of them"
        )
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

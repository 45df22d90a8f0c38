"""Cast and Clip: the same numbers in another type, and numbers limited to a range.

Many exporters build quantizers from them.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from qgraph.graph.schema import Attribute, OpSchema
from qgraph.numerics import Array, minifloat
from qgraph.numerics.formats import numpy_dtype
from qgraph.ops.operator import operator

RoundMode = Literal["up", "down", "nearest"]


def _round_mode(text: str) -> RoundMode:
    match text:
        case "up" | "down" | "nearest":
            return text
        case _:
            raise ValueError(f"{text!r} is not known, expected up, down or nearest. Change it")


SCHEMA = OpSchema(
    name="Cast",
    domains=("",),
    inputs=("x",),
    since=6,
    attributes=(
        Attribute("to", parse=ir.DataType),
        Attribute("saturate", 1, parse=bool),
        Attribute("round_mode", "up", parse=_round_mode, kind=ir.AttributeType.STRING),
    ),
    standard=True,
)


def define(op: Any, x: Any, *, to: ir.DataType, saturate: bool, round_mode: RoundMode) -> Any:
    """Write Cast, which is a primitive itself; see :func:`cast`."""
    # Older versions do not have the attributes, so that their defaults are left out.
    more: dict[str, Any] = {} if saturate else {"saturate": 0}
    if round_mode != "up":
        more["round_mode"] = round_mode
    return op.Cast(x, to=to, **more)


@operator(SCHEMA, define=define)
def cast(x: Array, *, to: ir.DataType, saturate: bool, round_mode: RoundMode) -> Array:
    """Convert numbers to another type (ONNX Cast).

    to a float       nearest, ties to even
    to a minifloat   as :func:`qgraph.numerics.minifloat.cast`
    to E8M0          as :func:`qgraph.numerics.minifloat.cast_e8m0`
    to an integer    truncated; from integers the low bits. Out of range the result is undefined.
    to a Boolean     x != 0

    Args:
        x: ``[*shape]`` numbers of any type.
        to: type of the result.
        saturate: for 8-bit minifloats, whether overflow stays finite.
        round_mode: to E8M0: "up", "down" or "nearest".

    Returns: ``[*shape]`` in the NumPy or ml_dtypes type of ``to``.
    Raises: ValueError if ``to`` is not a numeric type.
    Source: ONNX Cast, versions 6 to 28.
    """
    dtype = numpy_dtype(to.name)
    if to == ir.DataType.FLOAT8E8M0:
        return minifloat.cast_e8m0(x, round_mode, saturate).astype(dtype)
    if to.name in minifloat.MINIFLOATS:
        return minifloat.encode(x, to.name, saturate)
    if x.dtype in minifloat.DTYPES.values() and dtype == np.float32:
        return minifloat.decode(x)
    return x.astype(dtype)


_FLOAT = ir.AttributeType.FLOAT
_ABSENT = float("nan")
_LARGEST = float(np.finfo(np.float32).max)

CLIP_SCHEMA = OpSchema(
    name="Clip",
    domains=("",),
    inputs=("x", "low", "high"),
    optional=2,
    since=6,
    attributes=(Attribute("min", _ABSENT, kind=_FLOAT), Attribute("max", _ABSENT, kind=_FLOAT)),
    standard=True,
)


def define_clip(
    op: Any,
    x: Any,
    low: Any = None,
    high: Any = None,
    *,
    min: float,  # noqa: A002 - the attribute's name
    max: float,  # noqa: A002 - the attribute's name
) -> Any:
    """Write Clip in primitives; see :func:`clip`."""
    lowest, highest = _attribute_bounds(min, max)
    low = lowest if low is None else low
    high = highest if high is None else high
    y = x if low is None else op.Max(x, low)
    return y if high is None else op.Min(y, high)


@operator(CLIP_SCHEMA, define=define_clip)
def clip(
    x: Array,
    low: Array | None = None,
    high: Array | None = None,
    *,
    min: float,  # noqa: A002 - the attribute's name
    max: float,  # noqa: A002 - the attribute's name
) -> Array:
    """Limit values to a range (ONNX Clip).

    y = min(max(x, low), high)

    NaN stays NaN; where low > high the result is high.

    Args:
        x: ``[*shape]`` numbers of any type.
        low: lower bound, one element; None for no bound.
        high: upper bound likewise.
        min: lower bound as version 6 has it, an attribute. Where only ``max`` is given, it is the
            lowest finite float32 number, the default of that version; NaN if it is not given.
        max: upper bound likewise.

    Returns: ``[*shape]``, dtype of ``x``.
    Raises: ValueError if a bound has several elements.
    Source: ONNX Clip, versions 6 to 13.
    """
    for name, bound in (("low", low), ("high", high)):
        if bound is not None and bound.size != 1:
            raise ValueError(
                f"its {name} has shape {list(bound.shape)}, expected a scalar. Use Min and Max"
            )
    y = np.array(x)
    limits = (low, high)
    attributes = _attribute_bounds(min, max)
    for function, bound, default in zip((np.maximum, np.minimum), limits, attributes, strict=True):
        if bound is not None:
            function(y, bound.reshape(()).astype(y.dtype), out=y)
        elif default is not None:
            function(y, y.dtype.type(default), out=y)
    return y


def _attribute_bounds(low: float, high: float) -> tuple[float | None, float | None]:
    if math.isnan(low) and math.isnan(high):
        return None, None
    return -_LARGEST if math.isnan(low) else low, _LARGEST if math.isnan(high) else high

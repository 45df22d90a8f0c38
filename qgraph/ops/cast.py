"""Cast: the same numbers in another type."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.schema import Attribute, OpSchema
from qgraph.numerics import minifloat
from qgraph.numerics.formats import numpy_dtype
from qgraph.ops.operator import operator

Array = npt.NDArray[Any]
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

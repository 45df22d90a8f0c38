"""Clip: limiting values to a range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.schema import Attribute, OpSchema
from qgraph.ops.operator import operator

Array = npt.NDArray[Any]

_FLOAT = ir.AttributeType.FLOAT
_INF = float("inf")
_LARGEST = float(np.finfo(np.float32).max)

SCHEMA = OpSchema(
    name="Clip",
    domains=("",),
    inputs=("x", "low", "high"),
    optional=2,
    since=6,
    attributes=(Attribute("min", -_INF, kind=_FLOAT), Attribute("max", _INF, kind=_FLOAT)),
    standard=True,
)


def define(
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


@operator(SCHEMA, define=define)
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
        min: lower bound as version 6 has it, an attribute. Where it or ``max`` is given, both are
            limited to the range of finite float32 numbers, the default of that version.
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
    given = (low, high)
    attributes = _attribute_bounds(min, max)
    for function, bound, default in zip((np.maximum, np.minimum), given, attributes, strict=True):
        if bound is not None:
            function(y, bound.reshape(()).astype(y.dtype), out=y)
        elif default is not None:
            function(y, y.dtype.type(default), out=y)
    return y


def _attribute_bounds(low: float, high: float) -> tuple[float | None, float | None]:
    if low == -_INF and high == _INF:
        return None, None
    return max(low, -_LARGEST), min(high, _LARGEST)

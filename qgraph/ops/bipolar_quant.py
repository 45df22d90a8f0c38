"""BipolarQuant: the sign of a value, times a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.graph.schema import OpSchema
from qgraph.ops import chunks, parameters
from qgraph.ops.operator import operator
from qgraph.ops.quant import QONNX_DOMAINS, bipolar

Array = npt.NDArray[Any]

SCHEMA = OpSchema(name="BipolarQuant", domains=QONNX_DOMAINS, inputs=("x", "scale"))


def define(op: Any, x: Any, scale: Any) -> Any:
    """Write BipolarQuant in primitives; see :func:`bipolar_quant`."""
    return op.Mul(op.Where(op.GreaterOrEqual(x, 0.0), 1.0, -1.0), scale)


@operator(SCHEMA, define=define)
def bipolar_quant(x: Array, scale: Array) -> Array:
    """Replace values by plus or minus the scale (QONNX BipolarQuant).

    out = (+1 if x >= 0 else -1) * scale

    Both zeros give +scale, NaN gives -scale. Not the same as a Quant of one bit, which tests
    x / scale + zero_point.

    Args:
        x: ``[*shape]`` real values of a floating-point type.
        scale: magnitude of the result in real units, cast to the type of ``x``. Broadcasts with
            ``x`` both ways, as NumPy does.

    Returns: ``[*broadcast shape]`` real values, dtype of ``x``.
    Raises: ValueError if the shapes do not broadcast, or ``x`` is not floating-point.
    Source: QONNX BipolarQuant and its executor.
    """
    x = parameters.real_data(x)
    s = np.asarray(scale).astype(x.dtype)
    y = np.empty(parameters.broadcast(x, scale=s), x.dtype)

    def work(y: Array, x: Array, s: Array) -> None:
        np.multiply(bipolar(x >= 0, s.dtype), s, out=y)

    return chunks.fill(work, y, x, s)

"""FakeQuantize: a uniform quantizer given by an input range and an output range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.ops import chunks, parameters
from qgraph.ops.operator import operator
from qgraph.schema import Attribute, OpSchema

Array = npt.NDArray[Any]

_MOST_LEVELS = 1 << 24
_LITTLE = 1 << 12
"""Elements up to which looking at the ranges costs more than it saves."""


def _levels(value: int) -> int:
    if not 2 <= value <= _MOST_LEVELS:
        raise ValueError(
            f"there are {value} levels, expected 2 to {_MOST_LEVELS}, beyond which float32 has no "
            "exact codes. Correct the model's exporter"
        )
    return value


SCHEMA = OpSchema(
    name="FakeQuantize",
    domains=("org.openvinotoolkit", ""),
    inputs=("x", "input_low", "input_high", "output_low", "output_high"),
    attributes=(
        Attribute("levels", parse=_levels),
        Attribute("auto_broadcast", "numpy", kind=ir.AttributeType.STRING),
    ),
)


def define(
    op: Any,
    x: Any,
    input_low: Any,
    input_high: Any,
    output_low: Any,
    output_high: Any,
    *,
    levels: int,
    auto_broadcast: str,
) -> Any:
    """Write FakeQuantize in primitives; see :func:`fake_quantize`."""
    steps = float(levels - 1)
    place = op.Div(op.Sub(x, input_low), op.Sub(input_high, input_low))
    q = op.Round(op.Mul(place, steps))
    inside = op.Add(op.Mul(op.Div(q, steps), op.Sub(output_high, output_low)), output_low)
    below = op.LessOrEqual(x, op.Min(input_low, input_high))
    above = op.Greater(x, op.Max(input_low, input_high))
    return op.Where(below, output_low, op.Where(above, output_high, inside))


@operator(SCHEMA, define=define)
def fake_quantize(
    x: Array,
    input_low: Array,
    input_high: Array,
    output_low: Array,
    output_high: Array,
    *,
    levels: int,
    auto_broadcast: str,
) -> Array:
    """Round to one of ``levels`` evenly spaced levels (OpenVINO FakeQuantize).

    q = round_half_even((x - input_low) / (input_high - input_low) * (levels - 1))
    inside = q / (levels - 1) * (output_high - output_low) + output_low
    out = output_low   if x <= min(input_low, input_high)
          output_high  if x > max(input_low, input_high)
          inside       otherwise, also for NaN           one rounding per operation, in this order

    A range may be reversed, and may be a point: then the result is a step there. At input_high the
    result may differ from output_high by an ulp.

    Args:
        x: ``[*shape]`` real values of a floating-point type.
        input_low: one end of the range that is divided, in real units of ``x``. It and the other
            ends broadcast to ``x`` as NumPy does, and are cast to its type.
        input_high: the other end.
        output_low: real value of level 0.
        output_high: real value of level ``levels - 1``.
        levels: number of levels, 2 to 2**24.
        auto_broadcast: "numpy"; the only rule that is known.

    Returns: ``[*shape]`` real values, dtype of ``x``.
    Raises: ValueError if a range does not broadcast or would enlarge ``x``, or ``x`` is not
        floating-point.
    Source: OpenVINO FakeQuantize-1, its first formula, which is its reference kernel.
    """
    if auto_broadcast != "numpy":
        raise ValueError(f"auto_broadcast is {auto_broadcast!r}, expected 'numpy'. Change it")
    x = parameters.real_data(x)
    il, ih, ol, oh = (
        np.asarray(p).astype(x.dtype) for p in (input_low, input_high, output_low, output_high)
    )
    shape = parameters.broadcast(x, input_low=il, input_high=ih, output_low=ol, output_high=oh)
    if shape != x.shape:
        raise ValueError(
            f"its ranges would enlarge the data from shape {list(x.shape)} to {list(shape)}, "
            "expected ranges that broadcast to the data. Reshape them"
        )
    steps = x.dtype.type(levels - 1)
    plain = x.size > _LITTLE and _clamps(il, ih, ol, oh)

    def work(
        y: Array,
        x: Array,
        il: Array,
        ol: Array,
        oh: Array,
        width: Array,
        height: Array,
        lowest: Array,
        highest: Array,
    ) -> None:
        inside = x
        if plain:
            inside = np.maximum(x, lowest, out=y)
            np.minimum(y, highest, out=y)
        np.subtract(inside, il, out=y)
        np.divide(y, width, out=y)
        np.multiply(y, steps, out=y)
        np.rint(y, out=y)
        np.divide(y, steps, out=y)
        np.multiply(y, height, out=y)
        np.add(y, ol, out=y)
        if not plain:
            chunks.put(y, oh, x > highest)
            chunks.put(y, ol, x <= lowest)

    ends = np.minimum(il, ih), np.maximum(il, ih)
    return chunks.fill(work, np.empty(shape, x.dtype), x, il, ol, oh, ih - il, oh - ol, *ends)


def _clamps(il: Array, ih: Array, ol: Array, oh: Array) -> bool:
    """Return whether the formula for the inside, of data clamped to the range, gives the ends, too.

    That saves two choices, which are slower than everything else together.
    """
    width, height = ih - il, oh - ol
    ends = (height + ol == oh) & np.isfinite(height)
    # A sum that is zero is +0.
    ends &= ~((ol == 0) & np.signbit(ol)) & ~((oh == 0) & np.signbit(oh))
    return bool(np.all(ends)) and bool(np.all((il < ih) & np.isfinite(width)))

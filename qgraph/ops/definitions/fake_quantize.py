"""FakeQuantize: a uniform quantizer given by an input range and an output range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.graph.schema import Attribute, OpSchema
from qgraph.numerics import Array, Float32, chunks
from qgraph.numerics.float32 import multiply_add
from qgraph.ops import steps
from qgraph.ops.operator import operator
from qgraph.records import dataclass

_MOST_LEVELS = 1 << 24
_LITTLE = 1 << 12
"""Number of elements up to which a check of the ranges costs more than it saves."""
_LONGEST_TABLE = 1 << 22
_TWO = 2


class Arithmetic(Choice):
    """The runtime whose float operations define a FakeQuantize."""

    REFERENCE = "reference"
    """Those of its definition, which are those of OpenVINO's reference kernel."""

    PLUGIN = "plugin"
    """Those of OpenVINO's CPU plugin, see :func:`define_plugin`."""


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
    share = op.Div(op.Sub(x, input_low), op.Sub(input_high, input_low))
    q = op.Round(op.Mul(share, steps))
    inside = op.Add(op.Mul(op.Div(q, steps), op.Sub(output_high, output_low)), output_low)
    below = op.LessOrEqual(x, op.Min(input_low, input_high))
    above = op.Greater(x, op.Max(input_low, input_high))
    return op.Where(below, output_low, op.Where(above, output_high, inside))


@dataclass(frozen=True, eq=False)
class PluginSteps:
    """A FakeQuantize as OpenVINO's CPU plugin prepares it.

    Attributes:
        count: number of levels.
        low, high: limits of the input range, float32.
        rate, shift: ``q = round(clamp(x) * rate + shift)``.
        fused_shift: the shift if multiplication and addition are fused.
        step, bottom: ``y = q * step + bottom``.
        first, last: smallest and largest ``q``, over all channels.
    """

    count: int
    low: Array
    high: Array
    rate: Array
    shift: Array
    fused_shift: Array
    step: Array
    bottom: Array
    first: int
    last: int

    def levels(self, *, fused: bool) -> Array:
        """Return every ``q * step + bottom``, ``[last - first + 1, *channels]``.

        Args:
            fused: whether multiplication and addition are rounded once.

        Raises:
            ValueError: there are too many levels.
        """
        shape = np.broadcast_shapes(self.step.shape, self.bottom.shape, self.rate.shape)
        if (self.last - self.first + 1) * math.prod(shape) > _LONGEST_TABLE:
            raise ValueError(
                f"it has {self.count} levels in {math.prod(shape)} channels, too many to "
                f"enumerate, which the plugin's fused arithmetic requires. Use the definition"
            )
        q = np.arange(self.first, self.last + 1, dtype=np.float32)
        q = q.reshape(-1, *(1 for _ in shape))
        levels = _multiply_add(q, self.step, self.bottom, fused=fused)
        return np.broadcast_to(levels, (q.size, *shape))


def plugin_steps(
    input_low: Array, input_high: Array, output_low: Array, output_high: Array, levels: int
) -> PluginSteps:
    """Return the float32 constants that the plugin computes from the ranges.

    Raises:
        ValueError: its result is NaN, or depends on the shape of the data.
    """
    low, high, bottom, above = (
        np.asarray(end, np.float32) for end in (input_low, input_high, output_low, output_high)
    )
    if (low > high).any():
        raise ValueError(_VARIES.format("its input range is reversed"))
    steps = np.float32(levels - 1)
    with np.errstate(all="ignore"):
        rate = steps / (high - low)
        shift, fused_shift = -low * rate, (-low * steps) / (high - low)
        step = (above - bottom) / steps
        ends = [np.rint(end * rate + shift) for end in (low, high)]
    if not all(np.isfinite(array).all() for array in (rate, shift, fused_shift, step, *ends)):
        raise ValueError(
            "OpenVINO's CPU plugin computes NaN with this input range, expected one that is "
            "neither a point nor near the limits of float32. Change it, or use the definition"
        )
    first, last = int(np.min(ends)), int(np.max(ends))
    return PluginSteps(levels, low, high, rate, shift, fused_shift, step, bottom, first, last)


_VARIES = (
    "{}, where what OpenVINO's CPU plugin computes depends on the shape of the data, expected "
    "otherwise. Change it, or use the definition"
)


def define_plugin(op: Any, x: Any, steps: PluginSteps) -> Any:
    """Write the arithmetic of OpenVINO's CPU plugin for a FakeQuantize in primitives.

    rate = (levels - 1) / (input_high - input_low), shift = -input_low * rate
    y = max(min(x, input_high), input_low)                     NaN becomes input_low
    q = round_half_even(y * rate + shift)                      two roundings
    out = q * ((output_high - output_low) / (levels - 1)) + output_low

    The last line is one fused operation, rounded once. Primitives have no such operation, but there
    are few ``q``: the results are a table. For constants see :func:`plugin_codes`.

    Args:
        op: the primitives.
        x: ``[*shape]`` the data, float32.
        steps: what follows from the ranges.

    Raises:
        ValueError: there are 2 levels, for which the plugin has other code, or too many.
    """
    if steps.count == _TWO:
        raise ValueError(_VARIES.format("there are 2 levels"))
    q = op.Round(op.Add(op.Mul(limit(op, x, steps), steps.rate), steps.shift))
    return level_of(op, q, steps)


def plugin_codes(x: Array, steps: PluginSteps) -> tuple[Array, bool]:
    """Return the codes that OpenVINO computes for a constant, and whether it fuses operations.

    It computes constants with one of two other kernels, by the axes along which ranges vary: none
    or the second of data of two axes or more, with fused operations both before and after the
    rounding; all others with none at all.

    Args:
        x: ``[*shape]`` the constant, float32.
        steps: what follows from the ranges.
    """
    joint = np.broadcast_shapes(steps.rate.shape, steps.step.shape)
    varying = {axis - len(joint) + x.ndim for axis, size in enumerate(joint) if size != 1}
    fused = x.ndim > 1 and varying <= {1}
    inside = np.where(x > steps.low, np.minimum(x, steps.high), steps.low)
    shift = steps.fused_shift if fused else steps.shift
    return np.rint(_multiply_add(inside, steps.rate, shift, fused=fused)), fused


def plugin_constant(x: Array, steps: PluginSteps) -> Array:
    """Return a constant as OpenVINO computes it, see :func:`plugin_codes`."""
    codes, fused = plugin_codes(x, steps)
    return _multiply_add(codes, steps.step, steps.bottom, fused=fused)


def limit(op: Any, x: Any, steps: PluginSteps) -> Any:
    """Write ``max(min(x, input_high), input_low)``, where NaN becomes input_low."""
    below = op.Where(op.Greater(x, steps.high), steps.high, x)
    return op.Where(op.Greater(below, steps.low), below, steps.low)


def level_of(op: Any, q: Any, steps: PluginSteps) -> Any:
    """Write the selection of level ``q`` from the table of all, each rounded once."""
    levels = steps.levels(fused=True)
    count, channels = len(levels), levels.shape[1:]
    start = np.arange(levels.size // count).reshape(channels) * count - steps.first
    index = op.Add(q, start.astype(np.float32)) if start.any() else q
    table = np.ascontiguousarray(np.moveaxis(levels, 0, -1)).reshape(-1)
    return op.Gather(table, op.Cast(index, to=ir.DataType.INT64))


def _multiply_add(a: Array, b: Array, c: Array, *, fused: bool) -> Float32:
    """Return ``a * b + c`` of float32 numbers, rounded once if fused."""
    return multiply_add(a, b, c) if fused else np.asarray(a * b + c)


@dataclass(frozen=True, eq=False)
class RangeStages(steps.Stages):
    """The operations of FakeQuantize.

    Parameters are input low, input width, input high, output low, output height and output high.
    Where ``low + height`` is not ``high``, data above the range has a level of its own.
    """

    last: int
    has_top: bool

    @classmethod
    def of(
        cls,
        dtype: np.dtype[Any],
        input_low: Array,
        input_high: Array,
        output_low: Array,
        output_high: Array,
        *,
        levels: int,
        auto_broadcast: str,
    ) -> RangeStages | None:
        """Return the operations on data of ``dtype``; None for ranges without an order of levels.

        Those are reversed, empty, infinite, or end at -0, which the formula does not give.
        """
        del auto_broadcast  # the kernel checks it
        ends = input_low, input_high, output_low, output_high
        il, ih, ol, oh = (np.asarray(end).astype(dtype, copy=False) for end in ends)
        width, height = np.asarray(ih - il), np.asarray(oh - ol)
        if not ((il < ih).all() and np.isfinite(width).all() and np.isfinite(height).all()):
            return None
        if any(((end == 0) & np.signbit(end)).any() for end in (ol, oh)):
            return None
        has_top = not (height + ol == oh).all()
        return cls((il, width, ih, ol, height, oh), levels - 1, has_top)

    def place(self, y: Array, x: Array, *arrays: Array) -> None:
        """Write the position of data in the input range, in levels."""
        low, width, high, *_ = arrays
        above = x > high if self.has_top else None
        np.subtract(x, low, out=y)
        np.divide(y, width, out=y)
        np.multiply(y, y.dtype.type(self.last), out=y)
        if above is not None:
            # Data within the range is at the last level at most.
            np.add(y, above, out=y)

    def level(self, y: Array, *arrays: Array) -> None:
        """Round and clamp."""
        np.rint(y, out=y)
        np.clip(y, 0, self.last + self.has_top, out=y)

    def value(self, y: Array, *arrays: Array) -> None:
        """Write the value of a level in the output range."""
        *_, low, height, high = arrays
        last = y.dtype.type(self.last)
        above = y > last if self.has_top else None
        np.divide(y, last, out=y)
        np.multiply(y, height, out=y)
        np.add(y, low, out=y)
        if above is not None:
            chunks.put(y, high, above)

    def levels(self) -> Array | None:
        """Return all levels."""
        count = self.last + 1 + self.has_top
        return np.arange(count, dtype=np.float32) if count <= steps.MOST_LEVELS else None


@operator(SCHEMA, define=define, stages=RangeStages.of)
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
    x = steps.real_data(x)
    il, ih, ol, oh = (
        np.asarray(p).astype(x.dtype) for p in (input_low, input_high, output_low, output_high)
    )
    shape = steps.broadcast(x, input_low=il, input_high=ih, output_low=ol, output_high=oh)
    if shape != x.shape:
        raise ValueError(
            f"its ranges would enlarge the data from shape {list(x.shape)} to {list(shape)}, "
            "expected ranges that broadcast to the data. Reshape them"
        )
    ranges: dict[str, Any] = {"levels": levels, "auto_broadcast": auto_broadcast}
    stages = RangeStages.of(x.dtype, il, ih, ol, oh, **ranges) if x.size > _LITTLE else None
    if stages is not None:
        return steps.fill(stages, shape, x)
    last = x.dtype.type(levels - 1)

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
        np.subtract(x, il, out=y)
        np.divide(y, width, out=y)
        np.multiply(y, last, out=y)
        np.rint(y, out=y)
        np.divide(y, last, out=y)
        np.multiply(y, height, out=y)
        np.add(y, ol, out=y)
        chunks.put(y, oh, x > highest)
        chunks.put(y, ol, x <= lowest)

    ends = np.minimum(il, ih), np.maximum(il, ih)
    return chunks.fill(work, np.empty(shape, x.dtype), x, il, ol, oh, ih - il, oh - ol, *ends)

"""Parts of drafts: from real values to codes and back, in float operators and in Q/DQ nodes.

The order of operations is that of the quantizers' definitions::

    codes        clamp(round(x / scale + zero_point))            x -> steps_of -> clip
    real values  (codes - zero_point) * scale                    real_values, dequantize

Operations that change no value, such as a division by 1, are omitted. The scales of a
DequantizeLinear may be stored in a smaller type that decodes to the same float32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.graph.edit import HALF_TYPES, Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.numerics import Array, Float32
from qgraph.numerics.formats import FORMATS, holding, numpy_dtype
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.ops.steps import clamp
from qgraph.quantizers.dialects.layout import Layout
from qgraph.quantizers.quantizer import Affine, Ranged, Recipe, Truncating
from qgraph.records import dataclass, replace

Form = Callable[[Draft, ir.Value], Operand]
"""Appends the decoding of some codes to a draft."""

CODE_TYPES = ("UINT8", "INT8", "UINT16", "INT16")
"""Types for codes of activations, most widely supported first."""

CLIPPABLE = ("UINT8", "INT8")
"""Types whose codes Clip accepts in every runtime."""

EXACT = np.float32(1 << 24)
"""Integers up to it are exact in float32."""

SCALAR = Layout(None, 0, ())
ONE, ZERO = np.ones((), np.float32), np.zeros((), np.float32)

_MOST_LEVELS = 1 << 16
"""Maximum number of levels that are all decoded to test a scale and a zero point."""

_SINCE_HALF = 19
"""First opset in which scales, and so the data, may have 16-bit types."""

_OUTPUT_TYPE_SINCE = 23
"""First opset in which DequantizeLinear has an output type other than that of the scale."""

_E8M0_SINCE = 24

_LEAST_BLOCKS = 16
"""Minimum number of scales for which storing them as codes with a second scale saves bytes."""


class Scales(Choice):
    """Allowed types of scales.

    * ``float32``: the type of the data, which every reader supports.
    * ``smallest``: E8M0, FLOAT8E4M3FN with one float32 scale, float16 or bfloat16 if the values are
      equal; for readers of opset 23 or 24.
    """

    FLOAT = "float32"
    SMALLEST = "smallest"


@dataclass(frozen=True)
class CodeType:
    """An integer type for the codes of a quantizer.

    Attributes:
        kind: ONNX type.
        lo, hi: the smallest and the largest code of all channels.
        is_uniform: whether they are equal in all channels.
    """

    kind: str
    lo: float
    hi: float
    is_uniform: bool

    @classmethod
    def of(cls, lo: Float32, hi: Float32, kinds: tuple[str, ...] = CODE_TYPES) -> CodeType | None:
        """Return the first of ``kinds`` that can represent all codes; None if none can.

        Malformed quantizers have no codes: their smallest one is above the largest.
        """
        low, high = float(lo.min()), float(hi.max())
        type_name = holding(low, high, kinds) if low <= high else None
        uniform = bool((lo == low).all() and (hi == high).all())
        return None if type_name is None else cls(type_name, low, high, uniform)

    @property
    def is_full(self) -> bool:
        """Whether the codes fill the type, so that saturation clamps them."""
        form = FORMATS[self.kind]
        return self.is_uniform and (self.lo, self.hi) == (form.lo, form.hi)

    @property
    def clamps(self) -> bool:
        """Whether saturation, or one Clip on codes, clamps all channels."""
        return self.is_full or (self.is_uniform and self.kind in CLIPPABLE)

    def quantize(
        self, draft: Draft, x: Operand, scale: Float32, zero_point: Float32, layout: Layout
    ) -> ir.Value:
        """Append a QuantizeLinear, and a Clip if :attr:`clamps` needs one."""
        codes = quantize(draft, x, scale, zero_point, self.kind, layout)
        if self.is_full or not self.clamps:
            return codes
        return clip_codes(draft, codes, self.lo, self.hi, self.kind)


def quantize(
    draft: Draft, x: Operand, scale: Float32, zero_point: Float32, type_name: str, layout: Layout
) -> ir.Value:
    """Append a QuantizeLinear to codes of type ``type_name``."""
    stored = draft.constant(layout.lay(scale), "scale")
    dtype = ir.DataType[type_name]
    return _linear(draft, "QuantizeLinear", x, stored, zero_point, type_name, layout, dtype)


def dequantize(
    draft: Draft,
    codes: Operand,
    scale: Float32,
    zero_point: Float32,
    type_name: str,
    layout: Layout,
    dtype: ir.DataType = ir.DataType.FLOAT,
) -> ir.Value:
    """Append a DequantizeLinear, without a zero point if that is 0 everywhere."""
    laid = layout.lay(scale)
    stored = draft.constant(laid.astype(numpy_dtype(dtype.name), copy=False), "scale")
    return _linear(draft, "DequantizeLinear", codes, stored, zero_point, type_name, layout, dtype)


def _linear(
    draft: Draft,
    name: str,
    x: Operand,
    scale: ir.Value,
    zero_point: Float32,
    type_name: str,
    layout: Layout,
    dtype: ir.DataType,
    **attributes: int,
) -> ir.Value:
    operands: list[Operand | None] = [x, scale]
    if name == "QuantizeLinear" or zero_point.any():
        codes = np.broadcast_to(layout.lay(zero_point), layout.shape).astype(numpy_dtype(type_name))
        operands.append(draft.constant(codes, "zero_point"))
    is_half = draft.x.dtype in HALF_TYPES or dtype in HALF_TYPES
    draft.needs(max(layout.opset, QDQ_SINCE[type_name], _SINCE_HALF if is_half else 1))
    return draft.node(name, operands, layout.attributes | attributes, dtype=dtype)


def dequantized(
    layout: Layout,
    scale: Float32,
    zero_point: Float32,
    type_name: str,
    dtype: ir.DataType,
    scales: Scales,
) -> Iterator[Form]:
    """Yield ways to append a DequantizeLinear with result ``dtype``, smallest scales first."""
    laid = np.asarray(layout.lay(scale), order="C")

    def node(draft: Draft, codes: ir.Value, value: ir.Value, **attributes: int) -> ir.Value:
        name, to = "DequantizeLinear", ir.DataType.FLOAT
        return _linear(draft, name, codes, value, zero_point, type_name, layout, to, **attributes)

    def typed(stored: Array, since: int) -> Form:
        def form(draft: Draft, codes: ir.Value) -> Operand:
            draft.needs(since)
            to = int(ir.DataType.FLOAT)
            return node(draft, codes, draft.constant(stored, "scale"), output_dtype=to)

        return form

    def chained(numbers: Array, factor: np.float32) -> Form:
        def form(draft: Draft, codes: ir.Value) -> Operand:
            draft.needs(QDQ_SINCE["FLOAT8E4M3FN"])
            operands = [draft.constant(numbers, "scale"), draft.constant(factor, "scale_scale")]
            value = draft.node("DequantizeLinear", operands, dtype=ir.DataType.FLOAT)
            return node(draft, codes, value)

        return form

    if scales is Scales.SMALLEST and dtype is ir.DataType.FLOAT and laid.size > 1:
        powers = _exactly(laid, "FLOAT8E8M0") if (laid > 0).all() else None
        if powers is not None:
            yield typed(powers, _E8M0_SINCE)
        pair = two_levels(laid) if laid.size >= _LEAST_BLOCKS else None
        if pair is not None:
            yield chained(*pair)
        for name in ("FLOAT16", "BFLOAT16"):
            narrow = _exactly(laid, name)
            if narrow is not None:
                yield typed(narrow, _OUTPUT_TYPE_SINCE)
    yield lambda draft, codes: dequantize(draft, codes, scale, zero_point, type_name, layout, dtype)


def two_levels(scale: Float32) -> tuple[Array, np.float32] | None:
    """Return FLOAT8E4M3FN numbers and a factor whose float32 products are exactly ``scale``.

    None if there are none, or the scales are not all positive numbers.
    """
    values = np.unique(scale)
    positive = MINIFLOATS["FLOAT8E4M3FN"]
    if not (np.isfinite(values).all() and values[0] > 0):
        return None
    # Only the mantissa of the largest scale is free; its exponent is the highest one.
    for mantissa in range(15, 7, -1):
        number = np.float32(mantissa * (32 if mantissa < 15 else 16))
        guess = np.float32(values[-1] / number)
        for factor in (guess, *(np.nextafter(guess, np.float32(end)) for end in (0, np.inf))):
            with np.errstate(all="ignore"):
                if np.array_equal(positive.snap(values / factor) * factor, values):
                    numbers = positive.snap(scale / factor)
                    return numbers.astype(numpy_dtype("FLOAT8E4M3FN")), np.float32(factor)
    return None


def _exactly(laid: Float32, name: str) -> Array | None:
    with np.errstate(all="ignore"):
        narrow = laid.astype(numpy_dtype(name))
        return narrow if np.array_equal(narrow.astype(np.float32), laid) else None


def clip(draft: Draft, x: Operand, lo: Float32, hi: Float32) -> Operand:
    """Append a clamp in float: one Clip if the bounds are single numbers."""
    if lo.size == hi.size == 1:
        bounds = [draft.constant(bound.reshape(()), "bound") for bound in (lo, hi)]
        return draft.node("Clip", [x, *bounds], dtype=ir.DataType.FLOAT)
    bounded: Operand = clamp(draft.op, x, lo, hi)
    return bounded


def clip_codes(draft: Draft, codes: Operand, lo: float, hi: float, type_name: str) -> ir.Value:
    """Append a Clip on codes."""
    draft.needs(12)
    bounds = [
        draft.constant(np.array(bound, numpy_dtype(type_name)), "bound") for bound in (lo, hi)
    ]
    return draft.node("Clip", [codes, *bounds], dtype=ir.DataType[type_name])


def is_whole(zero_point: Float32) -> bool:
    """Return whether a zero point consists of integers."""
    return bool((zero_point == np.rint(zero_point)).all())


def holds(type_name: str, values: Float32) -> bool:
    """Return whether all ``values`` lie in the range of ``type_name``."""
    return bool((values >= FORMATS[type_name].lo).all() and (values <= FORMATS[type_name].hi).all())


def are_codes(type_name: str, zero_point: Float32) -> bool:
    """Return whether a zero point consists of codes of ``type_name``."""
    return is_whole(zero_point) and holds(type_name, zero_point)


def counted_from_zero_point(meaning: Affine) -> Affine | None:
    """Return the same quantizer with codes minus the zero point; None if there is none.

    It exists if the zero point is added after rounding, or is 0.
    """
    zero_point, decoding = meaning.zero_point, meaning.decoding
    if not zero_point.any():
        return meaning
    if meaning.recipe is Recipe.OFFSET_FIRST or not is_whole(zero_point):
        return None
    lo, hi = meaning.lo - zero_point, meaning.hi - zero_point
    if not ((np.abs(lo) <= EXACT) & (np.abs(hi) <= EXACT)).all():
        return None
    if decoding is not None:
        decoding = replace(decoding, zero_point=decoding.zero_point - zero_point)
    return replace(meaning, zero_point=ZERO, lo=lo, hi=hi, decoding=decoding)


def steps_of(draft: Draft, x: Operand, scale: Float32, zero_point: Float32) -> Operand:
    """Append ``x / scale + zero_point``."""
    y = draft.op.Div(x, scale) if (scale != 1).any() else x
    return draft.op.Add(y, zero_point) if zero_point.any() else y


def truncated(draft: Draft, x: Operand, meaning: Truncating) -> Operand:
    """Append the operations of Trunc up to its second rounding."""
    codes = draft.op.Round(steps_of(draft, x, meaning.scale, meaning.zero_point))
    return draft.op.Div(codes, meaning.ratio) if (meaning.ratio != 1).any() else codes


def real_values(draft: Draft, codes: Operand, scale: Float32, zero_point: Float32) -> Operand:
    """Append ``(codes - zero_point) * scale``."""
    y = draft.op.Sub(codes, zero_point) if zero_point.any() else codes
    return draft.op.Mul(y, scale) if (scale != 1).any() else y


def decoded(draft: Draft, codes: Operand, meaning: Affine) -> Operand:
    """Append the real values of the codes of ``meaning``."""
    return real_values(draft, codes, meaning.to_real.scale, meaning.to_real.zero_point)


def range_steps(draft: Draft, x: Operand, meaning: Ranged) -> Operand:
    """Append ``(x - input_low) / (input_high - input_low) * (levels - 1)``."""
    y = draft.op.Sub(x, meaning.input_low) if meaning.input_low.any() else x
    y = draft.op.Div(y, meaning.input_high - meaning.input_low)
    return draft.op.Mul(y, np.float32(meaning.levels - 1))


def range_values(draft: Draft, codes: Operand, low: Float32, high: Float32, top: float) -> Operand:
    """Append ``codes / top * (high - low) + low``, the values of FakeQuantize's own formula."""
    with np.errstate(all="ignore"):
        span = high - low
    y: Operand = draft.op.Mul(draft.op.Div(codes, np.float32(top)), span)
    return draft.op.Add(y, low) if low.any() else y


def split_top(draft: Draft, y: Operand, x: Operand, limit: Any, high: Float32) -> Operand:
    """Append ``high`` where ``x > limit``, ``y`` elsewhere.

    For half of all ranges ``span + low`` is not ``high``, so inputs above have a separate level.
    """
    return draft.op.Where(draft.op.Greater(x, limit), high, y)


def level_values(draft: Draft, codes: Operand, meaning: Ranged) -> Operand:
    """Append the levels of FakeQuantize codes: ``(codes - zero_point) * scale`` if it is equal."""
    if meaning.decoding is not None:
        return real_values(draft, codes, meaning.decoding.scale, meaning.decoding.zero_point)
    low, high, top = meaning.output_low, meaning.output_high, meaning.levels - 1
    scale, zero_point = even_steps(low, high, top)
    count = meaning.levels * np.prod(np.broadcast_shapes(low.shape, high.shape))
    if count <= _MOST_LEVELS:
        q = np.arange(meaning.levels, dtype=np.float32).reshape(-1, *[1] * max(low.ndim, high.ndim))
        with np.errstate(all="ignore"):
            levels = q / np.float32(top) * (high - low) + low
            if np.array_equal(np.broadcast_to((q - zero_point) * scale, levels.shape), levels):
                return real_values(draft, codes, scale, zero_point)
    return range_values(draft, codes, low, high, top)


def even_steps(low: Float32, high: Float32, top: float) -> tuple[Float32, Float32]:
    """Return step and zero point of ``top + 1`` evenly spaced levels; for one level, 1 / top."""
    with np.errstate(all="ignore"):
        span = high - low
        step = np.where(span == 0, np.float32(1), span) / np.float32(top)
        scale = step.astype(np.float32)
        return scale, np.rint(-low / scale)

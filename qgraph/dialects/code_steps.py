"""Float operators between real values and whole-number codes, put around a dialect's own operator.

The order of operations is that of the quantizers' definitions; operations that change no value are
left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qgraph.graph.edit import Draft, Operand
from qgraph.quantizer import Affine, Decoding, Ranged, Recipe, Truncating

Float32 = npt.NDArray[np.float32]

EXACT = np.float32(1 << 24)
"""Whole numbers up to it are exact in float32."""

MOST_LEVELS = 1 << 16
"""Levels up to which a table of all of them is looked at."""


def counted_from_zero_point(meaning: Affine) -> Affine | None:
    """Return the same quantizer with codes that have no zero point; None where there is no such.

    That is so where the zero point is added to whole numbers, or is 0.
    """
    zero_point = meaning.zero_point
    if not zero_point.any():
        return meaning
    if meaning.recipe is Recipe.OFFSET_FIRST or not (zero_point == np.rint(zero_point)).all():
        return None
    lo, hi = meaning.lo - zero_point, meaning.hi - zero_point
    if not ((np.abs(lo) <= EXACT) & (np.abs(hi) <= EXACT)).all():
        return None
    none = np.zeros((), np.float32)
    decoding = meaning.decoding
    if decoding is not None:
        decoding = replace(decoding, zero_point=decoding.zero_point - zero_point)
    return replace(meaning, zero_point=none, lo=lo, hi=hi, decoding=decoding)


def steps_of(draft: Draft, x: Operand, scale: Float32, zero_point: Float32) -> Operand:
    """Append ``x / scale + zero_point``."""
    y = draft.op.Div(x, scale) if (scale != 1).any() else x
    return draft.op.Add(y, zero_point) if zero_point.any() else y


def real_values(draft: Draft, codes: Operand, scale: Float32, zero_point: Float32) -> Operand:
    """Append ``(codes - zero_point) * scale``."""
    y = draft.op.Sub(codes, zero_point) if zero_point.any() else codes
    return draft.op.Mul(y, scale) if (scale != 1).any() else y


def decoded(draft: Draft, codes: Operand, meaning: Affine) -> Operand:
    """Append what turns the codes of ``meaning`` into real values."""
    rule = meaning.decoding or Decoding(meaning.scale, meaning.zero_point)
    return real_values(draft, codes, rule.scale, rule.zero_point)


def truncated(draft: Draft, x: Operand, meaning: Truncating) -> Operand:
    """Append the operations of Trunc up to its second rounding."""
    codes = draft.op.Round(steps_of(draft, x, meaning.scale, meaning.zero_point))
    return draft.op.Div(codes, meaning.ratio) if (meaning.ratio != 1).any() else codes


def places(draft: Draft, x: Operand, meaning: Ranged) -> Operand:
    """Append where in its input range a FakeQuantize sees ``x``, in steps."""
    y = draft.op.Sub(x, meaning.input_low) if meaning.input_low.any() else x
    y = draft.op.Div(y, meaning.input_high - meaning.input_low)
    return draft.op.Mul(y, np.float32(meaning.levels - 1))


def level_values(draft: Draft, codes: Operand, meaning: Ranged) -> Operand:
    """Append what turns the codes of a FakeQuantize into its levels: the shortest that does."""
    top = np.float32(meaning.levels - 1)
    low, span = meaning.output_low, meaning.output_high - meaning.output_low
    if meaning.decoding is not None:
        return real_values(draft, codes, meaning.decoding.scale, meaning.decoding.zero_point)
    with np.errstate(all="ignore"):
        scale = span / top
        zero_point = np.rint(-low / scale)
        if _decodes(meaning, scale, zero_point):
            return real_values(draft, codes, scale, zero_point)
    y = draft.op.Mul(draft.op.Div(codes, top), span)
    return draft.op.Add(y, low) if low.any() else y


def _decodes(meaning: Ranged, scale: Float32, zero_point: Float32) -> bool:
    """Return whether ``(q - zero_point) * scale`` is each level of a FakeQuantize."""
    shape = np.broadcast_shapes(meaning.output_low.shape, meaning.output_high.shape)
    if meaning.levels * np.prod(shape) > MOST_LEVELS:
        return False
    q = np.arange(meaning.levels, dtype=np.float32).reshape(-1, *(1 for _ in shape))
    top, low = np.float32(meaning.levels - 1), meaning.output_low
    levels = q / top * (meaning.output_high - low) + low
    return bool(np.array_equal(np.broadcast_to((q - zero_point) * scale, levels.shape), levels))

"""Forms of a quantizer that keep NaN and the sign of zero, for ONNX Runtime, the fastest first.

A pair of QuantizeLinear and DequantizeLinear touches the data twice and codes of a quarter of its
size, float operators once each. The pair loses NaN, which Max and Min bring back at the price of
another pair, and gives +0 for small negative values, which a chain of float operators does not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qgraph.dialects.definition import by_definition
from qgraph.dialects.dialect import Site
from qgraph.dialects.granularity import layout_of
from qgraph.dialects.qdq_nodes import (
    CLIPPABLE,
    clip,
    clip_codes,
    dequantize,
    holding,
    quantize,
)
from qgraph.dialects.qdq_pairs import pairs
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.numerics.formats import FORMATS
from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import operator_of
from qgraph.ops.steps import round_to_integer
from qgraph.quantizer import Affine, Floating, Ranged


def runtime_forms(site: Site, editor: Editor, *, numbers: bool) -> Iterator[Draft]:
    """Yield the forms of ``site``, the fastest first, its definition last.

    Nodes that are no quantizers may precede the quantizer in ``site``; its forms do without them.

    Args:
        site: the quantizer.
        editor: makes the drafts.
        numbers: also yield forms that lose NaN.
    """
    match site.quantizer:
        case Affine() as meaning:
            for keeps_nan in (False, True) if numbers else (True,):
                yield from _pair(site, editor, meaning, keeps_nan=keeps_nan)
            yield from _affine_chains(site, editor, meaning)
        case Ranged() as meaning:
            yield from _ranged_chains(site, editor, meaning)
        case Floating():
            yield from pairs(site, editor)
    if all(operator_of(node) is not None for node in site.nodes):
        yield from by_definition(site, editor)


def _pair(site: Site, editor: Editor, meaning: Affine, *, keeps_nan: bool) -> Iterator[Draft]:
    """Yield the pair, or ``min(max(x, top), pair)``: no value exceeds it, so that NaN is kept."""
    scale, zero_point = meaning.scale, meaning.zero_point
    lo, hi = float(meaning.lo.min()), float(meaning.hi.max())
    kind = holding(lo, hi, CLIPPABLE)
    layout = layout_of(site.shape or None, scale)
    single = (meaning.lo == lo).all() and (meaning.hi == hi).all()
    nearest = meaning.rounding is Rounding.ROUND
    if kind is None or layout is None or not single or not nearest or zero_point.any():
        return
    draft = editor.draft(site)
    codes = quantize(draft, draft.x, scale, np.zeros_like(scale), kind, layout)
    if (lo, hi) != (FORMATS[kind].lo, FORMATS[kind].hi):
        codes = clip_codes(draft, codes, lo, hi, kind)
    pair = dequantize(draft, codes, scale, np.zeros_like(scale), kind, layout)
    if not keeps_nan:
        yield draft.giving(pair)
        return
    with np.errstate(over="ignore"):
        top = np.maximum(np.float32(lo) * scale, np.float32(hi) * scale)
    yield draft.giving(draft.op.Min(draft.op.Max(draft.x, top), pair))


def _affine_chains(site: Site, editor: Editor, meaning: Affine) -> Iterator[Draft]:
    """Yield ``(round(clip(x / s + z)) - z) * s``, for z = 0 also without the addition.

    The addition of 0 makes +0 of -0.
    """
    zero_point = meaning.zero_point
    for adds in (True,) if zero_point.any() else (False, True):
        draft = editor.draft(site)
        y = draft.op.Div(draft.x, meaning.scale)
        y = draft.op.Add(y, zero_point) if adds else y
        y = clip(draft, y, meaning.lo, meaning.hi)
        y = round_to_integer(draft.op, y, meaning.rounding)
        y = draft.op.Sub(y, zero_point) if zero_point.any() else y
        yield draft.giving(draft.op.Mul(y, meaning.scale))


def _ranged_chains(site: Site, editor: Editor, meaning: Ranged) -> Iterator[Draft]:
    """Yield FakeQuantize's formula on data clamped to the range, without its comparisons.

    Operations with 0 are left out first. At the top of the range the formula may miss the upper
    end by an ulp: then what lies above is a level of its own.
    """
    if not (meaning.input_low < meaning.input_high).all():
        return
    top = np.float32(meaning.levels - 1)
    with np.errstate(all="ignore"):
        span = meaning.output_high - meaning.output_low
        width = meaning.input_high - meaning.input_low
    moves = [True] if meaning.output_low.any() else [False, True]
    for adds, splits_top in [(adds, splits) for splits in (False, True) for adds in moves]:
        draft = editor.draft(site)
        y: Operand = clip(draft, draft.x, meaning.input_low, meaning.input_high)
        y = draft.op.Sub(y, meaning.input_low) if meaning.input_low.any() else y
        y = draft.op.Round(draft.op.Mul(draft.op.Div(y, width), top))
        y = draft.op.Mul(draft.op.Div(y, top), span)
        y = draft.op.Add(y, meaning.output_low) if adds else y
        if splits_top:
            above = draft.op.Greater(draft.x, meaning.input_high)
            y = draft.op.Where(above, meaning.output_high, y)
        yield draft.giving(y)

"""Pairs of QuantizeLinear and DequantizeLinear for data that is only known at run time.

From the tightest to the plainest, each exact under its own conditions:

1. the plain pair, with a Clip on the codes where they do not fill their type;
2. the data clamped in float first, then the pair: no Clip on codes, so any width up to 16;
3. the float operations up to rounding, then QuantizeLinear with scale 1, which only rounds and
   stores; DequantizeLinear with the real scale and zero point;
4. as before, and the real value computed in float operators from the whole-number codes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Site
from qgraph.dialects.granularity import Layout, layout_of
from qgraph.dialects.qdq_nodes import (
    CLIPPABLE,
    CODE_TYPES,
    ONE,
    SCALAR,
    ZERO,
    are_codes,
    clip,
    clip_codes,
    dequantize,
    holding,
    holds,
    quantize,
)
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.numerics.formats import FORMATS, find_minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.ops.steps import round_to_integer
from qgraph.quantizer import Affine, Bipolar, Decoding, Floating, Ranged, Truncating

Float32 = npt.NDArray[np.float32]


def pairs(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the spellings of ``site`` with QuantizeLinear, tightest first."""
    match site.quantizer:
        case Affine() as meaning:
            yield from _affine(site, editor, meaning)
        case Ranged() as meaning:
            yield from _ranged(site, editor, meaning)
        case Floating() as meaning:
            yield from _floating(site, editor, meaning)
        case Bipolar(scale):
            yield from _bipolar(site, editor, scale)
        case Truncating() as meaning:
            yield from _truncating(site, editor, meaning)


def _affine(site: Site, editor: Editor, meaning: Affine) -> Iterator[Draft]:
    scale, zero_point = meaning.scale, meaning.zero_point
    lo, hi = float(meaning.lo.min()), float(meaning.hi.max())
    kind = holding(lo, hi, CODE_TYPES)
    if kind is None:
        return
    uniform = bool((meaning.lo == lo).all() and (meaning.hi == hi).all())
    full = uniform and (lo, hi) == (FORMATS[kind].lo, FORMATS[kind].hi)
    decoding = meaning.decoding or Decoding(scale, zero_point)
    inner = layout_of(site.shape or None, scale, zero_point)
    outer = layout_of(site.shape or None, decoding.scale, decoding.zero_point)
    coded = outer is not None and are_codes(kind, decoding.zero_point)
    nearest = meaning.rounding is Rounding.ROUND
    if inner is not None and coded and nearest and are_codes(kind, zero_point):
        if full or (uniform and kind in CLIPPABLE):
            draft = editor.draft(site)
            codes = quantize(draft, draft.x, scale, zero_point, kind, inner)
            codes = codes if full else clip_codes(draft, codes, lo, hi, kind)
            yield _decoded(draft, codes, decoding, kind, outer)
        if not full and np.isfinite(scale).all():
            draft = editor.draft(site)
            with np.errstate(over="ignore"):
                ends = [(end - zero_point) * scale for end in (meaning.lo, meaning.hi)]
            inside = clip(draft, draft.x, np.minimum(*ends), np.maximum(*ends))
            codes = quantize(draft, inside, scale, zero_point, kind, inner)
            yield _decoded(draft, codes, decoding, kind, outer)
    for layout in (outer, None) if coded else (None,):
        draft = editor.draft(site)
        codes = _offset_codes(draft, meaning, kind, full=full)
        yield _decoded(draft, codes, decoding, kind, layout)
        if uniform and (lo, hi) == (-1, 1):
            # One signed bit has the codes -1 and 1, and no rounding.
            draft = editor.draft(site)
            codes = _signs(draft, _steps_of(draft, meaning))
            yield _decoded(draft, codes, decoding, kind, layout)


def _decoded(
    draft: Draft, codes: Operand, decoding: Decoding, kind: str, layout: Layout | None
) -> Draft:
    """Finish a draft with ``(codes - zero_point) * scale``; in float where there is no layout."""
    scale, zero_point = decoding.scale, decoding.zero_point
    if layout is not None:
        return draft.giving(dequantize(draft, codes, scale, zero_point, kind, layout))
    steps: Operand = dequantize(draft, codes, ONE, ZERO, kind, SCALAR)
    steps = draft.op.Sub(steps, zero_point) if zero_point.any() else steps
    return draft.giving(draft.op.Mul(steps, scale))


def _offset_codes(draft: Draft, meaning: Affine, kind: str, *, full: bool) -> ir.Value:
    """Round ``x / scale + zero_point`` in float and store it: a QuantizeLinear of scale 1."""
    y = _steps_of(draft, meaning)
    if not full:
        y = clip(draft, y, meaning.lo, meaning.hi)
    if meaning.rounding is not Rounding.ROUND:
        y = round_to_integer(draft.op, y, meaning.rounding)
    return quantize(draft, y, ONE, ZERO, kind, SCALAR)


def _truncating(site: Site, editor: Editor, meaning: Truncating) -> Iterator[Draft]:
    """Yield codes that a QuantizeLinear of scale ``ratio`` rounds, then codes rounded in float.

    Whole numbers moved by half a step less a half never lie on a tie, so that rounding them to
    nearest is rounding down. Codes without bounds fit into no type.
    """
    lo, hi = float(meaning.lo.min()), float(meaning.hi.max())
    kind = holding(lo, hi, CODE_TYPES)
    if kind is None:
        return
    ratio, decoding = meaning.ratio, Decoding(meaning.out_scale, meaning.out_zero_point)
    uniform = bool((meaning.lo == lo).all() and (meaning.hi == hi).all())
    full = uniform and (lo, hi) == (FORMATS[kind].lo, FORMATS[kind].hi)
    inner = layout_of(site.shape or None, ratio)
    outer = layout_of(site.shape or None, decoding.scale, decoding.zero_point)
    layouts: list[Layout | None] = [None]
    if outer is not None and are_codes(kind, decoding.zero_point):
        layouts = [outer, None]
    half = (ratio - ONE) / np.float32(2)
    moves = {Rounding.FLOOR: half, Rounding.CEIL: -half, Rounding.ROUND: ZERO}
    for layout in layouts:
        if inner is not None and meaning.rounding in moves:
            draft = editor.draft(site)
            moved = moves[meaning.rounding]
            y = draft.op.Round(_steps_of(draft, meaning))
            y = draft.op.Sub(y, moved) if moved.any() else y
            if not full and not (uniform and kind in CLIPPABLE):
                y = clip(draft, y, meaning.lo * ratio, meaning.hi * ratio)
            codes = quantize(draft, y, ratio, np.zeros_like(ratio), kind, inner)
            if not full and uniform and kind in CLIPPABLE:
                codes = clip_codes(draft, codes, lo, hi, kind)
            yield _decoded(draft, codes, decoding, kind, layout)
        draft = editor.draft(site)
        y = draft.op.Div(draft.op.Round(_steps_of(draft, meaning)), ratio)
        y = y if full else clip(draft, y, meaning.lo, meaning.hi)
        if meaning.rounding is not Rounding.ROUND:
            y = round_to_integer(draft.op, y, meaning.rounding)
        codes = quantize(draft, y, ONE, ZERO, kind, SCALAR)
        yield _decoded(draft, codes, decoding, kind, layout)


def _steps_of(draft: Draft, meaning: Affine | Truncating) -> Operand:
    y = draft.op.Div(draft.x, meaning.scale)
    return draft.op.Add(y, meaning.zero_point) if meaning.zero_point.any() else y


def _signs(draft: Draft, y: Operand) -> ir.Value:
    """Append the code 1 where y is not negative, -1 elsewhere."""
    positive = draft.op.GreaterOrEqual(y, 0.0)
    signs = [draft.constant(np.array(sign, np.int8), "sign") for sign in (1, -1)]
    return draft.node("Where", [positive, *signs], dtype=ir.DataType.INT8)


def _ranged(site: Site, editor: Editor, meaning: Ranged) -> Iterator[Draft]:
    top = np.float32(meaning.levels - 1)
    kind = holding(0.0, float(top), CODE_TYPES)
    if kind is None or not (meaning.input_low < meaning.input_high).all():
        return
    if meaning.decoding is not None:
        yield from _recoded(site, editor, meaning, meaning.decoding, kind)
        return
    with np.errstate(all="ignore"):
        span = meaning.output_high - meaning.output_low
        step, scale = (meaning.input_high - meaning.input_low) / top, span / top
        zero_point = np.rint(-meaning.output_low / scale)
    if np.isfinite(zero_point).all() and holds(kind, zero_point):
        yield from _ranged_pairs(site, editor, meaning, step, scale, zero_point, kind)
    for splits_top in (False, True):
        draft = editor.draft(site)
        codes = _ranged_codes(draft, meaning, kind)
        whole = dequantize(draft, codes, ONE, ZERO, kind, SCALAR)
        y = draft.op.Mul(draft.op.Div(whole, top), span)
        y = draft.op.Add(y, meaning.output_low) if meaning.output_low.any() else y
        if splits_top:
            # In half of all ranges span + low is not high: then the values above are a level of
            # their own.
            above = draft.op.Greater(draft.x, meaning.input_high)
            y = draft.op.Where(above, meaning.output_high, y)
        yield draft.giving(y)


def _ranged_pairs(
    site: Site,
    editor: Editor,
    meaning: Ranged,
    step: Float32,
    scale: Float32,
    zero_point: Float32,
    kind: str,
) -> Iterator[Draft]:
    """Yield the plain pair, and FakeQuantize's own rounding before a plain DequantizeLinear."""
    top = float(meaning.levels - 1)
    inside = np.rint(-meaning.input_low / step)
    inner = layout_of(site.shape or None, step, inside)
    outer = layout_of(site.shape or None, scale, zero_point)
    if outer is None:
        return
    if inner is not None and holds(kind, inside):
        draft = editor.draft(site)
        codes = quantize(draft, draft.x, step, inside, kind, inner)
        if kind in CLIPPABLE and top != FORMATS[kind].hi:
            codes = clip_codes(draft, codes, 0.0, top, kind)
        yield draft.giving(dequantize(draft, codes, scale, zero_point, kind, outer))
    draft = editor.draft(site)
    codes = _ranged_codes(draft, meaning, kind)
    yield draft.giving(dequantize(draft, codes, scale, zero_point, kind, outer))


def _recoded(
    site: Site, editor: Editor, meaning: Ranged, decoding: Decoding, kind: str
) -> Iterator[Draft]:
    """Yield FakeQuantize's rounding before another decoding than its own."""
    outer = layout_of(site.shape or None, decoding.scale, decoding.zero_point)
    coded = outer is not None and are_codes(kind, decoding.zero_point)
    for layout in (outer, None) if coded else (None,):
        draft = editor.draft(site)
        yield _decoded(draft, _ranged_codes(draft, meaning, kind), decoding, kind, layout)


def _ranged_codes(draft: Draft, meaning: Ranged, kind: str) -> ir.Value:
    top = np.float32(meaning.levels - 1)
    x: Operand = draft.x
    x = draft.op.Sub(x, meaning.input_low) if meaning.input_low.any() else x
    y = draft.op.Mul(draft.op.Div(x, meaning.input_high - meaning.input_low), top)
    if top != FORMATS[kind].hi:
        y = draft.op.Min(y, top)
    return quantize(draft, y, ONE, ZERO, kind, SCALAR)


def _floating(site: Site, editor: Editor, meaning: Floating) -> Iterator[Draft]:
    grid = meaning.format
    layout = layout_of(site.shape or None, meaning.scale)
    if layout is None or meaning.rounding is not Rounding.ROUND:
        return
    for clamps in (False, True) if meaning.saturating else (False,):
        top = None if clamps else grid.max_value
        found = find_minifloat(grid.exponent_bits, grid.mantissa_bits, grid.bias, top)
        if found is None:
            continue
        draft = editor.draft(site)
        x: Operand = draft.x
        if clamps:
            end = np.float32(grid.max_value) * np.abs(meaning.scale)
            x = clip(draft, x, -end, end)
        zero = np.zeros_like(meaning.scale)
        codes = quantize(draft, x, meaning.scale, zero, found.name, layout)
        if not meaning.saturating:
            codes.producer().attributes.add(ir.AttrInt64("saturate", 0))  # type: ignore[union-attr]
        yield draft.giving(dequantize(draft, codes, meaning.scale, zero, found.name, layout))


def _bipolar(site: Site, editor: Editor, scale: Float32) -> Iterator[Draft]:
    layout = layout_of(site.shape or None, scale)
    if layout is None:
        return
    draft = editor.draft(site)
    codes = _signs(draft, draft.x)
    yield draft.giving(dequantize(draft, codes, scale, np.zeros_like(scale), "INT8", layout))

"""Pairs of QuantizeLinear and DequantizeLinear for data that is not constant.

From the shortest to the most general form; each is exact under certain conditions:

1. the pair alone, with a Clip on the codes if they do not fill their type;
2. the data clamped in float, then the pair: without a Clip on codes, so for any width up to 16;
3. the float operations up to rounding, then QuantizeLinear with scale 1, which only rounds and
   stores; DequantizeLinear with the real scale and zero point;
4. as before, and the real value computed in float operators from the whole-number codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.numerics import Float32
from qgraph.numerics.formats import FORMATS, find_minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.ops.steps import round_to_integer
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.layout import Layout, layout_of
from qgraph.quantizers.dialects.parts import (
    ONE,
    SCALAR,
    ZERO,
    CodeType,
    are_codes,
    clip,
    dequantize,
    even_steps,
    holds,
    quantize,
    range_steps,
    range_values,
    real_values,
    split_top,
    steps_of,
    truncated,
)
from qgraph.quantizers.quantizer import Affine, Bipolar, Decoding, Floating, Ranged, Truncating


def _affine(site: Site, editor: Editor, meaning: Affine) -> Iterator[Draft]:
    scale, zero_point = meaning.scale, meaning.zero_point
    codes = CodeType.of(meaning.lo, meaning.hi)
    if codes is None:
        return
    inner = _layout(site, scale, zero_point)
    layouts = _layouts(site, meaning.to_real, codes.kind)
    is_nearest = meaning.rounding is Rounding.ROUND
    if inner and layouts[0] and is_nearest and are_codes(codes.kind, zero_point):
        if codes.clamps:
            draft = editor.draft(site)
            q = codes.quantize(draft, draft.x, scale, zero_point, inner)
            yield _decoded(draft, q, meaning.to_real, codes.kind, layouts[0])
        if not codes.is_full and np.isfinite(scale).all():
            draft = editor.draft(site)
            with np.errstate(over="ignore"):
                ends = [(end - zero_point) * scale for end in (meaning.lo, meaning.hi)]
            inside = clip(draft, draft.x, np.minimum(*ends), np.maximum(*ends))
            q = quantize(draft, inside, scale, zero_point, codes.kind, inner)
            yield _decoded(draft, q, meaning.to_real, codes.kind, layouts[0])
    for layout in layouts:
        draft = editor.draft(site)
        q = _rounded(draft, steps_of(draft, draft.x, scale, zero_point), meaning, codes)
        yield _decoded(draft, q, meaning.to_real, codes.kind, layout)
        if codes.is_uniform and (codes.lo, codes.hi) == (-1, 1):
            # One signed bit has the codes -1 and 1, and no rounding.
            draft = editor.draft(site)
            q = _signs(draft, steps_of(draft, draft.x, scale, zero_point))
            yield _decoded(draft, q, meaning.to_real, codes.kind, layout)


def _truncating(site: Site, editor: Editor, meaning: Truncating) -> Iterator[Draft]:
    """Yield codes of Trunc: rounded by a QuantizeLinear of scale ``ratio``, or in float.

    Whole numbers minus ``(ratio - 1) / 2`` are never ties, so rounding them to nearest is rounding
    down. Codes without limits fit into no type.
    """
    codes = CodeType.of(meaning.lo, meaning.hi)
    if codes is None:
        return
    ratio, decoding = meaning.ratio, Decoding(meaning.out_scale, meaning.out_zero_point)
    inner = _layout(site, ratio)
    half = (ratio - ONE) / np.float32(2)
    if site.shape[-1:] == (1,):
        # ONNX Runtime is 15 times as slow with [n, c, 1, 1] and a constant of a lower rank.
        rank = len(site.shape)
        half = half.reshape((1,) * (rank - half.ndim) + half.shape)
        scale = meaning.scale.reshape((1,) * (rank - meaning.scale.ndim) + meaning.scale.shape)
        meaning = replace(meaning, scale=scale)
    moves = {Rounding.FLOOR: half, Rounding.CEIL: -half, Rounding.ROUND: ZERO}
    for layout in _layouts(site, decoding, codes.kind):
        if inner is not None and meaning.rounding in moves:
            draft = editor.draft(site)
            y = draft.op.Round(steps_of(draft, draft.x, meaning.scale, meaning.zero_point))
            moved = moves[meaning.rounding]
            y = draft.op.Sub(y, moved) if moved.any() else y
            if not codes.clamps:
                y = clip(draft, y, meaning.lo * ratio, meaning.hi * ratio)
            q = codes.quantize(draft, y, ratio, np.zeros_like(ratio), inner)
            yield _decoded(draft, q, decoding, codes.kind, layout)
        draft = editor.draft(site)
        q = _rounded(draft, truncated(draft, draft.x, meaning), meaning, codes)
        yield _decoded(draft, q, decoding, codes.kind, layout)


def _ranged(site: Site, editor: Editor, meaning: Ranged) -> Iterator[Draft]:
    top = np.asarray(meaning.levels - 1, np.float32)
    codes = CodeType.of(ZERO, top)
    if codes is None or not (meaning.input_low < meaning.input_high).all():
        return
    type_name, low, high = codes.kind, meaning.output_low, meaning.output_high
    if meaning.decoding is not None:
        for layout in _layouts(site, meaning.decoding, type_name):
            draft = editor.draft(site)
            q = _range_codes(draft, meaning, type_name)
            yield _decoded(draft, q, meaning.decoding, type_name, layout)
        return
    real = Decoding(*even_steps(low, high, float(top)))
    outer = _layout(site, real.scale, real.zero_point)
    is_finite = np.isfinite(real.zero_point).all()
    if outer is not None and is_finite and holds(type_name, real.zero_point):
        step, offset = even_steps(meaning.input_low, meaning.input_high, float(top))
        inner = _layout(site, step, offset)
        if inner is not None and holds(type_name, offset):
            draft = editor.draft(site)
            q = codes.quantize(draft, draft.x, step, offset, inner)
            yield _decoded(draft, q, real, type_name, outer)
        draft = editor.draft(site)
        yield _decoded(draft, _range_codes(draft, meaning, type_name), real, type_name, outer)
    for splits in (False, True):
        draft = editor.draft(site)
        q = dequantize(draft, _range_codes(draft, meaning, type_name), ONE, ZERO, type_name, SCALAR)
        y = range_values(draft, q, low, high, float(top))
        yield draft.giving(split_top(draft, y, draft.x, meaning.input_high, high) if splits else y)


def _floating(site: Site, editor: Editor, meaning: Floating) -> Iterator[Draft]:
    grid, scale = meaning.format, meaning.scale
    layout = _layout(site, scale)
    if layout is None or meaning.rounding is not Rounding.ROUND:
        return
    for clamps in (False, True) if meaning.saturating else (False,):
        top = None if clamps else grid.max_value
        stored = find_minifloat(grid.exponent_bits, grid.mantissa_bits, grid.bias, top)
        if stored is None:
            continue
        draft = editor.draft(site)
        x: Operand = draft.x
        if clamps:
            end = np.float32(grid.max_value) * np.abs(scale)
            x = clip(draft, x, -end, end)
        zero = np.zeros_like(scale)
        codes = quantize(draft, x, scale, zero, stored.name, layout)
        if not meaning.saturating:
            codes.producer().attributes.add(ir.AttrInt64("saturate", 0))  # type: ignore[union-attr]
        yield _decoded(draft, codes, Decoding(scale, zero), stored.name, layout)


def _bipolar(site: Site, editor: Editor, meaning: Bipolar) -> Iterator[Draft]:
    layout = _layout(site, meaning.scale)
    if layout is not None:
        draft = editor.draft(site)
        real = Decoding(meaning.scale, np.zeros_like(meaning.scale))
        yield _decoded(draft, _signs(draft, draft.x), real, "INT8", layout)


_WRITERS: Mapping[type, Callable[[Site, Editor, Any], Iterator[Draft]]] = {
    Affine: _affine,
    Ranged: _ranged,
    Floating: _floating,
    Bipolar: _bipolar,
    Truncating: _truncating,
}


def pairs(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the forms of ``site`` with QuantizeLinear, shortest first."""
    writer = _WRITERS.get(type(site.quantizer))
    if writer is not None:
        yield from writer(site, editor, site.quantizer)


def _layout(site: Site, *parameters: Float32) -> Layout | None:
    return layout_of(site.shape or None, *parameters)


def _layouts(site: Site, real: Decoding, type_name: str) -> list[Layout | None]:
    """Return the layout of a suitable DequantizeLinear, if any, and None for float operators."""
    layout = _layout(site, real.scale, real.zero_point)
    return [layout, None] if layout and are_codes(type_name, real.zero_point) else [None]


def _rounded(draft: Draft, y: Operand, meaning: Affine | Truncating, codes: CodeType) -> ir.Value:
    """Clamp and round ``y`` in float and store it: a QuantizeLinear of scale 1."""
    y = y if codes.is_full else clip(draft, y, meaning.lo, meaning.hi)
    if meaning.rounding is not Rounding.ROUND:
        y = round_to_integer(draft.op, y, meaning.rounding)
    return quantize(draft, y, ONE, ZERO, codes.kind, SCALAR)


def _range_codes(draft: Draft, meaning: Ranged, type_name: str) -> ir.Value:
    """Compute the steps of a FakeQuantize in float and store them."""
    y, top = range_steps(draft, draft.x, meaning), np.float32(meaning.levels - 1)
    y = y if top == FORMATS[type_name].hi else draft.op.Min(y, top)
    return quantize(draft, y, ONE, ZERO, type_name, SCALAR)


def _signs(draft: Draft, y: Operand) -> ir.Value:
    """Append the code 1 where y is not negative, -1 elsewhere."""
    positive = draft.op.GreaterOrEqual(y, 0.0)
    signs = [draft.constant(np.array(sign, np.int8), "sign") for sign in (1, -1)]
    return draft.node("Where", [positive, *signs], dtype=ir.DataType.INT8)


def _decoded(
    draft: Draft, codes: Operand, real: Decoding, type_name: str, layout: Layout | None
) -> Draft:
    """Complete a draft by ``(codes - zero_point) * scale``, in float if there is no layout."""
    scale, zero_point = real.scale, real.zero_point
    if layout is not None:
        return draft.giving(dequantize(draft, codes, scale, zero_point, type_name, layout))
    steps = dequantize(draft, codes, ONE, ZERO, type_name, SCALAR)
    return draft.giving(real_values(draft, steps, scale, zero_point))

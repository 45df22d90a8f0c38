"""Constants stored as codes: DequantizeLinear over a packed initializer.

The codes follow from the values that the quantizer gives, so that no rounding rule is repeated
here; whether decoding gives the same values back is compared afterwards, element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.dialects.dialect import Site
from qgraph.dialects.granularity import layout_of
from qgraph.dialects.qdq_pairs import ONE, SCALAR, ZERO, dequantize, holding, holds
from qgraph.edit import Draft, Editor, Operand
from qgraph.numerics.formats import find_minifloat, numpy_dtype
from qgraph.numerics.minifloat import encode
from qgraph.quantizer import Affine, Bipolar, Floating, Ranged

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

SIGNED = ("INT2", "INT4", "INT8", "INT16", "INT32")
_SURE = 2.0**20
"""Whole numbers below it come out of a float32 division right: the error is far below a half."""

UNSIGNED = ("UINT2", "UINT4", "UINT8", "UINT16", "INT32")


def packed(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield spellings of a quantizer on a constant as stored codes, smallest type first."""
    values = site.values
    if values is None or not values.size or not np.isfinite(values).all():
        return
    match site.quantizer:
        case Affine(scale, zero_point):
            yield from _affine(site, editor, values, scale, zero_point)
        case Bipolar(scale):
            yield from _affine(site, editor, values, scale, np.zeros_like(scale))
        case Floating() as meaning:
            yield from _floating(site, editor, values, meaning)
        case Ranged() as meaning:
            yield from _ranged(site, editor, values, meaning)


def _affine(
    site: Site, editor: Editor, values: Float32, scale: Float32, zero_point: Float32
) -> Iterator[Draft]:
    codes = _codes(values, scale, zero_point)
    if codes is None:
        return
    yield from _stored(site, editor, codes, scale, zero_point)
    if zero_point.any() and _is_whole(zero_point):
        # Counted from the zero point instead, so that none is left.
        yield from _stored(site, editor, codes - zero_point, scale, np.zeros_like(zero_point))


def _stored(
    site: Site, editor: Editor, codes: Array, scale: Float32, zero_point: Float32
) -> Iterator[Draft]:
    """Yield ``(codes - zero_point) * scale``: as one DequantizeLinear wherever it can say that."""
    lo, hi = float(codes.min()), float(codes.max())
    layout = layout_of(codes.shape, scale, zero_point) if _is_whole(zero_point) else None
    for kind in SIGNED if min(lo, zero_point.min()) < 0 else UNSIGNED:
        if holding(lo, hi, (kind,)) is None or not (layout is None or holds(kind, zero_point)):
            continue
        draft = editor.draft(site)
        stored = draft.constant(codes.astype(np.int32).astype(numpy_dtype(kind)), "codes")
        if layout is not None:
            yield draft.giving(dequantize(draft, stored, scale, zero_point, kind, layout))
            continue
        whole: Operand = dequantize(draft, stored, ONE, ZERO, kind, SCALAR)
        whole = draft.op.Sub(whole, zero_point) if zero_point.any() else whole
        yield draft.giving(draft.node("Mul", [whole, draft.constant(scale, "scale")]))


def _floating(site: Site, editor: Editor, values: Float32, meaning: Floating) -> Iterator[Draft]:
    grid, scale = meaning.format, meaning.scale
    found = find_minifloat(grid.exponent_bits, grid.mantissa_bits, grid.bias)
    layout = layout_of(values.shape, scale)
    with np.errstate(all="ignore"):
        units = values / scale
    if found is not None and layout is not None:
        draft = editor.draft(site)
        codes = draft.constant(encode(units, found.name), "codes")
        none = np.zeros_like(scale)
        yield draft.giving(dequantize(draft, codes, scale, none, found.name, layout))
    # Every value is a multiple of the smallest subnormal, so narrow formats are integers too.
    unit = np.float32(2.0 ** (1 - grid.bias - grid.mantissa_bits))
    yield from _affine(site, editor, values, scale * unit, np.zeros_like(scale))


def _ranged(site: Site, editor: Editor, values: Float32, meaning: Ranged) -> Iterator[Draft]:
    top = np.float32(meaning.levels - 1)
    low, span = meaning.output_low, meaning.output_high - meaning.output_low
    with np.errstate(all="ignore"):
        scale: Float32 = (np.where(span == 0, np.float32(1), span) / top).astype(np.float32)
        zero_point: Float32 = np.rint(-low / scale)
        codes = np.rint((values.astype(np.float64) - low) / scale)
    if not np.isfinite(codes).all() or not np.isfinite(zero_point).all():
        return
    yield from _stored(site, editor, codes, scale, zero_point)
    yield from _stored(site, editor, codes - zero_point, scale, np.zeros_like(zero_point))
    # In half of all ranges span + low is not high: then weights above the range need a code more.
    beyond = np.asarray(site.weight) > meaning.input_high
    above = np.where(beyond, top + np.float32(1), codes)
    for stored in (codes, above):
        for kind in UNSIGNED:
            if holding(0.0, float(stored.max()), (kind,)) is not None:
                yield _levels(site, editor, meaning, stored, kind)


def _levels(site: Site, editor: Editor, meaning: Ranged, codes: Array, kind: str) -> Draft:
    """Draft stored codes, then FakeQuantize's own float operations from code to value."""
    top = np.float32(meaning.levels - 1)
    draft = editor.draft(site)
    stored = draft.constant(codes.astype(np.int32).astype(numpy_dtype(kind)), "codes")
    whole = dequantize(draft, stored, ONE, ZERO, kind, SCALAR)
    y: Any = draft.op.Mul(draft.op.Div(whole, top), meaning.output_high - meaning.output_low)
    y = draft.op.Add(y, meaning.output_low) if meaning.output_low.any() else y
    if codes.max() > top:
        y = draft.op.Where(draft.op.Greater(whole, top), meaning.output_high, y)
    return draft.giving(y)


def _codes(values: Float32, scale: Float32, zero_point: Float32) -> Array | None:
    """Return ``values / scale + zero_point`` as whole numbers, or None where that is no number."""
    with np.errstate(all="ignore"):
        steps: Array = values / scale
        if np.abs(steps).max() >= _SURE:
            steps = values.astype(np.float64) / scale
        np.copyto(steps, 0, where=values == 0)
        codes: Array = np.rint(steps + zero_point)
        return codes if np.abs(codes).max() < 2**31 else None


def _is_whole(zero_point: Float32) -> bool:
    return bool((zero_point == np.rint(zero_point)).all())

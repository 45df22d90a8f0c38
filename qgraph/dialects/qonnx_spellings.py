"""Quantizers written with QONNX operators, the tightest spelling first.

1. one node: Quant, BipolarQuant, FloatQuant or Trunc with the parameters of the quantizer;
2. a Quant wide enough not to clamp, data or result clamped in float: any range of codes;
3. the float operations up to rounding, a Quant with scale 1 that rounds and clamps, and the real
   value computed in float from the whole-number codes: anything that has codes at all.

A scale for blocks of elements is applied to the data seen as blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.code_steps import (
    counted_from_zero_point,
    decoded,
    level_values,
    places,
    real_values,
    steps_of,
    truncated,
)
from qgraph.dialects.definition import by_definition
from qgraph.dialects.dialect import Site
from qgraph.dialects.qdq_nodes import clip
from qgraph.dialects.site_writer import SiteWriter, node
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.numerics.minifloat import binary_exponent
from qgraph.numerics.rounding import Rounding
from qgraph.ops.quant import code_bounds
from qgraph.ops.trunc import nearest_power_of_two
from qgraph.quantizer import Affine, Bipolar, Decoding, Floating, Ranged, Recipe, Truncating

DOMAIN = "qonnx.custom_op.general"
Float32 = npt.NDArray[np.float32]

WIDEST = 64
"""Bits up to which a Quant is offered; further ones clamp nothing that float32 holds exactly."""

ONE, ZERO = np.ones((), np.float32), np.zeros((), np.float32)


class Codes(NamedTuple):
    """The codes that a Quant can produce."""

    bits: int
    signed: bool
    narrow: bool = False


BIPOLAR = Codes(1, True)
"""Codes -1 and 1: the sign of ``x / scale + zero_point``."""


def spellings(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the spellings of ``site``."""
    match site.quantizer:
        case Affine() as meaning:
            yield from _affine(SiteWriter(site, editor), meaning)
        case Ranged() as meaning:
            yield from _ranged(SiteWriter(site, editor), meaning)
        case Floating() as meaning:
            yield _floating(SiteWriter(site, editor), meaning)
        case Bipolar(scale):
            yield _bipolar(SiteWriter(site, editor), scale)
        case Truncating() as meaning:
            yield from _truncating(SiteWriter(site, editor), meaning)
    if site.dialect == "qdq" and site.weight is not None and isinstance(site.quantizer, Affine):
        # Codes of 32 bits have no other spelling, but float arithmetic decodes them.
        yield from by_definition(site, editor)


def _affine(write: SiteWriter, given: Affine) -> Iterator[Draft]:
    decoding = given.decoding or Decoding(given.scale, given.zero_point)
    arrays = (given.scale, given.zero_point, given.lo, given.hi)
    s, z, lo, hi, scale, zero_point = write.see(*arrays, decoding.scale, decoding.zero_point)
    found = None if given.decoding is None else Decoding(scale, zero_point)
    given = replace(given, scale=s, zero_point=z, lo=lo, hi=hi, decoding=found)
    centred = counted_from_zero_point(given)
    if not (np.isfinite(given.lo) & np.isfinite(given.hi)).all():
        return
    if given.decoding is None:
        for meaning in (given,) if centred is given or centred is None else (given, centred):
            for codes in _codes_of(meaning):
                draft, x = write.begin()
                operands = x, meaning.scale, meaning.zero_point, codes, meaning.rounding
                yield write.end(draft, quant(draft, *operands))
        if centred is not None and given.rounding is Rounding.ROUND:
            yield _clamped_before(write, centred)
        yield _clamped_after(write, centred or given)
    yield _coded(write, centred or given)


def _clamped_before(write: SiteWriter, meaning: Affine) -> Draft:
    """Draft the data clamped to the values of the outer codes, then a Quant that does not clamp."""
    draft, x = write.begin()
    with np.errstate(over="ignore"):
        ends = meaning.lo * meaning.scale, meaning.hi * meaning.scale
    inside = clip(draft, x, np.minimum(*ends), np.maximum(*ends))
    codes = _wide(meaning)
    return write.end(draft, quant(draft, inside, meaning.scale, ZERO, codes, meaning.rounding))


def _clamped_after(write: SiteWriter, meaning: Affine) -> Draft:
    """Draft a Quant that does not clamp, then its result clamped to the outer values."""
    draft, x = write.begin()
    scale, zero_point = meaning.scale, meaning.zero_point
    with np.errstate(over="ignore"):
        ends = (meaning.lo - zero_point) * scale, (meaning.hi - zero_point) * scale
    wide = quant(draft, x, scale, zero_point, _wide(meaning), meaning.rounding)
    return write.end(draft, clip(draft, wide, np.minimum(*ends), np.maximum(*ends)))


def _coded(write: SiteWriter, meaning: Affine) -> Draft:
    """Draft a Quant of whole numbers between the float operations to codes and back."""
    draft, x = write.begin()
    y = steps_of(draft, x, meaning.scale, meaning.zero_point)
    y = _whole_numbers(draft, y, meaning.lo, meaning.hi, meaning.rounding)
    return write.end(draft, decoded(draft, y, meaning))


def _whole_numbers(
    draft: Draft, y: Operand, lo: Float32, hi: Float32, rounding: Rounding
) -> Operand:
    """Append a Quant of scale 1 to the codes ``lo`` to ``hi``, a clamp before it where needed."""
    codes = _exactly(lo, hi)
    if codes is None:
        y = clip(draft, y, lo, hi)
        codes = codes_holding(float(lo.min()), float(hi.max()))
    return quant(draft, y, ONE, ZERO, codes, rounding)


def _ranged(write: SiteWriter, given: Ranged) -> Iterator[Draft]:
    ends = (given.input_low, given.input_high, given.output_low, given.output_high)
    rule = given.decoding or Decoding(ZERO, ZERO)
    *laid, scale, zero_point = write.see(*ends, rule.scale, rule.zero_point)
    low, high, below, above = laid
    found = None if given.decoding is None else Decoding(scale, zero_point)
    meaning = Ranged(low, high, below, above, given.levels, found)
    same = np.array_equal(low, below) and np.array_equal(high, above)
    with np.errstate(all="ignore"):
        step = (high - low) / np.float32(given.levels - 1)
    if found is not None and np.allclose(step, found.scale, rtol=1e-3, atol=0):
        same = True
    if same and (low < high).all():
        yield _ranged_quant(write, meaning)
    codes, top = codes_holding(0.0, given.levels - 1.0), np.asarray(given.levels - 1, np.float32)
    yield from _stored(write, meaning)
    with np.errstate(all="ignore"):
        span = above - below
        proper = bool(((low < high) & np.isfinite(high - low)).all())
        meets = found is not None or bool((span + below == above).all())
    for splits_top in ([False, True] if meets else [True]) if proper else []:
        draft, x = write.begin()
        q = _whole_numbers(draft, places(draft, x, meaning), ZERO, top, _NEAREST)
        y = level_values(draft, q, meaning)
        if splits_top:
            # In half of all ranges span + low is not high: what lies above is a level of its own.
            y = draft.op.Where(draft.op.Greater(x, high), above, y)
        yield write.end(draft, y)
    draft, x = write.begin()
    q = quant(draft, places(draft, x, meaning), ONE, ZERO, codes, _NEAREST)
    y = level_values(draft, q, meaning)
    y = draft.op.Where(draft.op.Greater(x, np.maximum(low, high)), above, y)
    yield write.end(draft, draft.op.Where(draft.op.LessOrEqual(x, np.minimum(low, high)), below, y))


_NEAREST = Rounding.ROUND


def _stored(write: SiteWriter, meaning: Ranged) -> Iterator[Draft]:
    """Yield a constant as whole numbers between 0 and the last level."""
    if write.site.weight is None:
        return
    weight = write.seen(write.site.weight.array().astype(np.float32))
    top = np.asarray(meaning.levels - 1, np.float32)
    width = meaning.input_high - meaning.input_low
    with np.errstate(all="ignore"):
        whole = np.clip(np.rint((weight - meaning.input_low) / width * top), ZERO, top)
    if whole.shape != weight.shape or not np.isfinite(whole).all():
        return
    draft, x = write.begin_on(whole.reshape(write.site.weight.shape))
    q = _whole_numbers(draft, x, ZERO, top, _NEAREST)
    yield write.end(draft, level_values(draft, q, meaning))


def _ranged_quant(write: SiteWriter, meaning: Ranged) -> Draft:
    """Draft the Quant whose codes are the levels: exact for few scales."""
    low, top = meaning.output_low, np.float32(meaning.levels - 1)
    rule = meaning.decoding
    with np.errstate(all="ignore"):
        scale = (meaning.output_high - low) / top if rule is None else rule.scale
        zero_point = (0 - low) / scale if rule is None else rule.zero_point
        whole = np.rint(zero_point)
        # The quotient of a whole zero point may miss it by some last digits.
        near = np.abs(zero_point - whole) <= np.float32(2.0**-20) * top
    zero_point = np.where(near, whole, zero_point)
    draft, x = write.begin()
    codes = _exactly(ZERO, np.asarray(top)) or codes_holding(0.0, float(top))
    return write.end(draft, quant(draft, x, scale, zero_point, codes, _NEAREST))


def _floating(write: SiteWriter, meaning: Floating) -> Draft:
    grid = meaning.format
    (scale,) = write.see(meaning.scale)
    draft, x = write.begin()
    widths = [
        draft.constant(np.float32(number), name)
        for number, name in (
            (grid.exponent_bits, "exponent_bit_width"),
            (grid.mantissa_bits, "mantissa_bit_width"),
            (grid.bias, "exponent_bias"),
            (grid.max_value, "max_val"),
        )
    ]
    attributes = {
        "has_inf": int(grid.has_inf),
        "has_nan": int(grid.has_nan),
        "has_subnormal": 1,
        "saturation": int(meaning.saturating),
        "rounding_mode": str(meaning.rounding),
    }
    operands = [x, draft.constant(scale, "scale"), *widths]
    return write.end(draft, node(draft, DOMAIN, "FloatQuant", operands, attributes))


def _bipolar(write: SiteWriter, given: Float32) -> Draft:
    (scale,) = write.see(given)
    draft, x = write.begin()
    return write.end(
        draft, node(draft, DOMAIN, "BipolarQuant", [x, draft.constant(scale, "scale")], {})
    )


def _truncating(write: SiteWriter, given: Truncating) -> Iterator[Draft]:
    meaning = write.see_truncating(given)
    if np.isinf(meaning.lo).all() and np.isinf(meaning.hi).all():
        yield from _trunc_1(write, meaning)
        return
    yield from _trunc_2(write, meaning)
    draft, x = write.begin()
    y = truncated(draft, x, meaning)
    y = _whole_numbers(draft, y, meaning.lo, meaning.hi, meaning.rounding)
    yield write.end(draft, real_values(draft, y, meaning.out_scale, meaning.out_zero_point))


def _trunc_1(write: SiteWriter, meaning: Truncating) -> Iterator[Draft]:
    """Yield the first version of Trunc, which neither clamps nor has a scale for its output."""
    dropped = binary_exponent(meaning.ratio)
    out_bits = np.maximum(np.float32(8), 1 - dropped)
    draft, x = write.begin()
    operands = [
        x,
        draft.constant(meaning.scale, "scale"),
        draft.constant(meaning.zero_point, "zero_point"),
        draft.constant(np.asarray(out_bits + dropped, np.float32), "in_bits"),
        draft.constant(np.asarray(out_bits, np.float32), "out_bits"),
    ]
    attributes = {"rounding_mode": str(meaning.rounding)}
    yield write.end(draft, node(draft, DOMAIN, "Trunc", operands, attributes))


def _trunc_2(write: SiteWriter, meaning: Truncating) -> Iterator[Draft]:
    """Yield the second version of Trunc, if the scales have the ratio that it works out itself."""
    codes = _exactly(meaning.lo, meaning.hi)
    with np.errstate(all="ignore"):
        same = (nearest_power_of_two(meaning.out_scale / meaning.scale) == meaning.ratio).all()
    if codes is None or not same:
        return
    draft, x = write.begin()
    in_bits = np.maximum(1, codes.bits + binary_exponent(meaning.ratio).max())
    operands = [
        x,
        draft.constant(meaning.scale, "scale"),
        draft.constant(meaning.zero_point, "zero_point"),
        draft.constant(np.float32(in_bits), "in_bits"),
        draft.constant(meaning.out_scale, "out_scale"),
        draft.constant(np.float32(codes.bits), "out_bits"),
    ]
    attributes = {
        "rounding_mode": str(meaning.rounding),
        "signed": int(codes.signed),
        "narrow": int(codes.narrow),
    }
    yield write.end(draft, node(draft, DOMAIN, "Trunc", operands, attributes))


def quant(
    draft: Draft,
    x: Operand,
    scale: Float32,
    zero_point: Float32,
    codes: Codes,
    rounding: Rounding,
) -> ir.Value:
    """Append a Quant."""
    operands = [
        x,
        draft.constant(scale, "scale"),
        draft.constant(np.asarray(zero_point, np.float32), "zero_point"),
        draft.constant(np.float32(codes.bits), "bit_width"),
    ]
    attributes = {
        "signed": int(codes.signed),
        "narrow": int(codes.narrow),
        "rounding_mode": str(rounding),
    }
    return node(draft, DOMAIN, "Quant", operands, attributes)


def _codes_of(meaning: Affine) -> Iterator[Codes]:
    """Yield how one Quant may have exactly the codes of ``meaning``."""
    codes = _exactly(meaning.lo, meaning.hi)
    if codes is not None:
        yield codes
    if codes == _TERNARY and meaning.recipe is Recipe.OFFSET_FIRST:
        yield BIPOLAR


_TERNARY = Codes(2, signed=True, narrow=True)


def _exactly(lo: Float32, hi: Float32) -> Codes | None:
    """Return the form of Quant with exactly the codes ``lo`` to ``hi``, or None."""
    if (lo != lo.flat[0]).any() or (hi != hi.flat[0]).any():
        return None
    return _forms().get((float(lo.flat[0]), float(hi.flat[0])))


@functools.cache
def _forms() -> dict[tuple[float, float], Codes]:
    found: dict[tuple[float, float], Codes] = {}
    for signed in (False, True):
        for narrow in (False, True):
            for bits in range(1 + signed, WIDEST + 1):
                lo, hi = code_bounds(np.asarray(bits, np.float32), signed, narrow)
                if lo < hi:
                    found.setdefault((float(lo), float(hi)), Codes(bits, signed, narrow))
    return found


def codes_holding(lo: float, hi: float) -> Codes:
    """Return the smallest form of Quant that has the codes ``lo`` to ``hi`` among its own."""
    signed = lo < 0
    return Codes(max(1, int(max(-lo - 1, hi)).bit_length() + signed), signed)


def _wide(meaning: Affine) -> Codes:
    """Return a form of Quant that clamps none of the codes of ``meaning``."""
    codes = codes_holding(float(meaning.lo.min()), float(meaning.hi.max()))
    # One bit more: beyond 24 bits the bounds are rounded, and one signed bit has other codes.
    return codes if 1 < codes.bits < 24 else codes._replace(bits=codes.bits + 1)

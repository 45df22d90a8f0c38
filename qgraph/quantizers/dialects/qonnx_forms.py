"""Quantizers written with QONNX operators, the shortest form first.

1. one node: Quant, BipolarQuant, FloatQuant or Trunc with the parameters of the quantizer;
2. a Quant wide enough not to clamp, with data or result clamped in float: any range of codes;
3. the float operations up to rounding, a Quant with scale 1 that rounds and clamps, and the real
   value computed in float from the whole-number codes: every quantizer with codes.

For scales per block, the data is reshaped to blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.edit import HALF_TYPES, Draft, Operand
from qgraph.numerics import Float32
from qgraph.numerics.minifloat import binary_exponent
from qgraph.numerics.rounding import Rounding
from qgraph.numerics.values import OpenScale
from qgraph.ops.definitions.quant import code_bounds
from qgraph.ops.definitions.trunc import nearest_power_of_two
from qgraph.quantizers.dialects.dialect import SiteWriter, Writers, node
from qgraph.quantizers.dialects.parts import (
    ONE,
    ZERO,
    clip,
    counted_from_zero_point,
    decoded,
    even_steps,
    level_values,
    range_steps,
    real_values,
    split_top,
    steps_of,
    truncated,
)
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged, Recipe, Truncating

DOMAIN = "qonnx.custom_op.general"

WIDEST = 64
"""Maximum number of bits of a Quant; float32 integers beyond its range are not all exact."""


class Codes(NamedTuple):
    """The codes that a Quant can produce."""

    bits: int
    signed: bool
    narrow: bool = False


BIPOLAR = Codes(1, True)
"""Codes -1 and 1: the sign of ``x / scale + zero_point``."""


def _affine(write: SiteWriter, meaning: Affine) -> Iterator[Draft]:
    centred = counted_from_zero_point(meaning)
    if not (np.isfinite(meaning.lo) & np.isfinite(meaning.hi)).all():
        return
    if meaning.decoding is None:
        for either in (meaning,) if centred in (meaning, None) else (meaning, centred):
            for codes in _codes_of(either):
                draft, x = write.begin()
                operands = x, either.scale, either.zero_point, codes, either.rounding
                yield write.end(draft, quant(draft, *operands))
        if centred is not None and meaning.rounding is Rounding.ROUND:
            yield _clamped_before(write, centred)
        yield _clamped_after(write, centred or meaning)
    yield _coded(write, centred or meaning)
    if meaning.decoding is None and centred is None:
        yield from _without_zero_point(write, meaning)


def _clamped_before(write: SiteWriter, meaning: Affine) -> Draft:
    """Draft the data clamped to the values of the outer codes, then a Quant that does not clamp."""
    draft, x = write.begin()
    with np.errstate(over="ignore"):
        ends = meaning.lo * meaning.scale, meaning.hi * meaning.scale
    inside = clip(draft, x, np.minimum(*ends), np.maximum(*ends))
    codes = _wide(meaning)
    return write.end(draft, quant(draft, inside, meaning.scale, ZERO, codes, meaning.rounding))


def _without_zero_point(write: SiteWriter, meaning: Affine) -> Iterator[Draft]:
    """Yield forms that round the data before a whole zero point is added, which changes ties."""
    centred = counted_from_zero_point(replace(meaning, recipe=Recipe.ROUND_FIRST))
    if centred is None or meaning.rounding is not Rounding.ROUND:
        return
    for codes in _codes_of(centred):
        draft, x = write.begin()
        yield write.end(draft, quant(draft, x, meaning.scale, ZERO, codes, meaning.rounding))
    yield _clamped_before(write, centred)


def _clamped_after(write: SiteWriter, meaning: Affine) -> Draft:
    """Draft a Quant that does not clamp, then its result clamped to the outer values."""
    draft, x = write.begin()
    scale, zero_point = meaning.scale, meaning.zero_point
    with np.errstate(over="ignore"):
        ends = (meaning.lo - zero_point) * scale, (meaning.hi - zero_point) * scale
    wide = quant(draft, x, scale, zero_point, _wide(meaning), meaning.rounding)
    return write.end(draft, clip(draft, wide, np.minimum(*ends), np.maximum(*ends)))


def _coded(write: SiteWriter, meaning: Affine) -> Draft:
    """Draft a Quant of integers between the float operations to codes and back."""
    draft, x = write.begin()
    y = steps_of(draft, x, meaning.scale, meaning.zero_point)
    y = _whole_numbers(draft, y, meaning.lo, meaning.hi, meaning.rounding)
    return write.end(draft, decoded(draft, y, meaning))


def _whole_numbers(
    draft: Draft, y: Operand, lo: Float32, hi: Float32, rounding: Rounding
) -> Operand:
    """Append a Quant of scale 1 to the codes ``lo`` to ``hi``, after a clamp if needed."""
    codes = _exactly(lo, hi)
    if codes is None:
        y = clip(draft, y, lo, hi)
        codes = codes_holding(float(lo.min()), float(hi.max()))
    return quant(draft, y, ONE, ZERO, codes, rounding)


def _ranged(write: SiteWriter, meaning: Ranged) -> Iterator[Draft]:
    low, high, decoding = meaning.input_low, meaning.input_high, meaning.decoding
    below, above = meaning.output_low, meaning.output_high
    top = np.asarray(meaning.levels - 1, np.float32)
    same = np.array_equal(low, below) and np.array_equal(high, above)
    with np.errstate(all="ignore"):
        step = (high - low) / top
        meets = decoding is not None or bool((above - below + below == above).all())
        is_proper = bool(((low < high) & np.isfinite(high - low)).all())
    if decoding is not None and np.allclose(step, decoding.scale, rtol=1e-3, atol=0):
        same = True
    if same and (low < high).all():
        yield _ranged_quant(write, meaning)
    yield from _stored(write, meaning)
    for splits in ([False, True] if meets else [True]) if is_proper else []:
        draft, x = write.begin()
        q = _whole_numbers(draft, range_steps(draft, x, meaning), ZERO, top, _NEAREST)
        y = level_values(draft, q, meaning)
        yield write.end(draft, split_top(draft, y, x, high, above) if splits else y)
    draft, x = write.begin()
    codes = codes_holding(0.0, float(top))
    q = quant(draft, range_steps(draft, x, meaning), ONE, ZERO, codes, _NEAREST)
    y = split_top(draft, level_values(draft, q, meaning), x, np.maximum(low, high), above)
    yield write.end(draft, draft.op.Where(draft.op.LessOrEqual(x, np.minimum(low, high)), below, y))
    if same and (low < high).all():
        scale, zero_point = _steps_of_levels(meaning)
        yield from _without_zero_point(write, Affine(scale, zero_point, ZERO, top))


_NEAREST = Rounding.ROUND
_WHOLE = np.float32(2.0**-20)
"""Maximum error of a computed whole zero point, as a share of the number of steps."""


def _stored(write: SiteWriter, meaning: Ranged) -> Iterator[Draft]:
    """Yield a constant as integers between 0 and the last level, then as multiples of a scale."""
    if write.site.weight is None:
        return
    weight = write.seen(write.site.weight.array().astype(np.float32))
    top = np.asarray(meaning.levels - 1, np.float32)
    width = meaning.input_high - meaning.input_low
    with np.errstate(all="ignore"):
        whole = np.clip(np.rint((weight - meaning.input_low) / width * top), ZERO, top)
    if whole.shape != weight.shape or not np.isfinite(whole).all():
        return
    draft, x = write.begin(whole.reshape(write.site.weight.shape))
    q = _whole_numbers(draft, x, ZERO, top, _NEAREST)
    yield write.end(draft, level_values(draft, q, meaning))
    scale, zero_point = even_steps(meaning.output_low, meaning.output_high, float(top))
    with np.errstate(all="ignore"):
        fraction = np.abs(meaning.output_low / scale + zero_point)
    if not (fraction <= _WHOLE * top).all():
        return
    draft, x = write.begin(((whole - zero_point) * scale).reshape(write.site.weight.shape))
    codes = codes_holding(-float(zero_point.max()), float((top - zero_point).max()))
    yield write.end(draft, quant(draft, x, scale, ZERO, codes, _NEAREST))


def _ranged_quant(write: SiteWriter, meaning: Ranged) -> Draft:
    """Draft the Quant whose codes are the levels: exact for few scales."""
    top = np.float32(meaning.levels - 1)
    draft, x = write.begin()
    codes = _exactly(ZERO, np.asarray(top)) or codes_holding(0.0, float(top))
    return write.end(draft, quant(draft, x, *_steps_of_levels(meaning), codes, _NEAREST))


def _steps_of_levels(meaning: Ranged) -> tuple[Float32, Float32]:
    """Return scale and zero point with which codes are counted from the lowest level."""
    low, top = meaning.output_low, np.float32(meaning.levels - 1)
    rule = meaning.decoding
    with np.errstate(all="ignore"):
        scale = (meaning.output_high - low) / top if rule is None else rule.scale
        zero_point = (0 - low) / scale if rule is None else rule.zero_point
        whole = np.rint(zero_point)
        # The quotient of a whole zero point may miss it by some last digits.
        near = np.abs(zero_point - whole) <= _WHOLE * top
    return scale, np.where(near, whole, zero_point)


def _floating(write: SiteWriter, meaning: Floating) -> Iterator[Draft]:
    draft, x = write.begin()
    yield write.end(draft, _float_quant(draft, x, meaning))
    if draft.half is not None:
        # The quotient and the product are rounded to 16 bits; numbers of the format need no more.
        draft, x = write.begin()
        y = draft.op.Div(x, meaning.scale)
        y = _float_quant(draft, y, replace(meaning, scale=ONE))
        yield write.end(draft, draft.op.Mul(y, meaning.scale))


def _float_quant(draft: Draft, x: Operand, meaning: Floating) -> Operand:
    """Append a FloatQuant, which computes in float32, between casts from and to other types."""
    grid = meaning.format
    attributes = {
        "has_inf": int(grid.has_inf),
        "has_nan": int(grid.has_nan),
        "has_subnormal": 1,
        "saturation": int(meaning.saturating),
        "rounding_mode": str(meaning.rounding),
    }
    with draft.in_float32():
        if isinstance(x, ir.Value) and x in draft.constants:
            x = draft.constant(draft.constants[x].astype(np.float32), "weight")
        elif draft.x.dtype in HALF_TYPES:
            x = draft.op.Cast(x, to=ir.DataType.FLOAT)
        y = _node(
            draft,
            "FloatQuant",
            x,
            attributes,
            scale=meaning.scale,
            exponent_bit_width=grid.exponent_bits,
            mantissa_bit_width=grid.mantissa_bits,
            exponent_bias=grid.bias,
            max_val=grid.max_value,
        )
    return y if (half := draft.half) is None else draft.op.Cast(y, to=half)


def _bipolar(write: SiteWriter, meaning: Bipolar) -> Iterator[Draft]:
    draft, x = write.begin()
    yield write.end(draft, _node(draft, "BipolarQuant", x, scale=meaning.scale))


def _truncating(write: SiteWriter, meaning: Truncating) -> Iterator[Draft]:
    parameters: dict[str, npt.ArrayLike] = {"scale": meaning.scale}
    parameters["zero_point"] = meaning.zero_point
    attributes: dict[str, str | int] = {"rounding_mode": str(meaning.rounding)}
    dropped = binary_exponent(meaning.ratio)
    draft, x = write.begin()
    if np.isinf(meaning.lo).all() and np.isinf(meaning.hi).all():
        # The first version of Trunc neither clamps nor has a scale for its output.
        out_bits = np.maximum(np.float32(8), 1 - dropped)
        parameters |= {"in_bits": out_bits + dropped, "out_bits": out_bits}
        yield write.end(draft, _node(draft, "Trunc", x, attributes, **parameters))
        return
    codes = _exactly(meaning.lo, meaning.hi)
    with np.errstate(all="ignore"):
        nearest = nearest_power_of_two(meaning.out_scale / meaning.scale)
    if codes is not None and (nearest == meaning.ratio).all():
        # The second version computes the ratio from the scales.
        parameters |= {"in_bits": np.maximum(1, codes.bits + dropped.max())}
        parameters |= {"out_scale": meaning.out_scale, "out_bits": codes.bits}
        attributes |= {"signed": int(codes.signed), "narrow": int(codes.narrow)}
        yield write.end(draft, _node(draft, "Trunc", x, attributes, **parameters))
    draft, x = write.begin()
    y = truncated(draft, x, meaning)
    y = _whole_numbers(draft, y, meaning.lo, meaning.hi, meaning.rounding)
    yield write.end(draft, real_values(draft, y, meaning.out_scale, meaning.out_zero_point))


WRITERS: Writers = {
    Affine: _affine,
    Ranged: _ranged,
    Floating: _floating,
    Bipolar: _bipolar,
    Truncating: _truncating,
}
"""Functions that draft a quantizer, by its type."""


def quant(
    draft: Draft, x: Operand, scale: Float32, zero_point: Float32, codes: Codes, rounding: Rounding
) -> ir.Value:
    """Append a Quant."""
    attributes: dict[str, Any] = {"signed": int(codes.signed), "narrow": int(codes.narrow)}
    attributes["rounding_mode"] = str(rounding)
    parameters: dict[str, Any] = {"scale": scale, "zero_point": zero_point}
    return _node(draft, "Quant", x, attributes, **parameters, bit_width=codes.bits)


def _node(
    draft: Draft,
    name: str,
    x: Operand,
    attributes: Mapping[str, Any] = MappingProxyType({}),
    **parameters: npt.ArrayLike,
) -> ir.Value:
    """Append a QONNX operator with constant parameters and their names in the graph."""
    constants = []
    for stem, value in parameters.items():
        array: Any = value if isinstance(value, OpenScale) else np.asarray(value, np.float32)
        constants.append(draft.constant(array, stem))
    return node(draft, DOMAIN, name, [x, *constants], attributes)


def _codes_of(meaning: Affine) -> Iterator[Codes]:
    """Yield parameters of a Quant with exactly the codes of ``meaning``."""
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
    forms: dict[tuple[float, float], Codes] = {}
    for signed in (False, True):
        for narrow in (False, True):
            for bits in range(1 + signed, WIDEST + 1):
                lo, hi = code_bounds(np.asarray(bits, np.float32), signed, narrow)
                if lo < hi:
                    forms.setdefault((float(lo), float(hi)), Codes(bits, signed, narrow))
    return forms


def codes_holding(lo: float, hi: float) -> Codes:
    """Return the narrowest form of Quant whose codes include ``lo`` to ``hi``."""
    signed = lo < 0
    return Codes(max(1, int(max(-lo - 1, hi)).bit_length() + signed), signed)


def _wide(meaning: Affine) -> Codes:
    """Return a form of Quant that clamps none of the codes of ``meaning``."""
    codes = codes_holding(float(meaning.lo.min()), float(meaning.hi.max()))
    # One bit more: beyond 24 bits the bounds are rounded, and one signed bit has other codes.
    return codes if 1 < codes.bits < 24 else codes._replace(bits=codes.bits + 1)

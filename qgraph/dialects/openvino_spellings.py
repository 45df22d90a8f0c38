"""Quantizers written with FakeQuantize, the tightest spelling first.

1. one FakeQuantize over the range of the codes, which is exact for few scales;
2. the data divided by the scale, a FakeQuantize whose levels are the codes themselves and which
   rounds and clamps, and the real value computed from them;
3. the same with the rounding in float before it: any rounding, codes of either sign. Subtracting a
   range end that is not 0 rounds the data, so that FakeQuantize itself cannot round there, but
   whole numbers pass;
4. a constant stored as whole numbers, so that nothing is left to be rounded.

In 2 to 4 a level is one step and the ends are whole: then the arithmetic of OpenVINO's CPU plugin
gives the same values as the definition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.block_view import enlarges
from qgraph.dialects.code_steps import (
    counted_from_zero_point,
    decoded,
    real_values,
    steps_of,
    truncated,
)
from qgraph.dialects.definition import by_definition
from qgraph.dialects.dialect import Site
from qgraph.dialects.qdq_nodes import clip
from qgraph.dialects.site_writer import SiteWriter, node
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.numerics.rounding import Rounding
from qgraph.ops.fake_quantize import fake_quantize
from qgraph.ops.steps import round_to_integer
from qgraph.quantizer import Affine, Bipolar, Decoding, Floating, Ranged, Recipe, Truncating

DOMAIN = "org.openvinotoolkit"
Float32 = npt.NDArray[np.float32]

MOST_LEVELS = 1 << 24
"""What a FakeQuantize in float32 can have."""

REMOVED = 1 << 16
"""OpenVINO takes a FakeQuantize of so many levels and equal ranges out of the model."""

_LIKELY = REMOVED + 1
"""Levels up to which a single FakeQuantize is tried; with more it is never the same function."""

ONE, ZERO = np.ones((), np.float32), np.zeros((), np.float32)


def spellings(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the spellings of ``site``."""
    write = SiteWriter(site, editor)
    match site.quantizer:
        case Affine() as meaning:
            yield from _affine(write, meaning)
        case Ranged() as meaning:
            yield from _ranged(write, meaning)
        case Floating() as meaning:
            yield from _floating(write, meaning)
        case Bipolar(scale):
            yield from _bipolar(write, scale)
        case Truncating() as meaning:
            yield from _truncating(write, meaning)
    if site.dialect == "qdq" and site.weight is not None and isinstance(site.quantizer, Affine):
        # Codes of 32 bits have no other spelling, but float arithmetic decodes them.
        yield from by_definition(site, editor)


def _affine(write: SiteWriter, given: Affine) -> Iterator[Draft]:
    rule = given.decoding or Decoding(given.scale, given.zero_point)
    arrays = (given.scale, given.zero_point, given.lo, given.hi)
    s, z, lo, hi, scale, zero_point = write.see(*arrays, rule.scale, rule.zero_point)
    found = None if given.decoding is None else Decoding(scale, zero_point)
    given = replace(given, scale=s, zero_point=z, lo=lo, hi=hi, decoding=found)
    if not (np.isfinite(given.lo) & np.isfinite(given.hi)).all():
        return
    meaning = counted_from_zero_point(given) or given
    nearest = given.rounding is Rounding.ROUND
    if nearest:
        yield from _single(write, given, Decoding(scale, zero_point))
    if nearest and not meaning.lo.any() and (meaning.hi == meaning.hi.flat[0]).all():
        draft, x = write.begin()
        y = steps_of(draft, x, meaning.scale, meaning.zero_point)
        codes = _codes(write, draft, y, meaning.lo, meaning.hi)
        if codes is not None:
            yield write.end(draft, decoded(draft, codes, meaning))
    yield from _stored(write, meaning)
    draft, x = write.begin()
    y = steps_of(draft, x, meaning.scale, meaning.zero_point)
    y = round_to_integer(draft.op, y, meaning.rounding)
    codes = _codes(write, draft, y, meaning.lo, meaning.hi)
    if codes is not None:
        yield write.end(draft, decoded(draft, codes, meaning))
    if given.recipe is Recipe.OFFSET_FIRST and (given.lo == -1).all() and (given.hi == 1).all():
        draft, x = write.begin()
        signs = _signs(draft, steps_of(draft, x, given.scale, given.zero_point), ONE)
        yield write.end(draft, decoded(draft, signs, given))


def _single(write: SiteWriter, meaning: Affine, rule: Decoding) -> Iterator[Draft]:
    """Yield the FakeQuantize whose ranges are those of the codes."""
    levels = float((meaning.hi - meaning.lo).max()) + 1
    if not 2 <= levels <= _LIKELY or levels == REMOVED:
        return
    if (meaning.hi - meaning.lo != levels - 1).any():
        return
    with np.errstate(all="ignore"):
        low = (meaning.lo - meaning.zero_point) * meaning.scale
        high = (meaning.hi - meaning.zero_point) * meaning.scale
        below = (meaning.lo - rule.zero_point) * rule.scale
        above = (meaning.hi - rule.zero_point) * rule.scale
    draft, x = write.begin()
    y = _levelled(write, draft, x, (low, high, below, above), int(levels))
    if y is not None:
        yield write.end(draft, y)


def _stored(write: SiteWriter, meaning: Affine) -> Iterator[Draft]:
    """Yield a constant as whole numbers that a FakeQuantize leaves alone."""
    values = write.site.values
    if values is None or not values.size or not np.isfinite(values).all():
        return
    rule = meaning.decoding or Decoding(meaning.scale, meaning.zero_point)
    seen = write.seen(values).astype(np.float64)
    with np.errstate(all="ignore"):
        whole = np.rint(seen / rule.scale + rule.zero_point)
    if whole.shape != seen.shape or not (np.abs(whole) < MOST_LEVELS).all():
        return
    lo, hi = meaning.lo, meaning.hi
    if float((hi - lo).max()) >= MOST_LEVELS:
        lo, hi = (np.asarray(end, np.float32) for end in (whole.min(), whole.max()))
    draft, x = write.begin_on(whole.astype(np.float32).reshape(values.shape))
    codes = _codes(write, draft, x, lo, hi)
    if codes is not None:
        yield write.end(draft, decoded(draft, codes, meaning))


def _ranged(write: SiteWriter, given: Ranged) -> Iterator[Draft]:
    ends = (given.input_low, given.input_high, given.output_low, given.output_high)
    rule = given.decoding or Decoding(ONE, ZERO)
    *laid, scale, zero_point = write.see(*ends, rule.scale, rule.zero_point)
    low, high, below, above = laid
    if given.decoding is None:
        draft, x = write.begin()
        y = _levelled(write, draft, x, (low, high, below, above), given.levels)
        if y is not None:
            yield write.end(draft, y)
        return
    for rounds in (False, True):
        # For some numbers of levels q / (levels - 1) * (levels - 1) is not quite q.
        draft, x = write.begin()
        outer = ZERO, np.asarray(given.levels - 1, np.float32)
        codes = _levelled(write, draft, x, (low, high, *outer), given.levels)
        if codes is not None:
            whole = draft.op.Round(codes) if rounds else codes
            yield write.end(draft, real_values(draft, whole, scale, zero_point))


def _floating(write: SiteWriter, given: Floating) -> Iterator[Draft]:
    """Yield a constant whose values lie on an even grid; minifloats do not in general."""
    values = write.site.values
    if values is None or not values.size or not np.isfinite(values).all():
        return
    (scale,) = write.see(given.scale)
    unit = np.float32(2.0 ** (1 - given.format.bias - given.format.mantissa_bits))
    with np.errstate(all="ignore"):
        whole = np.rint(write.seen(values).astype(np.float64) / (scale * unit))
    if not (np.abs(whole) < 2**40).all():
        return
    # Few values need a grid as fine as the smallest subnormal.
    common = max(int(np.gcd.reduce(np.abs(whole).astype(np.int64), axis=None)), 1)
    coarse = np.float32(common & -common)
    end = np.asarray(np.abs(whole).max() / coarse, np.float32)
    if 2 * end + 1 <= REMOVED:
        even = Affine(scale * (unit * coarse), ZERO, -np.maximum(end, ONE), end)
        yield from _stored(write, even)


def _bipolar(write: SiteWriter, given: Float32) -> Iterator[Draft]:
    (scale,) = write.see(given)
    if enlarges([scale], write.shape):
        draft, x = write.begin()
        yield write.end(draft, draft.op.Mul(_signs(draft, x, ONE), scale))
        return
    draft, x = write.begin()
    yield write.end(draft, _signs(draft, x, scale))


def _signs(draft: Draft, x: Operand, scale: Float32) -> ir.Value:
    """Append ``scale`` where x is not negative, ``-scale`` elsewhere."""
    ends = [np.float32(-1) * ONE, ZERO, -scale, scale]
    operands = [draft.op.Sign(x), *(draft.constant(end, "end") for end in ends)]
    return node(draft, DOMAIN, "FakeQuantize", operands, {"levels": 2})


def _truncating(write: SiteWriter, given: Truncating) -> Iterator[Draft]:
    meaning = write.see_truncating(given)
    if not (np.isfinite(meaning.lo) & np.isfinite(meaning.hi)).all():
        return
    draft, x = write.begin()
    y = round_to_integer(draft.op, truncated(draft, x, meaning), meaning.rounding)
    codes = _codes(write, draft, y, meaning.lo, meaning.hi)
    if codes is not None:
        yield write.end(draft, real_values(draft, codes, meaning.out_scale, meaning.out_zero_point))


def _codes(
    write: SiteWriter, draft: Draft, y: Operand, lo: Float32, hi: Float32
) -> ir.Value | None:
    """Append a FakeQuantize that limits ``y`` to ``lo`` to ``hi`` and keeps whole numbers."""
    if max(float(np.abs(lo).max()), float(np.abs(hi).max())) > MOST_LEVELS:
        return None
    steps = hi - lo
    if (steps == steps.flat[0]).all() and _keeps_codes(lo, int(steps.flat[0])):
        return _levelled(write, draft, y, (lo, hi, lo, hi), int(steps.flat[0]) + 1)
    # With a power of two as the number of steps nothing is rounded.
    low = float(lo.min())
    count = 2 ** math.ceil(math.log2(max(float(hi.max()) - low, 1)))
    if count >= MOST_LEVELS:
        return None
    ends = np.asarray(low, np.float32), np.asarray(low + count, np.float32)
    return _levelled(write, draft, clip(draft, y, lo, hi), (*ends, *ends), count + 1)


def _keeps_codes(lo: Float32, steps: int) -> bool:
    if not 1 <= steps < REMOVED - 1:
        return False
    return all(_keeps(start, steps) for start in set(lo.ravel().tolist()))


@functools.cache
def _keeps(lo: float, steps: int) -> bool:
    """Return whether a FakeQuantize from ``lo`` in ``steps`` steps of 1 keeps whole numbers."""
    codes = np.arange(steps + 1, dtype=np.float32) + np.float32(lo)
    ends = [np.asarray(end, np.float32) for end in (lo, lo + steps)]
    found = fake_quantize(codes, *ends, *ends, levels=steps + 1, auto_broadcast="numpy")
    return bool(np.array_equal(found, codes))


def _levelled(
    write: SiteWriter,
    draft: Draft,
    x: Operand,
    ends: tuple[Float32, Float32, Float32, Float32],
    levels: int,
) -> ir.Value | None:
    """Append a FakeQuantize; None where its ranges would enlarge the data, which it refuses."""
    if enlarges(ends, write.shape):
        return None
    names = ("input_low", "input_high", "output_low", "output_high")
    values = dict[bytes, ir.Value]()
    operands: list[Operand] = [x]
    for end, name in zip(ends, names, strict=True):
        key = repr(end.shape).encode() + end.tobytes()
        operands.append(values.setdefault(key, draft.constant(end, name)))
    return node(draft, DOMAIN, "FakeQuantize", operands, {"levels": levels})

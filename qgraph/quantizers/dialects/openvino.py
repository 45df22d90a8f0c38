"""The dialect ``openvino``: FakeQuantize, as NNCF writes it. Forms, the shortest first:

1. one FakeQuantize over the range of the codes, which is exact for few scales;
2. the data divided by the scale, a FakeQuantize whose levels are the codes themselves and which
   rounds and clamps, and the real value computed from them;
3. the same with the rounding in float before it: any rounding, codes of either sign. FakeQuantize
   rounds the data when it subtracts a lower limit other than 0, so it cannot round exactly there,
   but it keeps whole numbers;
4. a constant stored as whole numbers, which need no rounding.

In forms 2 to 4, levels are whole numbers with step 1, so the arithmetic of OpenVINO's CPU plugin
gives the same values as the definition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.schema import OpKey
from qgraph.numerics import Float32
from qgraph.numerics.blocks import enlarges, fits
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.fake_quantize import fake_quantize
from qgraph.ops.operator import Operator
from qgraph.ops.steps import round_to_integer
from qgraph.quantizers.dialects.dialect import (
    Refusal,
    Site,
    SiteWriter,
    Writers,
    dialect,
    node,
    single_node,
    written,
)
from qgraph.quantizers.dialects.onnx import decoded_in_float
from qgraph.quantizers.dialects.parts import (
    ONE,
    ZERO,
    clip,
    counted_from_zero_point,
    decoded,
    real_values,
    steps_of,
    truncated,
)
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged, Recipe, Truncating

DOMAIN = "org.openvinotoolkit"

MOST_LEVELS = 1 << 24
"""Maximum number of levels of a FakeQuantize in float32."""

REMOVED = 1 << 16
"""OpenVINO removes a FakeQuantize with this number of levels and equal ranges."""

_LIKELY = REMOVED + 1
"""Levels up to which a single FakeQuantize is tried; with more it is never equal."""

ENDS = ("input_low", "input_high", "output_low", "output_high")


def _affine(write: SiteWriter, affine: Affine) -> Iterator[Draft]:
    if not (np.isfinite(affine.lo) & np.isfinite(affine.hi)).all():
        return
    meaning = counted_from_zero_point(affine) or affine
    is_nearest = affine.rounding is Rounding.ROUND
    if is_nearest:
        yield from _single(write, affine)
    if is_nearest and not meaning.lo.any() and (meaning.hi == meaning.hi.flat[0]).all():
        yield from _coded(write, meaning, rounds=False)
    yield from _stored(write, affine, meaning)
    yield from _coded(write, meaning, rounds=True)
    if affine.recipe is Recipe.OFFSET_FIRST and (affine.lo == -1).all() and (affine.hi == 1).all():
        draft, x = write.begin()
        signs = _signs(draft, steps_of(draft, x, affine.scale, affine.zero_point), ONE)
        yield write.end(draft, decoded(draft, signs, affine))


def _coded(write: SiteWriter, meaning: Affine, *, rounds: bool) -> Iterator[Draft]:
    """Yield a FakeQuantize of the codes; ``rounds``: the codes are rounded in float before it."""
    draft, x = write.begin()
    y = steps_of(draft, x, meaning.scale, meaning.zero_point)
    y = round_to_integer(draft.op, y, meaning.rounding) if rounds else y
    codes = _codes(write, draft, y, meaning.lo, meaning.hi)
    if codes is not None:
        yield write.end(draft, decoded(draft, codes, meaning))


def _single(write: SiteWriter, meaning: Affine) -> Iterator[Draft]:
    """Yield the FakeQuantize whose ranges are those of the codes."""
    levels = float((meaning.hi - meaning.lo).max()) + 1
    if not 2 <= levels <= _LIKELY or levels == REMOVED:
        return
    if (meaning.hi - meaning.lo != levels - 1).any():
        return
    with np.errstate(all="ignore"):
        ends = [
            (code - rule.zero_point) * rule.scale
            for rule in (meaning, meaning.to_real)
            for code in (meaning.lo, meaning.hi)
        ]
    draft, x = write.begin()
    y = _levelled(write, draft, x, ends, int(levels))
    if y is not None:
        yield write.end(draft, y)


def _stored(write: SiteWriter, affine: Affine, meaning: Affine) -> Iterator[Draft]:
    """Yield a constant as integers that a FakeQuantize does not change.

    ``meaning`` is the quantizer with its codes counted from the zero point, if they can be.
    """
    rule = meaning.to_real
    if write.is_later:
        begun = write.begin_codes(affine.to_real.zero_point - rule.zero_point)
        codes = None if begun is None else _codes(write, *begun, meaning.lo, meaning.hi)
        if begun is not None and codes is not None:
            yield write.end(begun[0], decoded(begun[0], codes, meaning))
        return
    values = write.site.values
    if values is None or not values.size or not np.isfinite(values).all():
        return
    seen = write.seen(values).astype(np.float64)
    with np.errstate(all="ignore"):
        whole = np.rint(seen / rule.scale + rule.zero_point)
    if whole.shape != seen.shape or not (np.abs(whole) < MOST_LEVELS).all():
        return
    lo, hi = meaning.lo, meaning.hi
    if float((hi - lo).max()) >= MOST_LEVELS:
        lo, hi = (np.asarray(end, np.float32) for end in (whole.min(), whole.max()))
    draft, x = write.begin(whole.astype(np.float32).reshape(values.shape))
    codes = _codes(write, draft, x, lo, hi)
    if codes is not None:
        yield write.end(draft, decoded(draft, codes, meaning))


def _ranged(write: SiteWriter, meaning: Ranged) -> Iterator[Draft]:
    low, high, rule = meaning.input_low, meaning.input_high, meaning.decoding
    if rule is None:
        draft, x = write.begin()
        ends = [low, high, meaning.output_low, meaning.output_high]
        y = _levelled(write, draft, x, ends, meaning.levels)
        if y is not None:
            yield write.end(draft, y)
        return
    for rounds in (False, True):
        # For some numbers of levels q / (levels - 1) * (levels - 1) is not quite q.
        draft, x = write.begin()
        ends = [low, high, ZERO, np.asarray(meaning.levels - 1, np.float32)]
        codes = _levelled(write, draft, x, ends, meaning.levels)
        if codes is not None:
            whole = draft.op.Round(codes) if rounds else codes
            yield write.end(draft, real_values(draft, whole, rule.scale, rule.zero_point))


def _floating(write: SiteWriter, meaning: Floating) -> Iterator[Draft]:
    """Yield a constant with evenly spaced values; those of minifloats are not in general."""
    values = None if write.is_later else write.site.values
    if values is None or not values.size or not np.isfinite(values).all():
        return
    unit = np.float32(2.0 ** (1 - meaning.format.bias - meaning.format.mantissa_bits))
    with np.errstate(all="ignore"):
        whole = np.rint(write.seen(values).astype(np.float64) / (meaning.scale * unit))
    if not (np.abs(whole) < 2**40).all():
        return
    # Few values need a grid as fine as the smallest subnormal.
    common = max(int(np.gcd.reduce(np.abs(whole).astype(np.int64), axis=None)), 1)
    coarse = np.float32(common & -common)
    end = np.asarray(np.abs(whole).max() / coarse, np.float32)
    if 2 * end + 1 <= REMOVED:
        even = Affine(meaning.scale * (unit * coarse), ZERO, -np.maximum(end, ONE), end)
        yield from _stored(write, even, even)


def _bipolar(write: SiteWriter, meaning: Bipolar) -> Iterator[Draft]:
    draft, x = write.begin()
    if fits(meaning.scale.shape, write.shape):
        yield write.end(draft, _signs(draft, x, meaning.scale))
    else:
        yield write.end(draft, draft.op.Mul(_signs(draft, x, ONE), meaning.scale))


def _signs(draft: Draft, x: Operand, scale: Float32) -> ir.Value:
    """Append ``scale`` where x is not negative, ``-scale`` elsewhere.

    No value reaches the level between them. With two levels for data and weights, OpenVINO makes a
    binary convolution, and ends with a segmentation fault.
    """
    ends = [np.float32(-1) * ONE, ZERO, -scale, scale]
    operands = [draft.op.Sign(x), *(draft.constant(end, "end") for end in ends)]
    return node(draft, DOMAIN, "FakeQuantize", operands, {"levels": 3})


def _truncating(write: SiteWriter, meaning: Truncating) -> Iterator[Draft]:
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
    count = int(steps.flat[0])
    is_short = (steps == count).all() and 1 <= count < REMOVED - 1
    if is_short and all(_keeps(start, count) for start in set(lo.ravel().tolist())):
        return _levelled(write, draft, y, [lo, hi, lo, hi], count + 1)
    # If the number of steps is a power of two, nothing is rounded.
    low = float(lo.min())
    count = 2 ** math.ceil(math.log2(max(float(hi.max()) - low, 1)))
    if count >= MOST_LEVELS:
        return None
    ends = [np.asarray(low, np.float32), np.asarray(low + count, np.float32)]
    return _levelled(write, draft, clip(draft, y, lo, hi), [*ends, *ends], count + 1)


@functools.cache
def _keeps(lo: float, steps: int) -> bool:
    """Return whether a FakeQuantize from ``lo`` in ``steps`` steps of 1 keeps whole numbers."""
    codes = np.arange(steps + 1, dtype=np.float32) + np.float32(lo)
    ends = [np.asarray(end, np.float32) for end in (lo, lo + steps)]
    values = fake_quantize(codes, *ends, *ends, levels=steps + 1, auto_broadcast="numpy")
    return bool(np.array_equal(values, codes))


def _levelled(
    write: SiteWriter, draft: Draft, x: Operand, ends: list[Float32], levels: int
) -> ir.Value | None:
    """Append a FakeQuantize; None if its ranges would enlarge the data, which is invalid."""
    if enlarges(ends, write.shape):
        return None
    values = dict[bytes, ir.Value]()
    operands: list[Operand] = [x]
    for end, name in zip(ends, ENDS, strict=True):
        key = repr(end.shape).encode() + end.tobytes()
        if key not in values:
            values[key] = draft.constant(end, name)
        operands.append(values[key])
    return node(draft, DOMAIN, "FakeQuantize", operands, {"levels": levels})


_WRITERS: Writers = {
    Affine: _affine,
    Ranged: _ranged,
    Floating: _floating,
    Bipolar: _bipolar,
    Truncating: _truncating,
}


@dialect
class OpenVino:
    """FakeQuantize: an input range and an output range of ``levels`` levels each."""

    name: ClassVar[str] = "openvino"
    roots: ClassVar[frozenset[OpKey]] = frozenset(
        {OpKey(DOMAIN, "FakeQuantize"), OpKey("", "FakeQuantize")}
    )

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer of a FakeQuantize node."""

        def meaning(operator: Operator, ends: list[Float32]) -> Ranged:
            low, high, below, above = ends
            return Ranged(low, high, below, above, operator.schema.attributes_of(node)["levels"])

        return single_node(node, self.name, meaning)

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield one FakeQuantize if its ranges can express it, then float operators around one."""
        yield from written(site, editor, _WRITERS, later=True)
        yield from decoded_in_float(site, editor)

    def reason(self, site: Site) -> str:
        """Return why FakeQuantize cannot express the site."""
        match site.quantizer:
            case Floating():
                reason = "FakeQuantize has evenly spaced levels, a minifloat does not"
                if site.weight is not None:
                    reason = f"its values need an even grid of more than {REMOVED} levels"
                return f"{reason}; use --to qdq or --to qonnx"
            case Truncating():
                return (
                    "this Trunc does not clamp its codes, and a FakeQuantize always has a range; "
                    "use --to qonnx or --to onnx"
                )
            case Affine():
                return (
                    f"it has more codes than the {MOST_LEVELS} levels of FakeQuantize in float32; "
                    f"use --to qonnx or --to onnx"
                )
        return "its parameters would enlarge the data, which FakeQuantize does not allow"

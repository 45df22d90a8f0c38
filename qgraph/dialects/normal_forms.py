"""Which quantizer a chain of steps is.

What is found here are parameters to choose a spelling by. They may be off by a rounding error or be
wrong for numbers that never occur: nodes are compared with nodes before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.dialects.steps import (
    Arithmetic,
    Bound,
    Encoded,
    End,
    Overflow,
    Rounded,
    Signed,
    Snapped,
    Step,
    simplified,
)
from qgraph.numerics.formats import FORMATS, IntFormat, Minifloat
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.rounding import Rounding
from qgraph.quantizer import (
    Affine,
    Bipolar,
    Decoding,
    Floating,
    Quantizer,
    Ranged,
    Recipe,
    Truncating,
)

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_NEAR_WHOLE = 1e-3
"""A clamp at the value of a code misses the code's number by less."""
_SAME_SCALE = 1e-5
_SAME_STEP = 1e-3

ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)
LOWEST, HIGHEST = np.asarray(-np.inf, np.float32), np.asarray(np.inf, np.float32)


@dataclass(frozen=True)
class Spelling:
    """What the operators of a region tell of it.

    Attributes:
        dialect: whose they are.
        is_pair: nothing but QuantizeLinear, Clip and DequantizeLinear.
        codes: type of the stored codes that the region decodes; None for one that rounds.
    """

    dialect: str
    is_pair: bool = False
    codes: str | None = None


def quantizer_of(steps: Sequence[Step], spelling: Spelling) -> Quantizer | None:
    """Return the quantizer that ``steps`` are, the innermost first, or None."""
    plain = simplified(tuple(steps))
    with np.errstate(all="ignore"):
        if spelling.codes is not None:
            return _stored(plain, spelling.codes)
        if any(isinstance(step, Snapped | Encoded) for step in plain):
            return _floating(plain)
        if any(isinstance(step, Signed) for step in plain):
            return _bipolar(plain)
        rounded = [place for place, step in enumerate(plain) if isinstance(step, Rounded)]
        if not 1 <= len(rounded) <= 2 or (spelling.dialect == "onnx" and not _scales(steps)):
            return None
        if len(rounded) == 2:
            return _truncating(plain, *rounded)
        parts = plain[: rounded[0]], plain[rounded[0]], plain[rounded[0] + 1 :]
        return _affine(*parts, spelling) or _ranged(*parts, spelling) or _regridded(*parts, steps)


def _scales(steps: Sequence[Step]) -> bool:
    """Return whether ``steps`` divide before they round, and multiply afterwards."""
    names = [step.name if isinstance(step, Arithmetic) else "" for step in steps]
    places = [i for i, step in enumerate(steps) if isinstance(step, Rounded)]
    before = {"Div", "Mul"} & set(names[: places[0]])
    return bool(before) and "Mul" in names[places[-1] :]


@dataclass
class _Inward:
    """What happens before the rounding: ``round(clamp(x / scale + offset))``.

    Clamps of the data are ``real``, of codes ``codes``; ``range`` is where ``ends`` leave it alone.
    """

    scale: Array | None = None
    is_reciprocal: bool = False
    offset: Array = field(default_factory=lambda: ZERO)
    real: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    codes: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    range: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    ends: list[End] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> _Inward | None:
        found = cls()
        return found if all(found._take(step) for step in steps) else None

    def _take(self, step: Step) -> bool:
        match step:
            case Arithmetic("Div" | "Mul" as name, value) if self.scale is None:
                self.is_reciprocal = name == "Mul"
                self.scale = ONE / value if self.is_reciprocal else value
            case Arithmetic("Add" | "Sub" as name, value):
                if self.scale is None:
                    self.scale = ONE
                move = value if name == "Add" else -value
                self.offset = self.offset + move
                self.codes = [end + move for end in self.codes]
            case Bound(name, value):
                ends = self.real if self.scale is None else self.codes
                _narrow(ends, name, value)
            case End(threshold=value, above=above) if self.scale is None:
                self.ends.append(step)
                _narrow(self.range, "Min" if above else "Max", value)
            case _:
                return False
        return True


@dataclass
class _Outward:
    """What happens after the rounding: ``(clamp(q + added) - taken) * scale``.

    ``real`` is a clamp of the result. ``top`` and ``low`` belong to ``q / top * scale + low``.
    """

    codes: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    real: list[Array] = field(default_factory=lambda: [LOWEST, HIGHEST])
    added: Array = field(default_factory=lambda: ZERO)
    taken: Array = field(default_factory=lambda: ZERO)
    scale: Array | None = None
    top: Array | None = None
    low: Array = field(default_factory=lambda: ZERO)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> _Outward | None:
        found = cls()
        return found if all(found._take(step) for step in steps) else None

    def _take(self, step: Step) -> bool:
        match step:
            case Bound(name, value) if self.scale is None and self.top is None:
                _narrow(self.codes, name, value - self.added + self.taken)
            case Bound(name, value) if self.top is None:
                _narrow(self.real, name, value)
            case Arithmetic("Add", value) if self.scale is not None:
                if self.top is None:
                    return False
                self.low = self.low + value
            case Arithmetic("Add", value) if self.top is None:
                self.added = self.added + value
            case Arithmetic("Sub", value) if self.scale is None and self.top is None:
                self.taken = self.taken + value
            case Arithmetic("Div", value) if self.scale is None and self.top is None:
                self.top = value
            case Arithmetic("Mul", value) if self.scale is None:
                self.scale = value
            case _:
                return False
        return True


def _narrow(ends: list[Array], name: str, value: Array) -> None:
    if name == "Max":
        ends[0] = np.maximum(ends[0], value)
    else:
        ends[1] = np.minimum(ends[1], value)


def _both(codes: list[Array], others: list[Array]) -> list[Array]:
    return [np.maximum(codes[0], others[0]), np.minimum(codes[1], others[1])]


def _affine(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], spelling: Spelling
) -> Affine | None:
    before, after = _Inward.of(inner), _Outward.of(outer)
    if before is None or after is None or after.top is not None:
        return None
    if not isinstance(rounding, Rounded):
        return None
    scale, out_scale = before.scale, ONE if after.scale is None else after.scale
    scale = ONE if scale is None else scale
    if before.is_reciprocal and _close(scale, out_scale, _SAME_SCALE):
        scale = out_scale
    offset_first = bool(before.offset.any())
    # A sum after the rounding is where codes are counted from, unless that is settled already.
    zero_point = before.offset if offset_first else after.added
    decoded = after.taken - after.added if offset_first else after.taken
    shift = ZERO if offset_first else after.added
    codes = _both(before.codes, after.codes)
    limits = _limits(before, scale, codes)
    if limits is not None and _is_bounded(after.real):
        # A clamp of the result that narrows the codes is read like one of the data.
        result = _Inward(offset=after.taken - after.added, real=after.real)
        limits = _limits(result, out_scale, limits)
    if limits is None:
        return None
    lo, hi = (np.asarray(end + shift, np.float32) for end in limits)
    recipe = Recipe.OFFSET_FIRST
    if not offset_first and spelling.dialect == "qdq":
        recipe = Recipe.ROUND_FIRST
    decoding = None
    if not (_same(scale, out_scale) and _same(zero_point, decoded)):
        if not spelling.is_pair:
            return None
        decoding = Decoding(_float32(out_scale), _float32(decoded))
    found = Affine(_float32(scale), _float32(zero_point), lo, hi, rounding.mode, recipe, decoding)
    return found if _ends_fit(before.ends, found) else None


def _limits(before: _Inward, scale: Array, codes: list[Array]) -> list[Array] | None:
    """Return the smallest and largest rounded number; a clamp of the data counts if it narrows."""
    lo, hi = codes
    for bounds, needed in ((before.range, bool(before.ends)), (before.real, False)):
        if not _is_bounded(bounds):
            continue
        if not all(np.isfinite(end).all() for end in bounds):
            return None
        ends = [end / scale + before.offset for end in bounds]
        low, high = np.minimum(*ends), np.maximum(*ends)
        if not needed and (low <= lo).all() and (high >= hi).all():
            return None
        lo, hi = np.maximum(lo, low), np.minimum(hi, high)
    whole = [np.rint(end) for end in (lo, hi)]
    for end, near in zip((lo, hi), whole, strict=True):
        if not np.isfinite(end).all():
            return None
        if (np.abs(end - near) > _NEAR_WHOLE * np.maximum(1, np.abs(near) * 2.0**-12)).any():
            return None
    return whole if (whole[0] <= whole[1]).all() else None


def _ends_fit(ends: Sequence[End], found: Affine) -> bool:
    """Return whether what is put in the place of large numbers is the value of the last code."""
    for end in ends:
        code = found.hi if end.above == (found.scale > 0).all() else found.lo
        value = (code - found.zero_point) * found.scale
        if not _close(value, end.value, _SAME_SCALE):
            return False
    return True


def _ranged(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], spelling: Spelling
) -> Ranged | None:
    """Read ``(x - low) / width * top``, rounded."""
    steps, outer = _with_width(list(inner), list(outer))
    places = [i for i, step in enumerate(steps) if _is_step(step, "Div")]
    if len(places) != 1 or rounding != Rounded(Rounding.ROUND):
        return None
    (place,) = places
    width, times = steps[place], steps[place + 1 : place + 2]
    if times and _is_step(times[0], "Mul"):
        top = times[0].value  # type: ignore[union-attr]
        rest = steps[place + 2 :]
    else:
        # Of two levels: products and quotients with 1 were left out.
        top, rest = ONE, steps[place + 1 :]
        multiplied = [i for i, step in enumerate(outer) if _is_step(step, "Mul")]
        outer.insert(multiplied[0] if multiplied else len(outer), Arithmetic("Div", ONE))
    before = _Inward.of(steps[:place])
    tail, after = _Inward.of([Arithmetic("Div", ONE), *rest]), _Outward.of(outer)
    if before is None or tail is None or after is None or tail.offset.any() or tail.ends:
        return None
    if _is_bounded(after.real):
        return None
    levels = _number(top)
    if levels is None or levels < 1 or (after.top is not None and not _same(after.top, top)):
        return None
    low, span = -before.offset, width.value  # type: ignore[union-attr]
    codes = _both(tail.codes, after.codes)
    clamped = _same(codes[0], ZERO) and _same(codes[1], top)
    if _is_bounded(before.codes) or (_is_bounded(before.real) and (before.ends or clamped)):
        return None
    ends = before.range if before.ends else before.real
    return _range_of(low, span, ends, before.ends, after, int(levels) + 1, spelling, clamped)


def _with_width(inner: list[Step], outer: list[Step]) -> tuple[list[Step], list[Step]]:
    """Put in the division by a width of 1, or the product with 1, that were left out."""
    divided = [i for i, step in enumerate(outer) if _is_step(step, "Div")]
    if any(_is_step(step, "Div") for step in inner) or not divided:
        return inner, outer
    if not any(_is_step(step, "Mul") for step in outer):
        outer = [*outer[: divided[0] + 1], Arithmetic("Mul", ONE), *outer[divided[0] + 1 :]]
    times = [i for i, step in enumerate(inner) if _is_step(step, "Mul")]
    if times:
        return [*inner[: times[0]], Arithmetic("Div", ONE), *inner[times[0] :]], outer
    top = outer[divided[0]].value  # type: ignore[union-attr]
    starts = [i for i, step in enumerate(inner) if isinstance(step, Bound)]
    place = starts[0] if starts else len(inner)
    width = [Arithmetic("Div", top), Arithmetic("Mul", top)]
    return [*inner[:place], *width, *inner[place:]], outer


def _range_of(
    low: Array,
    width: Array,
    ends: list[Array],
    marks: Sequence[End],
    after: _Outward,
    levels: int,
    spelling: Spelling,
    clamped: bool,
) -> Ranged | None:
    bounded = [np.isfinite(end).all() for end in ends]
    if not clamped and not all(bounded):
        return None
    if all(bounded):
        high = np.where(low == ends[0], ends[1], ends[0])
        if not _close(np.asarray(high - low), width, _SAME_SCALE):
            return None
    elif bounded[1]:
        high = ends[1]
    else:
        high = _summand(low, width)
    top = np.float32(levels - 1)
    decoding = None
    if after.top is not None or (after.scale is None and not after.taken.any()):
        span = after.scale if after.scale is not None else top
        out_low = after.low if after.top is not None else after.added
        marked = [mark.value for mark in marks if mark.above]
        out_high = marked[0] if marked else _summand(out_low, np.asarray(span))
    else:
        scale, zero_point = ONE if after.scale is None else after.scale, after.taken - after.added
        step = np.abs(width / top)
        if spelling.dialect == "openvino" and not _close(np.abs(scale), step, _SAME_STEP):
            return None
        decoding = Decoding(_float32(scale), _float32(zero_point))
        out_low, out_high = -zero_point * scale, (top - zero_point) * scale
    return Ranged(
        _float32(low),
        _float32(high),
        _float32(out_low),
        _float32(out_high),
        levels,
        decoding,
    )


def _summand(low: Array, width: Array) -> Array:
    """Return ``high`` of which ``high - low`` is ``width``, as near to ``low + width`` as it is."""
    high = np.asarray(low + width, np.float32)
    for other in (np.nextafter(high, HIGHEST), np.nextafter(high, LOWEST)):
        high = np.where((high - low != width) & (other - low == width), other, high)
    return high


def _truncating(plain: Sequence[Step], first: int, second: int) -> Truncating | None:
    """Read ``round(clamp(round(x / scale + zero_point) / ratio))``."""
    start, last = plain[first], plain[second]
    before, after = _Inward.of(plain[:first]), _Outward.of(plain[second + 1 :])
    middle = list(plain[first + 1 : second])
    moved = ZERO
    if middle and isinstance(middle[0], Arithmetic) and middle[0].name in ("Add", "Sub"):
        moved = middle[0].value if middle[0].name == "Sub" else -middle[0].value
        middle = middle[1:]
    if start != Rounded(Rounding.ROUND) or not middle or not isinstance(last, Rounded):
        return None
    if before is None or after is None or _is_bounded(after.real):
        return None
    ratio, rest = middle[0], _Inward.of([Arithmetic("Div", ONE), *middle[1:]])
    if not (_is_step(ratio, "Div") or _is_step(ratio, "Mul")) or rest is None or rest.offset.any():
        return None
    bounds = [*before.real, *before.codes]
    if after.top is not None or before.ends or rest.ends or _is_bounded(bounds):
        return None
    divisor = ratio.value if ratio.name == "Div" else ONE / ratio.value  # type: ignore[union-attr]
    if (np.frexp(divisor)[0] != 0.5).any():
        return None
    mode = _mode_of_shift(moved, divisor, last.mode)
    if mode is None:
        return None
    lo, hi = _both(rest.codes, after.codes)
    zero_point, taken = before.offset, after.taken - after.added
    scales = [ONE if scale is None else scale for scale in (before.scale, after.scale)]
    return Truncating(
        _float32(scales[0]),
        _float32(zero_point),
        _float32(divisor),
        _float32(lo),
        _float32(hi),
        mode,
        _float32(scales[1]),
        _float32(taken),
    )


def _regridded(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], steps: Sequence[Step]
) -> Truncating | None:
    """Read a truncation that drops nothing and clamps nothing: rounding to a grid, twice."""
    if sum(isinstance(step, Rounded) for step in steps) < 2 or not isinstance(rounding, Rounded):
        return None
    nothing = Arithmetic("Div", ONE)
    doubled = [*inner, rounding, nothing, rounding, *outer]
    return _truncating(doubled, len(inner), len(inner) + 2)


def _mode_of_shift(moved: Array, ratio: Array, mode: Rounding) -> Rounding | None:
    """Return the rounding that subtracting ``moved`` and rounding to nearest amounts to."""
    if not moved.any():
        return mode
    if mode is not Rounding.ROUND:
        return None
    half = ratio / np.float32(2) - np.float32(0.5)
    if _same(moved, half):
        return Rounding.FLOOR
    return Rounding.CEIL if _same(moved, -half) else None


def _floating(plain: Sequence[Step]) -> Floating | None:
    (place, *others) = [i for i, s in enumerate(plain) if isinstance(s, Snapped | Encoded)]
    before = _Inward.of(plain[:place])
    if others or before is None or before.offset.any() or before.ends:
        return None
    core, outer = plain[place], list(plain[place + 1 :])
    scale = ONE if before.scale is None else before.scale
    limit = _symmetric(before.codes)
    if _is_bounded(before.real):
        if not _same(before.real[0], -before.real[1]):
            return None
        limit = np.minimum(limit, _symmetric(before.real) / np.abs(scale))
    saturates = True
    ends = [LOWEST, HIGHEST]
    while outer and isinstance(outer[0], Bound | Overflow):
        match outer.pop(0):
            case Bound(name, value):
                _narrow(ends, name, value)
            case Overflow(value):
                saturates, limit = False, np.minimum(limit, value)
    if not _same(ends[0], -ends[1]):
        return None
    limit = np.minimum(limit, ends[1])
    if len(outer) > 1 or not all(_is_step(step, "Mul") for step in outer):
        return None
    out_scale = outer[0].value if outer else ONE  # type: ignore[union-attr]
    if before.is_reciprocal and _close(scale, out_scale, _SAME_SCALE):
        scale = out_scale
    if not _same(scale, out_scale):
        return None
    if isinstance(core, Encoded):
        return _cast(core, _float32(scale), limit)
    top = _number(limit)
    if top is None or not np.isfinite(top) or not isinstance(core, Snapped):
        return None
    return Floating(_float32(scale), _format(core, top), core.mode, saturates)


def _cast(core: Encoded, scale: Float32, limit: Array) -> Floating | None:
    kind = core.kind
    if np.isfinite(limit).any():
        # Bounds of the data are multiples of the scale up to a rounding error.
        near = float(kind.snap(limit.reshape(-1)[0]))
        if not _close(limit, np.asarray(near), _SAME_SCALE):
            return None
        if near != kind.max_value:
            kind = Minifloat(kind.exponent_bits, kind.mantissa_bits, kind.bias, near)
    return Floating(scale, kind, Rounding.ROUND, core.saturates)


def _format(core: Snapped, top: float) -> Minifloat:
    """Return a format with the grid of ``core`` and the largest value ``top``."""
    mantissa, bias = core.mantissa_bits, 1 - core.min_exponent
    for known in MINIFLOATS.values():
        if (known.mantissa_bits, known.bias, known.max_value) == (mantissa, bias, top):
            return known
    exponent = 1
    while (2.0 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias) < top and exponent < 8:
        exponent += 1
    return Minifloat(exponent, mantissa, bias, top)


def _symmetric(ends: list[Array]) -> Array:
    return np.asarray(np.maximum(np.abs(ends[0]), np.abs(ends[1])))


def _bipolar(plain: Sequence[Step]) -> Bipolar | Affine | None:
    (place, *others) = [i for i, step in enumerate(plain) if isinstance(step, Signed)]
    before, after = _Inward.of(plain[:place]), _Outward.of(plain[place + 1 :])
    signs = plain[place]
    if others or before is None or after is None or not isinstance(signs, Signed):
        return None
    if _is_bounded(after.real):
        return None
    bounds = [*before.real, *before.codes]
    if before.ends or _is_bounded(bounds) or after.top is not None or after.added.any():
        return None
    out_scale = ONE if after.scale is None else after.scale
    positive, negative = ((side - after.taken) * out_scale for side in vars(signs).values())
    if before.scale is None:
        return Bipolar(_float32(positive)) if _same(positive, -negative) else None
    scale, offset = before.scale, before.offset
    for value, sign in ((positive, ONE), (negative, -ONE)):
        if not _close(value, (sign - offset) * scale, _SAME_SCALE):
            return None
    if not offset.any():
        return Bipolar(_float32(scale))
    return Affine(_float32(scale), _float32(offset), -ONE, ONE)


def _stored(plain: Sequence[Step], codes: str) -> Affine | Ranged | None:
    """Read ``(code - zero_point) * scale``, or ``code / top * span + low``."""
    kind = FORMATS.get(codes)
    ends = [step for step in plain if isinstance(step, End)]
    after = _Outward.of([step for step in plain if not isinstance(step, End)])
    if after is None or after.scale is None or not isinstance(kind, IntFormat):
        return None
    if _is_bounded(after.real):
        return None
    if after.top is not None:
        levels = _number(after.top)
        if levels is None or levels < 1:
            return None
        high = ends[0].value if ends else _summand(after.low, after.scale)
        low, high = _float32(after.low), _float32(high)
        # What is put in the place of codes above the range lies above it.
        last = np.nextafter(high, low) if ends else high
        return Ranged(low, last, low, high, int(levels) + 1)
    if ends or after.added.any():
        return None
    lo, hi = np.maximum(after.codes[0], kind.lo), np.minimum(after.codes[1], kind.hi)
    return Affine(
        _float32(after.scale),
        _float32(after.taken),
        _float32(lo),
        _float32(hi),
        recipe=Recipe.ROUND_FIRST,
    )


def _is_step(step: Step, name: str) -> bool:
    return isinstance(step, Arithmetic) and step.name == name


def _is_bounded(ends: Sequence[Array]) -> bool:
    return any(np.isfinite(end).any() for end in ends)


def _same(a: Array, b: Array) -> bool:
    return bool((np.asarray(a) == b).all())


def _close(a: Array, b: Array, share: float) -> bool:
    return bool((np.abs(a - b) <= share * np.abs(b)).all())


def _number(value: Array) -> float | None:
    """Return the number that all elements are, or None."""
    first = value.reshape(-1)[0]
    return float(first) if (value == first).all() else None


def _float32(value: Array) -> Float32:
    return np.asarray(value, np.float32)

"""Read quantizers from step chains.

A reader matches the steps of a chain with the formula of one kind of quantizer and returns the
parameters, or raises NoMatch::

    Div 0.5, Add 3, Max 0, Min 15, Round, Sub 3, Mul 0.5
    -> Affine(scale=0.5, zero_point=3, lo=0, hi=15)

Writers choose forms by these parameters. They may have rounding errors, or be wrong for numbers
that never occur: before a replacement, the old and new nodes are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.quantizer import (
    Affine,
    Bipolar,
    Decoding,
    Quantizer,
    Ranged,
    Recipe,
    Truncating,
)
from qgraph.quantizers.recognition.steps import (
    ONE,
    SAME_SCALE,
    ZERO,
    ArithmeticStep,
    Encoded,
    End,
    Limited,
    NoForm,
    NoMatch,
    Notation,
    Rounded,
    Signed,
    Snapped,
    Step,
    require,
    same,
    simplified,
)
from qgraph.quantizers.recognition.taken import (
    AfterRounding,
    BeforeRounding,
    both,
    close,
    constant_of,
    float32,
    floating,
    index_of,
    is_bounded,
    is_step,
    number,
    scale_of,
    summand,
)

_NEAR_WHOLE = 1e-3
"""Maximum distance of a clamp from the value of a code."""

_SAME_STEP = 1e-3


def quantizer_of(steps: Sequence[Step], notation: Notation) -> Quantizer | None:
    """Return the quantizer of ``steps``, the innermost first, or None."""
    with np.errstate(all="ignore"):
        for read in _readers(steps, notation):
            try:
                return read()
            except NoMatch:
                continue
    return None


def is_ruled_out(steps: Sequence[Step]) -> bool:
    """Return whether ``steps`` on real data cannot be a quantizer, for any constants.

    The result depends only on :func:`kinds_of` the steps: a reader that stops at a step of a wrong
    kind stops there, or before, with any constants.
    """
    with np.errstate(all="ignore"):
        for read in _readers(steps, Notation("")):
            try:
                read()
            except NoForm:
                continue
            except NoMatch:
                return False
            return False
    return True


def is_hopeless(steps: Sequence[Step]) -> bool:
    """Return whether ``steps`` cannot be the end of a quantizer, with any steps before them.

    The result depends only on :func:`kinds_of` the steps, which are arithmetic, limits and
    roundings. Steps before a division and a rounding cannot simplify these two or later steps. So
    only readers for one or two roundings are possible, and their conditions on the steps after the
    last rounding, or between two, are tested here.
    """
    plain = simplified(tuple(steps))
    rounded = [i for i, step in enumerate(plain) if isinstance(step, Rounded)]
    if not rounded or not is_step(steps[0], "Div") or plain[0] is not steps[0]:
        return False
    if any(is_step(step, "Div") or is_step(step, "Mul") for step in plain[1 : rounded[0]]):
        return False
    with np.errstate(all="ignore"):
        if len(rounded) == 1:
            outer = list(plain[rounded[0] + 1 :])
            index = index_of(outer, "Mul")
            with_width = [*outer[:index], ArithmeticStep("Div", ONE), *outer[index:]]
            return all(_has_no_form(partial(AfterRounding.of, s)) for s in (outer, with_width))
        return len(rounded) > 2 or _has_no_form(partial(truncating, plain, *rounded))


def _has_no_form(read: Callable[[], object]) -> bool:
    try:
        read()
    except NoForm:
        return True
    except NoMatch:
        pass
    return False


def _readers(steps: Sequence[Step], notation: Notation) -> list[Callable[[], Quantizer]]:
    plain = simplified(tuple(steps))
    rounded = [i for i, step in enumerate(plain) if isinstance(step, Rounded)]
    if notation.codes is not None:
        return [partial(stored, plain, notation.codes)]
    if any(isinstance(step, Snapped | Encoded) for step in plain):
        return [partial(floating, plain)]
    if any(isinstance(step, Signed) for step in plain):
        return [partial(bipolar, plain)]
    if not 1 <= len(rounded) <= 2 or (notation.dialect == "onnx" and not _scales(steps)):
        return []
    if len(rounded) == 2:
        return [partial(truncating, plain, *rounded)]
    parts = plain[: rounded[0]], plain[rounded[0]], plain[rounded[0] + 1 :]
    readers: list[Callable[[], Quantizer]] = [partial(affine, *parts, notation)]
    if any(is_step(step, "Div") for step in parts[2]):
        readers.append(partial(affine, *parts[:2], _with_product(parts[2]), notation))
    readers.append(partial(ranged, *parts, notation))
    if sum(isinstance(step, Rounded) for step in steps) > 1:
        readers.append(partial(regridded, *parts))
    return readers


def _scales(steps: Sequence[Step]) -> bool:
    """Return whether ``steps`` multiply or divide before they round, and afterwards."""
    names = [step.name if isinstance(step, ArithmeticStep) else "" for step in steps]
    rounded = [i for i, step in enumerate(steps) if isinstance(step, Rounded)]
    return not any(
        {"Div", "Mul"}.isdisjoint(part) for part in (names[: rounded[0]], names[rounded[-1] :])
    )


def _with_product(outer: Sequence[Step]) -> list[Step]:
    """Return steps with quotients by powers of two replaced by equal products."""
    return [
        ArithmeticStep("Mul", ONE / constant_of(step))
        if is_step(step, "Div") and (np.frexp(constant_of(step))[0] == 0.5).all()
        else step
        for step in outer
    ]


def affine(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], notation: Notation
) -> Affine:
    """Read ``clamp(x / scale + zero_point)``, rounded, minus the zero point, times the scale."""
    before, after = BeforeRounding.of(inner), AfterRounding.of(outer)
    if after.top is not None or not isinstance(rounding, Rounded):
        raise NoMatch
    out_scale = after.factor
    scale = scale_of(before, out_scale)
    offset_first = bool(before.offset.any())
    # A summand after the rounding is the zero point, unless that is already known.
    zero_point = before.offset if offset_first else after.added
    shift = ZERO if offset_first else after.added
    decoded = after.zero_point if offset_first else after.taken
    limits = _limits(before, scale, both(before.codes, after.codes), rounding.mode)
    if is_bounded(after.real):
        # A clamp of the result that narrows the codes is read like one of the data.
        result = BeforeRounding(offset=after.zero_point, real=after.real)
        limits = _limits(result, out_scale, limits)
    lo, hi = (float32(end + shift) for end in limits)
    round_first = notation.dialect == "qdq" and not offset_first
    recipe = Recipe.ROUND_FIRST if round_first else Recipe.OFFSET_FIRST
    decoding = None
    if not (same(scale, out_scale) and same(zero_point, decoded)):
        # Half a step before a Floor rounds to nearest, and is no zero point.
        is_half = rounding.mode is Rounding.FLOOR and same(before.offset, 0.5)
        require(notation.is_pair or (is_half and same(scale, out_scale) and same(decoded, 0)))
        decoding = Decoding(float32(out_scale), float32(decoded))
    for end in before.ends:
        # Large numbers become the value of the last code.
        code = hi if end.above == (scale > 0).all() else lo
        require(close((code - zero_point) * scale, end.value, SAME_SCALE))
    return Affine(float32(scale), float32(zero_point), lo, hi, rounding.mode, recipe, decoding)


def _limits(
    before: BeforeRounding, scale: Array, codes: list[Array], mode: Rounding = Rounding.ROUND
) -> list[Array]:
    """Return the smallest and largest rounded number, also by a clamp of the data."""
    lo, hi = codes
    for bounds, needed in ((before.range, bool(before.ends)), (before.real, False)):
        if is_bounded(bounds):
            require(all(np.isfinite(end).all() for end in bounds))
            ends = [end / scale + before.offset for end in bounds]
            if mode is Rounding.FLOOR:
                ends = [np.floor(end) for end in ends]
            low, high = np.minimum(*ends), np.maximum(*ends)
            require(needed or not ((low <= lo).all() and (high >= hi).all()))
            lo, hi = np.maximum(lo, low), np.minimum(hi, high)
    whole = [np.rint(end) for end in (lo, hi)]
    for end, near in zip((lo, hi), whole, strict=True):
        tolerance = _NEAR_WHOLE * np.maximum(1, np.abs(near) * 2.0**-12)
        require(np.isfinite(end).all() and (np.abs(end - near) <= tolerance).all())
    require((whole[0] <= whole[1]).all())
    return whole


def bipolar(plain: Sequence[Step]) -> Bipolar | Affine:
    """Read one of two values by the sign of ``x`` or of ``x / scale + zero_point``."""
    (index, *others) = [i for i, step in enumerate(plain) if isinstance(step, Signed)]
    before, after = BeforeRounding.of(plain[:index]), AfterRounding.of(plain[index + 1 :])
    signs = plain[index]
    if others or not isinstance(signs, Signed):
        raise NoMatch
    require(not is_bounded([*after.real, *before.real, *before.codes]))
    require(not before.ends and after.top is None and not after.added.any())
    sides = signs.positive, signs.negative
    positive, negative = ((side - after.taken) * after.factor for side in sides)
    if before.scale is None:
        require(same(positive, -negative))
        return Bipolar(float32(positive))
    scale, offset = before.scale, before.offset
    for value, sign in ((positive, ONE), (negative, -ONE)):
        require(close(value, (sign - offset) * scale, SAME_SCALE))
    if not offset.any():
        return Bipolar(float32(scale))
    return Affine(float32(scale), float32(offset), -ONE, ONE)


def ranged(
    inner: Sequence[Step], rounding: Step, outer: Sequence[Step], notation: Notation
) -> Ranged:
    """Read ``(x - low) / width * top``, rounded."""
    steps, outer = _with_width(list(inner), list(outer))
    index = index_of(steps, "Div")
    rest = steps[index + 1 :]
    require(index < len(steps) and index_of(rest, "Div") == len(rest))
    require(rounding == Rounded(Rounding.ROUND))
    width, top = constant_of(steps[index]), ONE
    if rest and is_step(rest[0], "Mul"):
        top, rest = constant_of(rest[0]), rest[1:]
    else:
        # Two levels: products and quotients with 1 were omitted.
        outer.insert(index_of(outer, "Mul"), ArithmeticStep("Div", ONE))
    before, after = BeforeRounding.of(steps[:index]), AfterRounding.of(outer)
    tail = BeforeRounding.of([ArithmeticStep("Div", ONE), *rest])
    require(same(before.divisor, ONE) and not tail.offset.any() and not tail.ends)
    require(not is_bounded(after.real))
    levels = _levels(top)
    last = np.float32(levels - 1)
    require(after.top is None or same(after.top, top))
    codes = both(tail.codes, after.codes)
    clamped = same(codes[0], ZERO) and same(codes[1], top)
    require(not is_bounded(before.codes))
    require(not (is_bounded(before.real) and (before.ends or clamped)))
    low = -before.offset
    high = _high(low, width, before.range if before.ends else before.real, clamped=clamped)
    decoding = None
    if after.top is not None or (after.scale is None and not after.taken.any()):
        out_low = after.low if after.top is not None else after.added
        marked = [end.value for end in before.ends if end.above]
        span = np.asarray(last if after.scale is None else after.scale)
        out_high = marked[0] if marked else summand(out_low, span)
    else:
        scale, zero_point = after.factor, after.zero_point
        step = np.abs(width / last)
        require(notation.dialect != "openvino" or close(np.abs(scale), step, _SAME_STEP))
        decoding = Decoding(float32(scale), float32(zero_point))
        out_low, out_high = -zero_point * scale, (last - zero_point) * scale
    ends = float32(low), float32(high), float32(out_low), float32(out_high)
    return Ranged(*ends, levels, decoding)


def _with_width(inner: list[Step], outer: list[Step]) -> tuple[list[Step], list[Step]]:
    """Insert the omitted division by a width of 1, and omitted products with 1."""
    divided, times = index_of(outer, "Div"), index_of(inner, "Mul")
    if index_of(inner, "Div") < len(inner):
        return inner, outer
    width = [ArithmeticStep("Div", ONE)]
    if divided < len(outer) and times == len(inner):
        top = constant_of(outer[divided])
        width = [ArithmeticStep("Div", top), ArithmeticStep("Mul", top)]
    limits = (i for i, step in enumerate(inner) if isinstance(step, Limited))
    index = times if times < len(inner) else next(limits, times)
    return [*inner[:index], *width, *inner[index:]], _with_span(outer)


def _with_span(outer: list[Step]) -> list[Step]:
    """Insert the omitted product with a span of 1 after a quotient."""
    divided = index_of(outer, "Div")
    if divided == len(outer) or index_of(outer, "Mul") < len(outer):
        return outer
    return [*outer[: divided + 1], ArithmeticStep("Mul", ONE), *outer[divided + 1 :]]


def _levels(top: Array) -> int:
    last = number(top)
    if last is None or not 1 <= last < np.inf:
        raise NoMatch
    return int(last) + 1


def _high(low: Array, width: Array, ends: list[Array], *, clamped: bool) -> Array:
    """Return the upper limit of an input range, possibly from a clamp at ``ends``."""
    is_low, is_high = (bool(np.isfinite(end).all()) for end in ends)
    if is_low and is_high:
        high = np.where(low == ends[0], ends[1], ends[0])
        require(close(np.asarray(high - low), width, SAME_SCALE))
        return high
    require(clamped)
    return ends[1] if is_high else summand(low, width)


def stored(plain: Sequence[Step], codes: str) -> Affine | Ranged:
    """Read ``(code - zero_point) * scale``, or ``code / top * span + low``, of stored codes."""
    form = FORMATS.get(codes)
    ends = [step for step in plain if isinstance(step, End)]
    after = AfterRounding.of(_with_span([step for step in plain if not isinstance(step, End)]))
    if after.scale is None or not isinstance(form, IntFormat) or is_bounded(after.real):
        raise NoMatch
    if after.top is not None:
        high = ends[0].value if ends else summand(after.low, after.scale)
        low, high = float32(after.low), float32(high)
        # The replacement of codes above the range lies above it.
        last = np.nextafter(high, low) if ends else high
        return Ranged(low, last, low, high, _levels(after.top))
    require(not ends and not after.added.any())
    lo, hi = np.maximum(after.codes[0], form.lo), np.minimum(after.codes[1], form.hi)
    scale, zero_point = float32(after.scale), float32(after.taken)
    return Affine(scale, zero_point, float32(lo), float32(hi), recipe=Recipe.ROUND_FIRST)


def truncating(plain: Sequence[Step], first: int, second: int) -> Truncating:
    """Read ``round(clamp(round(x / scale + zero_point) / ratio))``."""
    start, last = plain[first], plain[second]
    middle, moved = list(plain[first + 1 : second]), ZERO
    if middle and (is_step(middle[0], "Add") or is_step(middle[0], "Sub")):
        sign = ONE if is_step(middle[0], "Sub") else -ONE
        moved = sign * constant_of(middle.pop(0))
    if start != Rounded(Rounding.ROUND) or not middle or not isinstance(last, Rounded):
        raise NoForm
    before, after = BeforeRounding.of(plain[:first]), AfterRounding.of(plain[second + 1 :])
    rest = BeforeRounding.of([ArithmeticStep("Div", ONE), *middle[1:]])
    require(is_step(middle[0], "Div") or is_step(middle[0], "Mul"))
    ratio = constant_of(middle[0])
    ratio = ratio if is_step(middle[0], "Div") else ONE / ratio
    require((np.frexp(ratio)[0] == 0.5).all())
    require(not is_bounded([*after.real, *before.real, *before.codes]))
    require(after.top is None and not before.ends and not rest.ends and not rest.offset.any())
    mode = _mode_of_shift(moved, ratio, last.mode)
    lo, hi = both(rest.codes, after.codes)
    numbers = float32(before.divisor), float32(before.offset), float32(ratio)
    decoding = float32(after.factor), float32(after.zero_point)
    return Truncating(*numbers, float32(lo), float32(hi), mode, *decoding)


def regridded(inner: Sequence[Step], rounding: Step, outer: Sequence[Step]) -> Truncating:
    """Read a truncation that removes no bits and does not clamp: rounding to a grid, twice."""
    doubled = [*inner, rounding, ArithmeticStep("Div", ONE), rounding, *outer]
    return truncating(doubled, len(inner), len(inner) + 2)


def _mode_of_shift(moved: Array, ratio: Array, mode: Rounding) -> Rounding:
    """Return the rounding mode that equals subtracting ``moved`` and rounding to nearest."""
    if not moved.any():
        return mode
    half = ratio / np.float32(2) - np.float32(0.5)
    require(mode is Rounding.ROUND and (same(moved, half) or same(moved, -half)))
    return Rounding.FLOOR if same(moved, half) else Rounding.CEIL

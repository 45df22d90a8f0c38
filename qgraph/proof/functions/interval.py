"""Interval arithmetic: one exact rule for each primitive.

The ends of an interval [lo, hi] are in the order of keys, in which -0 < +0 (T-order). Rounding to
nearest is monotone. So the results at the ends of the operands, computed in float32, are exact
bounds of all results, without directed rounding. A truth value is the interval [surely, possibly].

An element is *bad* if a rule has no bounds for it: NaN is possible, the primitive may be undefined,
or a denominator changes sign. Bad elements decide nothing, unless every value is *nan*: a cast to a
minifloat without saturation gives NaN for every input beyond the range.

ONNX does not define which zero Min, Max and Relu return for -0 and +0. Both are possible results
here. An element is *open* if the result is a zero whose sign is undefined for every input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from qgraph.numerics import Array, Mask
from qgraph.numerics.float32 import from_keys, to_keys
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import undefined
from qgraph.reasons import NO_RULE, Undecidable
from qgraph.records import dataclass

_ZERO = np.float32(0)
_MINUS_ZERO = np.float32(-0.0)
_ONE = np.float32(1)


@dataclass(slots=True)
class Interval:
    """Bounds of many elements at once.

    Attributes:
        lo, hi: ``[n]`` ends, float32 or bool; one object if every element is a point. The ends of
            a constant may be scalars.
        bad: ``[n]`` mask of elements whose ends are not valid; None if there are none.
        nan: ``[n]`` mask of elements whose values are all NaN; these are bad too. None if none.
        open: ``[n]`` mask of zeros of undefined sign; None if there are none.
        sign: 1 or -1 if all elements are finite, nonzero and of this sign; 0 otherwise.
        finite: whether all elements are known to be finite.
    """

    lo: Array
    hi: Array
    bad: Mask | None = None
    nan: Mask | None = None
    open: Mask | None = None
    sign: int = 0
    finite: bool = False

    @classmethod
    def constant(cls, value: Array) -> Interval:
        """Return ``value`` as an interval."""
        if value.dtype == np.bool_:
            return cls(value, value)
        finite = bool(np.isfinite(value).all())
        sign = int((value > 0).all()) - int((value < 0).all()) if finite else 0
        unknown = np.isnan(value)
        bad = np.asarray(unknown) if unknown.any() else None
        return cls(value, value, bad=bad, nan=bad, sign=sign, finite=finite)

    @property
    def is_point(self) -> bool:
        """Whether all elements are points."""
        return self.lo is self.hi


Attributes: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[..., Interval]
"""Returns the interval of the results from the intervals of the operands and the attributes."""


def apply(name: str, operands: Sequence[Interval], attributes: Attributes) -> Interval:
    """Return the interval of a primitive's results; bad operands give bad results.

    The caller switches off NumPy warnings about infinities and NaN. Raises Undecidable if there is
    no rule for the primitive.
    """
    if name not in RULES:
        raise Undecidable(NO_RULE(f"there is no interval rule for {name}"))
    result = RULES[name](*operands, **attributes)
    if name != "Where":
        for operand in operands:
            result.bad = either(result.bad, operand.bad)
            if operand.nan is not None and name in _KEEP_NAN:
                result.nan = either(result.nan, operand.nan)
        if result.open is None and any(operand.open is not None for operand in operands):
            result.open = _open(result, operands)
    return result


_KEEP_NAN = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil"}
    | {"Min", "Max", "Relu"}
)
"""Primitives whose result is NaN if an operand is; Where and Cast have their own rules."""


def either(a: Mask | None, b: Mask | None) -> Mask | None:
    """Return the union of two masks."""
    if a is None or b is None:
        return b if a is None else a
    return np.asarray(a | b)


def settled(a: Interval) -> Mask:
    """Return where an interval is one number, or a zero of undefined sign."""
    if a.is_point or a.lo.dtype == np.bool_:
        same = np.asarray(a.lo == a.hi)
    else:
        same = np.asarray(a.lo.view(np.int32) == a.hi.view(np.int32))
    return same if a.open is None else same | a.open


def _open(result: Interval, operands: Sequence[Interval]) -> Mask | None:
    """Return where a result [-0, +0] comes from operands that are one number each, or open."""
    if result.lo.dtype == np.bool_ or result.is_point:
        return None
    mask = np.asarray((result.lo == 0) & (result.hi == 0))
    mask &= np.signbit(result.lo) & ~np.signbit(result.hi)
    for operand in operands:
        if mask.any() and not operand.is_point:
            mask &= settled(operand)
    return mask if mask.any() else None


def _extreme(pick: Callable[..., Array], a: Array, b: Array) -> Array:
    """Return the smaller or the larger operand in T-order; ``pick`` is np.minimum or np.maximum."""
    chosen = np.asarray(pick(a, b))
    zero = chosen == 0
    if zero.any():
        signs = np.signbit(a), np.signbit(b)
        minus = signs[0] | signs[1] if pick is np.minimum else signs[0] & signs[1]
        np.copyto(chosen, np.where(minus, _MINUS_ZERO, _ZERO), where=zero)
    return chosen


_lower, _upper = partial(_extreme, np.minimum), partial(_extreme, np.maximum)


def _hull(corners: Sequence[Array]) -> Interval:
    lo = hi = corners[0]
    for corner in corners[1:]:
        lo, hi = _lower(lo, corner), _upper(hi, corner)
    return Interval(lo, hi)


def _monotone(function: Callable[..., Array]) -> Rule:
    """Return the rule of a function that never decreases in T-order."""

    def rule(a: Interval, **attributes: Any) -> Interval:
        lo = np.asarray(function(a.lo, **attributes))
        return Interval(lo, lo if a.is_point else np.asarray(function(a.hi, **attributes)))

    return rule


def _has_zero(a: Interval) -> Mask:
    return np.asarray((a.lo <= 0) & (a.hi >= 0))


def _has_infinity(a: Interval) -> Mask:
    return np.asarray(np.isinf(a.lo) | np.isinf(a.hi))


def _add(a: Interval, b: Interval) -> Interval:
    lo = a.lo + b.lo
    point = a.is_point and b.is_point
    hi = lo if point else a.hi + b.hi
    if a.finite or b.finite:
        return Interval(lo, hi)
    # infinities of opposite sign at any two ends
    return Interval(lo, hi, bad=np.isnan(a.lo + b.hi) | np.isnan(a.hi + b.lo))


def _mul(a: Interval, b: Interval) -> Interval:
    if a is b and not a.is_point:
        size = _abs(a)
        return Interval(size.lo * size.lo, size.hi * size.hi)
    result = _of_ends(np.multiply, *((b, a) if a.sign else (a, b)))
    if not (result.is_point or a.sign or b.sign):
        result.bad = (_has_zero(a) & _has_infinity(b)) | (_has_zero(b) & _has_infinity(a))
    return result


def _div(a: Interval, b: Interval) -> Interval:
    result = _of_ends(np.divide, a, b)
    if not (result.is_point or (b.sign and b.is_point)):
        result.bad = (_has_zero(a) & _has_zero(b)) | (_has_infinity(a) & _has_infinity(b))
        result.bad |= np.signbit(b.lo) != np.signbit(b.hi)
    return result


def _of_ends(function: Callable[..., Array], a: Interval, b: Interval) -> Interval:
    """Return products or quotients of the ends; only bad points are marked."""
    if b.sign and b.is_point:
        lo = function(a.lo, b.lo)
        hi = lo if a.is_point else function(a.hi, b.lo)
        return Interval(lo, hi) if b.sign > 0 else Interval(hi, lo)
    if a.is_point and b.is_point:
        lo = function(a.lo, b.lo)
        return Interval(lo, lo, bad=np.isnan(lo))
    return _hull([function(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)])


def _neg(a: Interval) -> Interval:
    lo = -a.hi
    hi = lo if a.is_point else -a.lo
    return Interval(lo, hi, open=a.open, sign=-a.sign, finite=a.finite)


def _abs(a: Interval) -> Interval:
    lo = np.abs(a.lo)
    if a.is_point:
        return Interval(lo, lo)
    hi = np.abs(a.hi)
    crossing = np.signbit(a.lo) & ~np.signbit(a.hi)
    low = np.minimum(lo, hi)
    np.copyto(low, _ZERO, where=crossing)
    return Interval(low, np.maximum(lo, hi))


def _sqrt(a: Interval) -> Interval:
    lo = np.sqrt(a.lo)
    return Interval(lo, lo if a.is_point else np.sqrt(a.hi), bad=np.asarray(a.lo < 0))


def _min(a: Interval, b: Interval) -> Interval:
    if a.sign or b.sign:
        lo = np.minimum(a.lo, b.lo)
        return Interval(lo, lo if a.is_point and b.is_point else np.minimum(a.hi, b.hi))
    lo, hi = _lower(a.lo, b.lo), np.asarray(np.minimum(a.hi, b.hi))
    zero = hi == 0
    if not zero.any():
        return Interval(lo, lo if a.is_point and b.is_point else hi)
    plus = (~np.signbit(a.hi) & (a.lo <= 0)) | (~np.signbit(b.hi) & (b.lo <= 0))
    np.copyto(hi, np.where(plus, _ZERO, _MINUS_ZERO), where=zero)
    result = Interval(lo, hi)
    result.open = _open(result, (a, b))
    return result


def _max(a: Interval, b: Interval) -> Interval:
    return _neg(_min(_neg(a), _neg(b)))


def _less(compare: Callable[..., Array]) -> Rule:
    """Return the rule of a comparison that holds for small first operands, such as Less."""

    def rule(a: Interval, b: Interval) -> Interval:
        surely = np.asarray(compare(a.hi, b.lo))
        point = a.is_point and b.is_point
        return Interval(surely, surely if point else np.asarray(compare(a.lo, b.hi)))

    return rule


def _greater(compare: Callable[..., Array]) -> Rule:
    return lambda a, b: _less(lambda x, y: compare(y, x))(b, a)


def _equal(a: Interval, b: Interval) -> Interval:
    possibly = np.asarray((a.lo <= b.hi) & (b.lo <= a.hi))
    return Interval(possibly & (a.lo == a.hi) & (b.lo == b.hi), possibly)


def _is_nan(a: Interval) -> Interval:
    never = np.zeros(np.shape(a.lo), np.bool_)
    return Interval(never, never)


def _where(c: Interval, a: Interval, b: Interval) -> Interval:
    if a.lo.dtype == np.bool_:
        lo, hi = np.minimum(a.lo, b.lo), np.maximum(a.hi, b.hi)
    else:
        lo, hi = _lower(a.lo, b.lo), _upper(a.hi, b.hi)
    lo = np.where(c.lo, a.lo, np.where(c.hi, lo, b.lo))
    point = c.is_point and a.is_point and b.is_point
    hi = lo if point else np.where(c.lo, a.hi, np.where(c.hi, hi, b.hi))
    bad = c.bad
    for branch, taken in ((a, c.hi), (b, ~c.lo)):
        if branch.bad is not None:
            bad = either(bad, np.asarray(branch.bad & taken))
    result = Interval(lo, hi, bad=bad)
    if a.nan is not None or b.nan is not None:
        none = np.zeros(np.shape(lo), np.bool_)
        yes, no = (none if m is None else m for m in (a.nan, b.nan))
        sure = ~none if c.bad is None else ~c.bad
        result.nan = (yes & no) | (sure & np.where(c.lo, yes, ~c.hi & no))
    if a.open is not None or b.open is not None:
        none = np.zeros(np.shape(lo), np.bool_)
        yes, no = (none if m is None else m for m in (a.open, b.open))
        result.open = np.where(c.lo, yes, np.where(c.hi, yes & no, no))
    return result


def _cast(a: Interval, **attributes: Any) -> Interval:
    to = attributes["to"]
    if to == "BOOL":
        if a.lo.dtype == np.bool_:
            return Interval(a.lo, a.hi)
        return Interval((a.lo > 0) | (a.hi < 0), (a.lo != 0) | (a.hi != 0))
    result = _monotone(NUMPY["Cast"])(a, **attributes)
    if to == "FLOAT":
        result.nan = a.nan
        return result
    bad = undefined("Cast", [a.lo], dict(attributes))
    if not a.is_point:
        bad |= undefined("Cast", [a.hi], dict(attributes))
    # All formats represent 1, and no number beyond their largest one.
    nan = np.isnan(result.lo) & np.isnan(result.hi) & ((a.lo >= 1) | (a.hi <= -1)) & ~bad
    bad |= np.isnan(result.lo) | np.isnan(result.hi)
    if bad.any():
        result.bad = bad
        result.nan = nan if a.bad is None else nan & ~a.bad
    if a.nan is not None and _keeps_nan(attributes):
        result.nan = either(result.nan, a.nan)
    return result


def _keeps_nan(attributes: Attributes) -> bool:
    nan = np.full(1, np.nan, np.float32)
    if undefined("Cast", [nan], dict(attributes)).any():
        return False
    return bool(np.isnan(NUMPY["Cast"](nan, **attributes)).all())


def _gather(table: Interval, index: Interval) -> Interval:
    values = np.asarray(table.lo)
    if np.isnan(values).any():
        raise Undecidable(NO_RULE("the table of a Gather contains NaN"))
    bad = undefined("Gather", [values, index.lo], {}) | undefined("Gather", [values, index.hi], {})
    first, last = (np.where(bad, 0, end).astype(np.int64) for end in (index.lo, index.hi))
    level = np.frexp((last - first + 1).astype(np.float64))[1] - 1
    start = last - (np.int64(1) << level) + 1
    keys = to_keys(values)
    ends = []
    for pick in (np.minimum, np.maximum):
        pyramid = _pyramid(keys, pick)
        ends.append(from_keys(pick(pyramid[level, first], pyramid[level, start])))
    return Interval(ends[0], ends[1], bad=bad)


def _pyramid(keys: Array, pick: Callable[..., Array]) -> Array:
    """Return a table whose row j has the smallest (or largest) of 2**j keys from each index."""
    rows = [keys]
    for j in range(len(keys).bit_length() - 1):
        step = 1 << j
        rows.append(np.append(pick(rows[-1][:-step], rows[-1][step:]), rows[-1][-step:]))
    return np.stack(rows)


RULES: dict[str, Rule] = {
    "Add": _add,
    "Sub": lambda a, b: _add(a, _neg(b)),
    "Mul": _mul,
    "Div": _div,
    "Neg": _neg,
    "Abs": _abs,
    "Sign": _monotone(NUMPY["Sign"]),
    "Sqrt": _sqrt,
    "Reciprocal": lambda a: _div(Interval.constant(np.asarray(_ONE)), a),
    "Round": _monotone(NUMPY["Round"]),
    "Floor": _monotone(np.floor),
    "Ceil": _monotone(np.ceil),
    "Min": _min,
    "Max": _max,
    "Relu": lambda a: _max(a, Interval.constant(np.asarray(_ZERO))),
    "Less": _less(np.less),
    "LessOrEqual": _less(np.less_equal),
    "Greater": _greater(np.greater),
    "GreaterOrEqual": _greater(np.greater_equal),
    "Equal": _equal,
    "Not": lambda a: Interval(~a.hi, ~a.lo),
    "And": lambda a, b: Interval(a.lo & b.lo, a.hi & b.hi),
    "Or": lambda a, b: Interval(a.lo | b.lo, a.hi | b.hi),
    "IsNaN": _is_nan,
    "Where": _where,
    "Cast": _cast,
    "Gather": _gather,
}
"""The interval rules by primitive. Pow has none, because it is only used on constants."""

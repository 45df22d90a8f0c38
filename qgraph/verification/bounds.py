"""Bounds of what each primitive makes of numbers between bounds.

The order of numbers is that of their keys, in which -0 comes before +0. A primitive that rises or
falls in each operand has its bounds at the ends, computed as ever; rounding keeps order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.primitives import NUMPY
from qgraph.verification.tracing import Line, leaves_range

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_NON_DECREASING = frozenset({"Round", "Floor", "Ceil", "Sqrt", "Sign", "Cast"})
_COMPARISONS = {"Less": (0, 1), "LessOrEqual": (0, 1), "Greater": (1, 0), "GreaterOrEqual": (1, 0)}
_KEEP_NAN = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil"}
    | {"Min", "Max", "Relu"}
)


@dataclass
class Bounds:
    """Bounds of results on boxes ``[n]``; ``bad`` where they mean nothing.

    ``nan`` is where all results are NaN, which is bad too; None for nowhere.
    """

    lo: Array
    hi: Array
    bad: Mask
    nan: Mask | None = None

    def sure_nan(self) -> Mask:
        """Return ``nan``, one truth value for each box."""
        return np.zeros_like(self.bad) if self.nan is None else self.nan

    def is_point(self) -> Mask:
        """Return where a result is one number, zeros of both signs being two."""
        return np.asarray(keys(self.lo) == keys(self.hi))


def numbers(places: Array) -> Array:
    """Return the float32 numbers of keys."""
    bits = np.where(places >= 0, places, (1 << 31) - 1 - places)
    return bits.astype(np.uint32).view(np.float32)


def keys(x: Array) -> Array:
    """Return the keys of float32 numbers."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
    return np.where(bits < 1 << 31, bits, (1 << 31) - 1 - bits)


def bounds(line: Line, operands: list[Bounds], tie: float | None) -> Bounds:
    """Return bounds of the results of a line.

    Args:
        line: neither the variable nor a constant.
        operands: bounds of its operands.
        tie: which zero Min, Max and Relu give where they meet both; None for either.
    """
    found = _bounds(line, operands, tie)
    if line.op in _KEEP_NAN and any(o.nan is not None for o in operands):
        found.nan = np.logical_or.reduce([o.sure_nan() for o in operands])
    return found


def _bounds(line: Line, operands: list[Bounds], tie: float | None) -> Bounds:
    name = line.op
    a, b = operands[0], operands[-1]
    bad: Mask = np.asarray(a.bad | b.bad)
    if name in _COMPARISONS:
        small, large = (operands[place] for place in _COMPARISONS[name])
        compare = np.less if name in ("Less", "Greater") else np.less_equal
        return Bounds(compare(small.hi, large.lo), compare(small.lo, large.hi), bad)
    if name == "Where":
        return _where(*operands)
    if name in ("Not", "And", "Or", "IsNaN", "Equal"):
        return _truths(name, a, b, bad)
    if name == "Cast" and line.type == "BOOL":
        sure, maybe = (a.lo > 0) | (a.hi < 0), (a.lo != 0) | (a.hi != 0)
        return Bounds(np.asarray(sure), np.asarray(maybe), bad)
    if name in _NON_DECREASING:
        lo, hi = (
            np.asarray(NUMPY[name](end, **dict(line.attributes))).astype(np.float32)
            for end in (a.lo, a.hi)
        )
        bad = bad | leaves_range(line, a.lo) | leaves_range(line, a.hi)
        nan = None if name != "Cast" else _cast_nan(line, a, np.isnan(lo) & np.isnan(hi) & ~bad)
        return Bounds(lo, hi, bad | np.isnan(lo) | np.isnan(hi), nan)
    if name == "Neg":
        return Bounds(-a.hi, -a.lo, bad)
    if name == "Abs":
        ends = np.abs(a.lo), np.abs(a.hi)
        across = np.signbit(a.lo) & ~np.signbit(a.hi)
        lo = np.where(across, np.float32(0), np.minimum(*ends))
        return Bounds(lo, np.maximum(*ends), bad)
    if name == "Relu":
        zero = np.zeros_like(a.lo)
        return _extreme(np.maximum, a, Bounds(zero, zero, bad), bad, tie)
    if name in ("Min", "Max"):
        return _extreme(np.minimum if name == "Min" else np.maximum, a, b, bad, tie)
    if name == "Gather":
        outside = leaves_range(line, b.lo, len(a.lo))
        found = a.lo[np.where(outside, 0, np.nan_to_num(b.lo)).astype(np.int64)]
        return Bounds(found, found, b.bad | outside | (b.lo != b.hi) | np.isnan(found))
    if name == "Reciprocal":
        one = np.ones_like(a.lo)
        return _arithmetic("Div", Bounds(one, one, a.bad), a, bad)
    if name in ("Add", "Sub", "Mul", "Div"):
        return _arithmetic(name, a, b, bad)
    # nothing is known of other primitives; their inputs are tried one by one
    return Bounds(a.lo, a.hi, np.ones_like(bad))


def _cast_nan(line: Line, a: Bounds, ends: Mask) -> Mask:
    """Return where all results of a Cast are NaN, as those at both ``ends`` are.

    All formats have 1; beyond their largest number there is none again.
    """
    found = np.asarray(ends & ((a.lo >= 1) | (a.hi <= -1)))
    if a.nan is None:
        return found
    nan = np.full(1, np.nan, np.float32)
    kept = np.isnan(np.asarray(NUMPY["Cast"](nan, **dict(line.attributes)))).all()
    return found | a.nan if kept and not leaves_range(line, nan).any() else found


def _arithmetic(name: str, a: Bounds, b: Bounds, bad: Mask) -> Bounds:
    corners = [NUMPY[name](x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    for corner in corners:
        bad = bad | np.isnan(corner)
    zero = [np.asarray((o.lo <= 0) & (o.hi >= 0)) for o in (a, b)]
    infinite = [np.asarray(np.isinf(o.lo) | np.isinf(o.hi)) for o in (a, b)]
    if name == "Mul":
        bad = bad | (zero[0] & infinite[1]) | (zero[1] & infinite[0])
    if name == "Div":
        bad = bad | (zero[0] & zero[1]) | (infinite[0] & infinite[1])
        bad = bad | (np.signbit(b.lo) != np.signbit(b.hi))
    places = [keys(np.broadcast_to(corner, bad.shape)) for corner in corners]
    lo, hi = numbers(np.minimum.reduce(places)), numbers(np.maximum.reduce(places))
    return Bounds(lo, hi, np.asarray(bad))


def _extreme(
    pick: Callable[[Array, Array], Array], a: Bounds, b: Bounds, bad: Mask, tie: float | None
) -> Bounds:
    """Bounds of Min and Max; of two zeros of different signs either may be the result."""
    ends = [
        numbers(pick(keys(np.broadcast_to(x, bad.shape)), keys(np.broadcast_to(y, bad.shape))))
        for x, y in ((a.lo, b.lo), (a.hi, b.hi))
    ]
    both = (a.lo <= 0) & (a.hi >= 0) & (b.lo <= 0) & (b.hi >= 0)
    signs = [np.signbit(end) for end in (a.lo, a.hi, b.lo, b.hi)]
    mixed = both & ((signs[0] != signs[3]) | (signs[1] != signs[2]))
    zero = np.float32(0)
    lo = np.where(mixed & (ends[0] == 0), -zero, ends[0])
    hi = np.where(mixed & (ends[1] == 0), zero, ends[1])
    if tie is not None:
        sure = mixed & a.is_point() & b.is_point()
        lo, hi = (np.where(sure, np.float32(tie), end) for end in (lo, hi))
    return Bounds(lo, hi, bad)


def _where(c: Bounds, a: Bounds, b: Bounds) -> Bounds:
    yes, no = np.asarray(c.lo), ~np.asarray(c.hi)
    bad = c.bad | np.where(yes, a.bad, np.where(no, b.bad, a.bad | b.bad))
    if a.lo.dtype == np.bool_:
        lo, hi = np.minimum(a.lo, b.lo), np.maximum(a.hi, b.hi)
    else:
        ours, theirs = (
            [keys(np.broadcast_to(end, bad.shape)) for end in (o.lo, o.hi)] for o in (a, b)
        )
        lo, hi = numbers(np.minimum(ours[0], theirs[0])), numbers(np.maximum(ours[1], theirs[1]))
    nan = None
    if a.nan is not None or b.nan is not None:
        each, other = a.sure_nan(), b.sure_nan()
        nan = np.asarray((each & other) | (~c.bad & ((yes & each) | (no & other))))
    return Bounds(
        np.where(yes, a.lo, np.where(no, b.lo, lo)),
        np.where(yes, a.hi, np.where(no, b.hi, hi)),
        bad,
        nan,
    )


def _truths(name: str, a: Bounds, b: Bounds, bad: Mask) -> Bounds:
    match name:
        case "Not":
            return Bounds(~a.hi, ~a.lo, bad)
        case "And":
            return Bounds(a.lo & b.lo, a.hi & b.hi, bad)
        case "Or":
            return Bounds(a.lo | b.lo, a.hi | b.hi, bad)
        case "IsNaN":
            never = np.zeros_like(bad)
            return Bounds(never, never, bad)
    meet = (a.lo <= b.hi) & (b.lo <= a.hi)
    return Bounds(meet & (a.lo == a.hi) & (b.lo == b.hi), meet, bad)

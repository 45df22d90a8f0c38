"""Whether two written-out functions have the results that are claimed on given boxes of inputs.

All results on a box lie between bounds that follow from the results at its ends; a box whose bounds
leave the matter open is halved, and small ones are evaluated input by input. The order of numbers
is that of their keys, in which -0 comes before +0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.primitives import NUMPY
from qgraph.verification.tracing import Line

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

LOWEST, HIGHEST = -2139095040, 2139095039
"""Keys of the smallest and the largest finite float32."""

_SMALL = 16
_BATCH = 1 << 16
_NON_DECREASING = frozenset({"Round", "Floor", "Ceil", "Sqrt", "Sign", "Cast"})
_COMPARISONS = {"Less": (0, 1), "LessOrEqual": (0, 1), "Greater": (1, 0), "GreaterOrEqual": (1, 0)}
_KEEP_NAN = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil"}
    | {"Min", "Max", "Relu"}
)
_INTEGER = re.compile(r"(U?)INT(\d+)")


def numbers(keys: Array) -> Array:
    """Return the float32 numbers of keys."""
    bits = np.where(keys >= 0, keys, (1 << 31) - 1 - keys)
    return bits.astype(np.uint32).view(np.float32)


def _keys(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
    return np.where(bits < 1 << 31, bits, (1 << 31) - 1 - bits)


@dataclass
class _Bounds:
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


@dataclass(frozen=True)
class _Pending:
    """Boxes ``[n]`` to look at: keys, whether the results are said to differ, else their value."""

    channel: Array
    lo: Array
    hi: Array
    differing: Mask
    expected: Array

    def at(self, chosen: Mask | slice) -> _Pending:
        """Return some of the boxes."""
        columns = self.channel, self.lo, self.hi, self.differing, self.expected
        return _Pending(*(column[chosen] for column in columns))

    def halves(self) -> list[_Pending]:
        """Return the boxes cut in the middle."""
        middle = (self.lo + self.hi) >> 1
        return [replace(self, hi=middle), replace(self, lo=middle + 1)]


class Functions:
    """Two written-out functions with a common variable, for many channels.

    Args:
        lines: the steps of both.
        roots: numbers of the lines of the two results.
        bits: whether zeros of different signs are different.
    """

    def __init__(self, lines: list[Line], roots: tuple[int, int], *, bits: bool) -> None:
        self._lines = _needed(lines, roots)
        self._roots = roots
        self._bits = bits
        tables = {line.operands[0] for line in self._lines.values() if line.op == "Gather"}
        arrays = {
            number: line.value
            for number, line in self._lines.items()
            if line.value is not None and number not in tables
        }
        self.shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        self._tables = {number: lines[number].value for number in tables}
        self._columns = {
            number: np.broadcast_to(array, self.shape).reshape(-1)
            for number, array in arrays.items()
        }

    def kinds(self) -> dict[int, int]:
        """Return the first channel of each set of channels with equal constants, and their number.

        Constants are equal if their bits are.
        """
        size = int(np.prod(self.shape, dtype=np.int64))
        rows: dict[bytes, int] = {}
        counts: dict[int, int] = {}
        varying = [c for n, c in self._columns.items() if (self._lines[n].value is not None)]
        table = [np.ascontiguousarray(c).view(np.uint8).reshape(size, -1) for c in varying]
        whole = np.concatenate(table, axis=1) if table else np.zeros((size, 1), np.uint8)
        for channel in range(size):
            first = rows.setdefault(whole[channel].tobytes(), channel)
            counts[first] = counts.get(first, 0) + 1
        return counts

    def holds(self, channel: Array, lo: Array, hi: Array, differing: Mask) -> bool:
        """Return whether boxes ``[n]`` of keys are as they are said to be.

        On a box that is not ``differing``, both functions have one value throughout, the same one;
        on the others, their values differ everywhere.
        """
        with np.errstate(all="ignore"):
            values = self._values(channel, numbers(lo))
            expected = np.array(np.broadcast_to(values[self._roots[0]], lo.shape))
            stack = [_Pending(channel, lo, hi, differing, expected)]
            budget = 64 * len(lo) + (1 << 20)
            while stack:
                boxes = stack.pop()
                if len(boxes.lo) > _BATCH:
                    middle = len(boxes.lo) // 2
                    stack += [boxes.at(slice(middle)), boxes.at(slice(middle, None))]
                    continue
                budget -= len(boxes.lo)
                rest = self._unsettled(boxes)
                if rest is None or budget < 0:
                    return False
                small = rest & (boxes.hi - boxes.lo < _SMALL)
                if small.any() and not self._hold_singly(boxes.at(small)):
                    return False
                rest &= ~small
                if rest.any():
                    stack += boxes.at(rest).halves()
        return True

    def equal_at(self, channel: Array, x: Array) -> Mask | None:
        """Return where the results are equal at inputs ``[n]``; None if they are left open."""
        with np.errstate(all="ignore"):
            values = self._values(channel, x)
            for line in self._lines.values():
                if line.operands and _leaves_range(line, values[line.operands[0]]).any():
                    return None
        a, b = (np.broadcast_to(values[root], x.shape) for root in self._roots)
        same = np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
        return same & ((np.signbit(a) == np.signbit(b)) | np.isnan(a)) if self._bits else same

    def _values(self, channel: Array, x: Array) -> dict[int, Array]:
        """Return the results of all lines at inputs ``[n]``."""
        values: dict[int, Array] = {}
        for number, line in self._lines.items():
            if number == 0:
                values[0] = x
            elif line.value is not None:
                values[number] = self._constant(number, channel)
            else:
                operands = [values[operand] for operand in line.operands]
                values[number] = np.asarray(NUMPY[line.op](*operands, **dict(line.attributes)))
        return values

    def differs_between(self, x: Array) -> bool:
        """Return whether the first function has different values at two inputs, in any channel."""
        channel = np.arange(int(np.prod(self.shape, dtype=np.int64)))
        with np.errstate(all="ignore"):
            ends = [self._values(channel, np.full(len(channel), one, np.float32)) for one in x]
        a, b = (end[self._roots[0]] for end in ends)
        return not np.array_equal(a, b, equal_nan=True)

    def _unsettled(self, boxes: _Pending) -> Mask | None:
        """Return which boxes have to be looked at closer; None if one is not as it is said."""
        settled, differ, value = self._settle(boxes.channel, boxes.lo, boxes.hi)
        wrong = differ != boxes.differing
        other = (value != boxes.expected) & ~(np.isnan(value) & np.isnan(boxes.expected))
        wrong |= ~boxes.differing & other
        return None if (settled & wrong).any() else ~settled

    def _hold_singly(self, boxes: _Pending) -> bool:
        sizes = boxes.hi - boxes.lo + 1
        owner = np.repeat(np.arange(len(sizes)), sizes)
        offset = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        channel, x = boxes.channel[owner], numbers(boxes.lo[owner] + offset)
        same = self.equal_at(channel, x)
        if same is None or (same == boxes.differing[owner]).any():
            return False
        value = np.broadcast_to(self._values(channel, x)[self._roots[0]], x.shape)
        expected = boxes.expected[owner]
        one = (value == expected) | (np.isnan(value) & np.isnan(expected))
        return bool((one | boxes.differing[owner]).all())

    def _constant(self, number: int, channel: Array) -> Array:
        table = self._tables.get(number)
        if table is not None:
            return table
        column = self._columns[number]
        return column[channel] if len(column) > 1 else np.broadcast_to(column, channel.shape)

    def _settle(self, channel: Array, lo: Array, hi: Array) -> tuple[Mask, Mask, Array]:
        """Return where boxes are settled, where all results differ, and a bound of the first."""
        never = np.zeros(len(lo), np.bool_)
        held: dict[int, _Bounds] = {}
        for number, line in self._lines.items():
            if number == 0:
                held[0] = _Bounds(numbers(lo), numbers(hi), never)
            elif line.value is not None:
                value = self._constant(number, channel)
                nan = never if value.dtype == np.bool_ else np.isnan(value)
                held[number] = _Bounds(value, value, nan, nan)
            else:
                operands = [held[o] for o in line.operands]
                held[number] = _bounds(line, operands)
                if line.op in _KEEP_NAN and any(o.nan is not None for o in operands):
                    held[number].nan = np.logical_or.reduce([o.sure_nan() for o in operands])
        a, b = (held[root] for root in self._roots)
        good = ~(a.bad | b.bad)
        points = (_keys(a.lo) == _keys(a.hi)) & (_keys(b.lo) == _keys(b.hi))
        if not self._bits:
            points = (a.lo == a.hi) & (b.lo == b.hi)
        same = _keys(a.lo) == _keys(b.lo) if self._bits else np.asarray(a.lo == b.lo)
        apart = (a.hi < b.lo) | (b.hi < a.lo)
        value = np.broadcast_to(a.lo, lo.shape)
        settled, differ = good & (points | apart), np.asarray(apart | ~same)
        if a.nan is not None or b.nan is not None:
            ours, theirs = a.sure_nan(), b.sure_nan()
            one = (ours & ~b.bad) | (theirs & ~a.bad)
            differ = np.where(ours & theirs, False, differ | one)
            settled = settled | (ours & theirs) | one
            value = np.where(ours, np.float32(np.nan), value)
        return settled, differ, value


def _needed(lines: list[Line], roots: tuple[int, int]) -> dict[int, Line]:
    wanted = {0, *roots}
    for number in range(len(lines) - 1, -1, -1):
        if number in wanted:
            wanted.update(lines[number].operands)
    return {number: lines[number] for number in sorted(wanted)}


def _bounds(line: Line, operands: list[_Bounds]) -> _Bounds:
    name = line.op
    a, b = operands[0], operands[-1]
    bad: Mask = np.asarray(a.bad | b.bad)
    if name in _COMPARISONS:
        small, large = (operands[place] for place in _COMPARISONS[name])
        strict = name in ("Less", "Greater")
        compare = np.less if strict else np.less_equal
        return _Bounds(compare(small.hi, large.lo), compare(small.lo, large.hi), bad)
    if name == "Where":
        return _where(*operands)
    if name in ("Not", "And", "Or", "IsNaN", "Equal"):
        return _truths(name, a, b, bad)
    if name == "Cast" and dict(line.attributes)["to"] in ("BOOL", 9):
        return _Bounds(
            np.asarray((a.lo > 0) | (a.hi < 0)), np.asarray((a.lo != 0) | (a.hi != 0)), bad
        )
    if name in _NON_DECREASING:
        lo, hi = (
            np.asarray(NUMPY[name](end, **dict(line.attributes))).astype(np.float32)
            for end in (a.lo, a.hi)
        )
        bad = bad | _leaves_range(line, a.lo) | _leaves_range(line, a.hi)
        nan = None if name != "Cast" else _cast_nan(line, a, np.isnan(lo) & np.isnan(hi) & ~bad)
        return _Bounds(lo, hi, bad | np.isnan(lo) | np.isnan(hi), nan)
    if name == "Neg":
        return _Bounds(-a.hi, -a.lo, bad)
    if name == "Abs":
        ends = np.abs(a.lo), np.abs(a.hi)
        across = np.signbit(a.lo) & ~np.signbit(a.hi)
        lo = np.where(across, np.float32(0), np.minimum(*ends))
        return _Bounds(lo, np.maximum(*ends), bad)
    if name == "Relu":
        zero = np.zeros_like(a.lo)
        return _extreme(np.maximum, a, _Bounds(zero, zero, bad), bad)
    if name in ("Min", "Max"):
        return _extreme(np.minimum if name == "Min" else np.maximum, a, b, bad)
    if name == "Gather":
        place = np.clip(np.nan_to_num(b.lo), 0, len(a.lo) - 1).astype(np.int64)
        outside = ~((b.lo >= 0) & (b.lo < len(a.lo)))
        found = a.lo[place]
        return _Bounds(found, found, b.bad | outside | (b.lo != b.hi) | np.isnan(found))
    if name == "Reciprocal":
        one = np.ones_like(a.lo)
        return _arithmetic("Div", _Bounds(one, one, a.bad), a, bad)
    if name in ("Add", "Sub", "Mul", "Div"):
        return _arithmetic(name, a, b, bad)
    # nothing is known of other primitives; their inputs are tried one by one
    return _Bounds(a.lo, a.hi, np.ones_like(bad))


def _cast_nan(line: Line, a: _Bounds, ends: Mask) -> Mask:
    """Return where all results of a Cast are NaN, as those at both ``ends`` are.

    All formats have 1; beyond their largest number there is none again.
    """
    found = ends & ((a.lo >= 1) | (a.hi <= -1))
    if a.nan is None:
        return found
    nan = np.full(1, np.nan, np.float32)
    kept = np.isnan(np.asarray(NUMPY["Cast"](nan, **dict(line.attributes)))).all()
    return found | a.nan if kept and not _leaves_range(line, nan).any() else found


def _arithmetic(name: str, a: _Bounds, b: _Bounds, bad: Mask) -> _Bounds:
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
    keys = [_keys(np.broadcast_to(corner, bad.shape)) for corner in corners]
    return _Bounds(
        numbers(np.minimum.reduce(keys)), numbers(np.maximum.reduce(keys)), np.asarray(bad)
    )


def _extreme(pick: Any, a: _Bounds, b: _Bounds, bad: Mask) -> _Bounds:
    """Bounds of Min and Max; of two zeros of different signs either may be the result."""
    ends = [
        numbers(pick(_keys(np.broadcast_to(x, bad.shape)), _keys(np.broadcast_to(y, bad.shape))))
        for x, y in ((a.lo, b.lo), (a.hi, b.hi))
    ]
    both = (a.lo <= 0) & (a.hi >= 0) & (b.lo <= 0) & (b.hi >= 0)
    mixed = np.asarray(
        both & ((np.signbit(a.lo) != np.signbit(b.hi)) | (np.signbit(a.hi) != np.signbit(b.lo)))
    )
    zero = np.float32(0)
    lo = np.where(mixed & (ends[0] == 0), -zero, ends[0])
    hi = np.where(mixed & (ends[1] == 0), zero, ends[1])
    return _Bounds(lo, hi, bad)


def _where(c: _Bounds, a: _Bounds, b: _Bounds) -> _Bounds:
    yes, no = np.asarray(c.lo), ~np.asarray(c.hi)
    bad = c.bad | np.where(yes, a.bad, np.where(no, b.bad, a.bad | b.bad))
    shape = bad.shape
    if a.lo.dtype == np.bool_:
        lo, hi = np.minimum(a.lo, b.lo), np.maximum(a.hi, b.hi)
    else:
        ours, theirs = (
            [_keys(np.broadcast_to(end, shape)) for end in (o.lo, o.hi)] for o in (a, b)
        )
        lo = numbers(np.minimum(ours[0], theirs[0]))
        hi = numbers(np.maximum(ours[1], theirs[1]))
    return _Bounds(
        np.where(yes, a.lo, np.where(no, b.lo, lo)),
        np.where(yes, a.hi, np.where(no, b.hi, hi)),
        bad,
        _where_nan(c, a, b),
    )


def _where_nan(c: _Bounds, a: _Bounds, b: _Bounds) -> Mask | None:
    """Return where each branch that may be taken is NaN."""
    if a.nan is None and b.nan is None:
        return None
    yes, no = a.sure_nan(), b.sure_nan()
    return np.asarray((yes & no) | (~c.bad & np.where(c.lo, yes, ~np.asarray(c.hi) & no)))


def _truths(name: str, a: _Bounds, b: _Bounds, bad: Mask) -> _Bounds:
    match name:
        case "Not":
            return _Bounds(~a.hi, ~a.lo, bad)
        case "And":
            return _Bounds(a.lo & b.lo, a.hi & b.hi, bad)
        case "Or":
            return _Bounds(a.lo | b.lo, a.hi | b.hi, bad)
        case "IsNaN":
            never = np.zeros_like(bad)
            return _Bounds(never, never, bad)
    meet = (a.lo <= b.hi) & (b.lo <= a.hi)
    return _Bounds(meet & (a.lo == a.hi) & (b.lo == b.hi), meet, bad)


def _leaves_range(line: Line, x: Array) -> Mask:
    """Return where a Cast is undefined."""
    to = str(dict(line.attributes).get("to", "")) if line.op == "Cast" else ""
    to = _type_name(to)
    if x.dtype == np.bool_:
        return np.zeros(np.shape(x), np.bool_)
    if (integer := _INTEGER.fullmatch(to)) is not None:
        bits, unsigned = int(integer[2]), bool(integer[1])
        low = 0.0 if unsigned else -(2.0 ** (bits - 1))
        high = 2.0**bits if unsigned else 2.0 ** (bits - 1)
        whole = np.trunc(x)
        return ~((whole >= np.float32(low)) & (whole < np.float32(high)))
    if to == "FLOAT8E8M0":
        return np.asarray(x < 0)
    if to.startswith("FLOAT6"):
        return np.asarray(np.isnan(x))
    return np.zeros(np.shape(x), np.bool_)


def _type_name(to: str) -> str:
    return ir.DataType(int(to)).name if to.isdigit() else to

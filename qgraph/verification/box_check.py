"""Whether two written-out functions have the results that are claimed on given boxes of inputs.

A box is a stretch of float32 inputs, by their keys, in one channel. Bounds that leave the matter
open make it two boxes; small ones are evaluated input by input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.primitives import NUMPY
from qgraph.verification.bounds import Bounds, bounds, numbers
from qgraph.verification.tracing import Line, leaves_range

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.int64]

LOWEST, HIGHEST = -2139095040, 2139095039
"""Keys of the smallest and the largest finite float32."""

_SMALL = 16
_BATCH = 1 << 16
_ZEROS = (-0.0, 0.0)
"""What Min, Max and Relu may give where they meet both zeros; ONNX leaves it open."""


@dataclass(frozen=True)
class Boxes:
    """Boxes ``[n]`` and what is said of them.

    Attributes:
        channel, lo, hi: where they are; keys of the first and last input.
        differing: the values differ for every input. Elsewhere they are equal, and of one value.
        signs: the values are zeros whose signs differ, or may. Elsewhere equal zeros have one sign.
    """

    channel: Keys
    lo: Keys
    hi: Keys
    differing: Mask
    signs: Mask

    def at(self, chosen: Mask | slice | Keys) -> Boxes:
        """Return some of the boxes."""
        channel, lo, hi = (column[chosen] for column in (self.channel, self.lo, self.hi))
        return Boxes(channel, lo, hi, self.differing[chosen], self.signs[chosen])

    def halves(self) -> Boxes:
        """Return the lower halves, then the upper ones."""
        middle = (self.lo + self.hi) >> 1
        channel = np.concatenate([self.channel, self.channel])
        differing = np.concatenate([self.differing, self.differing])
        signs = np.concatenate([self.signs, self.signs])
        lo, hi = np.concatenate([self.lo, middle + 1]), np.concatenate([middle, self.hi])
        return Boxes(channel, lo, hi, differing, signs)


@dataclass(frozen=True)
class Points:
    """Results of two functions at inputs ``[n]``.

    Attributes:
        reference, candidate: the values.
        differ: where they differ; -0 equals +0, and NaN equals NaN.
        signs: where both are zeros whose signs differ, or may.
        left_open: where ONNX does not say what they are.
    """

    reference: Array
    candidate: Array
    differ: Mask
    signs: Mask
    left_open: Mask


class Functions:
    """Two written-out functions with a common variable, for many channels.

    Args:
        lines: the steps of both.
        roots: numbers of the lines of the two results.

    Attributes:
        shape: what their constants broadcast to; each of its elements is a channel.
    """

    def __init__(self, lines: list[Line], roots: tuple[int, int]) -> None:
        self._lines = _needed(lines, roots)
        self._roots = roots
        tables = {line.operands[0] for line in self._lines.values() if line.op == "Gather"}
        self._constants: dict[int, Array] = {
            number: line.value for number, line in self._lines.items() if line.value is not None
        }
        spread = {n: array for n, array in self._constants.items() if n not in tables}
        self.shape = np.broadcast_shapes(*(array.shape for array in spread.values()))
        self.channels = int(np.prod(self.shape, dtype=np.int64))
        self._columns = {
            number: np.broadcast_to(array, self.shape).reshape(-1)
            for number, array in spread.items()
            if array.size > 1
        }

    def kinds(self) -> dict[int, int]:
        """Return the first channel of each set of channels with equal constants, and their number.

        Constants are equal if their bits are.
        """
        size = self.channels
        rows: dict[bytes, int] = {}
        counts: dict[int, int] = {}
        columns = [np.ascontiguousarray(column) for column in self._columns.values()]
        table = [column.view(np.uint8).reshape(size, -1) for column in columns]
        whole = np.concatenate(table, axis=1) if table else np.zeros((size, 1), np.uint8)
        for channel in range(size):
            first = rows.setdefault(whole[channel].tobytes(), channel)
            counts[first] = counts.get(first, 0) + 1
        return counts

    def alone(self, place: int) -> Functions:
        """Return the first function, or the second one, as both."""
        lines = [self._lines.get(n, Line("x", (), ())) for n in range(max(self._lines) + 1)]
        found = Functions(lines, (self._roots[place],) * 2)
        found.shape, found.channels = self.shape, self.channels
        found._columns = {n: c for n, c in self._columns.items() if n in found._lines}
        return found

    def hold_values(self, boxes: Boxes) -> bool:
        """Return whether both functions have the same one value on each box; signs do not count."""
        never = np.zeros(len(boxes.lo), np.bool_)
        return self.hold(replace(boxes, differing=never, signs=never), signs=False)

    def hold(self, boxes: Boxes, *, signs: bool = True) -> bool:
        """Return whether boxes are as they are said to be; on request whatever zeros' signs are."""
        if not len(boxes.lo):
            return True
        values = self.at(boxes.channel, numbers(boxes.lo)).reference
        budget = 64 * len(boxes.lo) + (1 << 20)
        while len(boxes.lo):
            budget -= len(boxes.lo)
            parts = range(0, len(boxes.lo), _BATCH)
            rests = [
                self._unsettled(boxes.at(part), values[part], signs=signs)
                for part in (slice(start, start + _BATCH) for start in parts)
            ]
            known = [rest for rest in rests if rest is not None]
            if len(known) < len(rests) or budget < 0:
                return False
            rest = np.concatenate(known)
            small = rest & (boxes.hi - boxes.lo < _SMALL)
            if not self._hold_singly(boxes.at(small), values[small], signs=signs):
                return False
            rest &= ~small
            boxes, values = boxes.at(rest), np.tile(values[rest], 2)
            boxes = boxes.halves()
        return True

    def at(self, channel: Keys, x: Array) -> Points:
        """Return the results at inputs ``[n]``."""
        a, b, left_open, has_ties = self._evaluate(channel, x, _ZEROS[0])
        differ, first = ~_same(a, b), np.signbit(a)
        signs = np.signbit(b) != first
        if has_ties:
            *others, also_open, _ = self._evaluate(channel, x, _ZEROS[1])
            left_open = left_open | also_open | ~_same(a, others[0]) | ~_same(b, others[1])
            signs |= (np.signbit(others[0]) != first) | (np.signbit(others[1]) != first)
            b = others[1]
        return Points(a, b, differ, signs & ~differ & (a == 0), left_open)

    def _evaluate(self, channel: Keys, x: Array, zero: float) -> tuple[Array, Array, Mask, bool]:
        """Return both results, where one is left open, and whether zeros of both signs met."""
        values: dict[int, Array] = {}
        never = np.zeros(len(x), np.bool_)
        masks: dict[int, Mask] = {}
        has_ties = False
        with np.errstate(all="ignore"):
            for number, line in self._lines.items():
                if line.op == "x":
                    values[number] = x
                elif line.value is not None:
                    values[number] = self._constant(number, channel)
                else:
                    operands = [values[operand] for operand in line.operands]
                    values[number], tied = _apply(line, operands, zero)
                    has_ties |= tied
                    under = [masks.get(operand, never) for operand in line.operands]
                    if line.op == "Where":
                        under = [under[0], np.where(operands[0], under[1], under[2])]
                    if line.op in ("Cast", "Gather"):
                        under.append(leaves_range(line, operands[-1], operands[0].size))
                    if any(mask is not never for mask in under):
                        masks[number] = np.logical_or.reduce([never, *under])
        a, b = (np.broadcast_to(values[root], x.shape).astype(np.float32) for root in self._roots)
        ours, theirs = (masks.get(root, never) for root in self._roots)
        return a, b, ours | theirs, has_ties

    def _unsettled(self, boxes: Boxes, expected: Array, *, signs: bool) -> Mask | None:
        """Return which boxes have to be looked at closer; None if one is not as it is said."""
        settled, differ, sign, value = self._settle(boxes, signs=signs)
        wrong = (differ != boxes.differing) | (sign != boxes.signs)
        wrong |= ~boxes.differing & ~_same(value, expected)
        return None if (settled & wrong).any() else ~settled

    def _hold_singly(self, boxes: Boxes, expected: Array, *, signs: bool) -> bool:
        if not len(boxes.lo):
            return True
        sizes = boxes.hi - boxes.lo + 1
        owner = np.repeat(np.arange(len(sizes)), sizes)
        offset = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        found = self.at(boxes.channel[owner], numbers(boxes.lo[owner] + offset))
        wrong = found.left_open | (found.differ != boxes.differing[owner])
        wrong |= signs & (found.signs != boxes.signs[owner])
        wrong |= ~boxes.differing[owner] & ~_same(found.reference, expected[owner])
        return not wrong.any()

    def _constant(self, number: int, channel: Keys) -> Array:
        column = self._columns.get(number)
        array = self._constants[number]
        if column is not None:
            return column[channel]
        return np.broadcast_to(array.reshape(-1), channel.shape) if array.size == 1 else array

    def _settle(self, boxes: Boxes, *, signs: bool) -> tuple[Mask, Mask, Mask, Array]:
        """Return where boxes are settled, where results differ, in sign only, and the first one."""
        a, b = self._bounds(boxes, None)
        good = ~(a.bad | b.bad)
        one = good & (a.lo == a.hi) & (b.lo == b.hi)
        differ = np.asarray(good & ((a.hi < b.lo) | (b.hi < a.lo)))
        settled = np.asarray(differ | (one & (a.lo == b.lo)))
        sign = np.zeros_like(settled)
        zero = settled & ~differ & (a.lo == 0)
        if signs and zero.any():
            settled[zero], sign[zero] = self._settle_signs(boxes.at(zero))
        value = np.array(np.broadcast_to(a.lo, boxes.lo.shape))
        if a.nan is not None or b.nan is not None:
            ours, theirs = a.sure_nan(), b.sure_nan()
            one_side = (ours & ~b.bad) | (theirs & ~a.bad)
            differ = (differ | one_side) & ~(ours & theirs)
            settled |= (ours & theirs) | one_side
            value[ours] = np.nan
        return settled, differ, sign, value

    def _settle_signs(self, boxes: Boxes) -> tuple[Mask, Mask]:
        """Return where the signs of results that are zero are known, and where they differ."""
        found = [result for zero in _ZEROS for result in self._bounds(boxes, zero)]
        points = np.logical_and.reduce([result.is_point() for result in found])
        first = np.signbit(found[0].lo)
        return points, np.logical_or.reduce([np.signbit(r.lo) != first for r in found]) & points

    def _bounds(self, boxes: Boxes, tie: float | None) -> tuple[Bounds, Bounds]:
        never = np.zeros(len(boxes.lo), np.bool_)
        held: dict[int, Bounds] = {}
        with np.errstate(all="ignore"):
            for number, line in self._lines.items():
                if line.op == "x":
                    held[number] = Bounds(numbers(boxes.lo), numbers(boxes.hi), never)
                elif line.value is not None:
                    value = self._constant(number, boxes.channel)
                    nan = never if value.dtype == np.bool_ else np.isnan(value)
                    held[number] = Bounds(value, value, nan, nan if nan.any() else None)
                else:
                    held[number] = bounds(line, [held[o] for o in line.operands], tie)
        a, b = (_whole(held[root], len(boxes.lo)) for root in self._roots)
        return a, b


def _whole(found: Bounds, size: int) -> Bounds:
    """Give the result of constants alone one element for each box."""
    lo, hi = (np.broadcast_to(end, (size,)) for end in (found.lo, found.hi))
    return replace(found, lo=lo, hi=hi)


def _apply(line: Line, operands: list[Array], zero: float) -> tuple[Array, bool]:
    """Return what a line makes of its operands, and whether zeros of both signs met."""
    found = np.asarray(NUMPY[line.op](*operands, **dict(line.attributes)))
    if line.op not in ("Min", "Max", "Relu"):
        return found, False
    a, b = operands if line.op != "Relu" else (operands[0], np.float32(0))
    tie = (a == 0) & (b == 0)
    if not tie.any():
        return found, False
    tie &= np.signbit(a) != np.signbit(b)
    return np.where(tie, np.float32(zero), found), bool(tie.any())


def _same(a: Array, b: Array) -> Mask:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _needed(lines: list[Line], roots: tuple[int, int]) -> dict[int, Line]:
    wanted = set(roots)
    for number in range(len(lines) - 1, -1, -1):
        if number in wanted:
            wanted.update(lines[number].operands)
    return {number: lines[number] for number in sorted(wanted)}

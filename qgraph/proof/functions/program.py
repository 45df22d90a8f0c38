"""Evaluate two expressions on many boxes or inputs, sharing channels and common parts."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from qgraph.numerics import Array, ArrayOf, Float32, Mask
from qgraph.numerics.float32 import Keys, from_keys
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import (
    CONSTANT,
    INPUT,
    TABLE,
    Expr,
    fold,
    in_order,
    known,
    undefined,
)
from qgraph.proof.functions.interval import RULES, Interval, apply
from qgraph.reasons import DO_NOT_FIT, LEFT_OPEN, NO_RULE, Undecidable
from qgraph.records import dataclass

Channels = ArrayOf[np.int64]

TAKE_ONE_ZERO = frozenset({"Min", "Max", "Relu"})
"""Primitives for which ONNX does not define whether they return -0 or +0."""


@dataclass(frozen=True)
class Points:
    """Values ``[n]`` at single inputs, and the mask of those that ONNX does not define."""

    values: Float32
    undefined: Mask


class PairProgram:
    """A pair of expressions whose common parts are evaluated once.

    The elements of the broadcast constants are the channels. Channels with the same constants, bit
    for bit, form one *kind*, which is evaluated once. Raises Undecidable if a primitive has no
    rule, or the constants do not broadcast.

    Attributes:
        channels: number of channels.
        first: ``[kinds]`` the first channel of each kind.
        count: ``[kinds]`` the number of channels of each kind.
        roots: the two expressions.
        order: all expressions in them, operands first.
    """

    def __init__(self, reference: Expr, candidate: Expr) -> None:
        self.roots = (reference, candidate)
        self.order = in_order(self.roots)
        for e in self.order:
            if e.op not in (INPUT, CONSTANT, TABLE) and e.op not in RULES:
                raise Undecidable(NO_RULE(f"there is no interval rule for {e.op}"))
        if any(root.dtype == "BOOL" for root in self.roots):
            raise Undecidable(NO_RULE("the results are truth values"))
        self._spread([e for e in self.order if e.op == CONSTANT])
        self._last = {id(o): i for i, e in enumerate(self.order) for o in e.inputs}
        self._last.update((id(root), len(self.order)) for root in self.roots)

    def _spread(self, constants: list[Expr]) -> None:
        """Find the channels and kinds, and lay out each constant over the kinds."""
        try:
            shape = np.broadcast_shapes(*(e.shape for e in constants))
        except ValueError as error:
            raise Undecidable(
                DO_NOT_FIT("the constants of the two sides do not broadcast")
            ) from error
        self.channels = math.prod(shape)
        if not self.channels:
            raise Undecidable(DO_NOT_FIT("a constant has no elements"))
        varying = [e for e in constants if known(e).size > 1]
        if varying and self.channels > 1:
            columns = [np.broadcast_to(known(e), shape).reshape(-1) for e in varying]
            bits = [c.view(np.uint8 if c.dtype == np.bool_ else np.uint32) for c in columns]
            table = np.stack([column.astype(np.uint32) for column in bits], axis=1)
            whole = np.ascontiguousarray(table).view(f"V{4 * len(columns)}").reshape(-1)
            _, first, count = np.unique(whole, return_index=True, return_counts=True)
            order = np.argsort(first)
            self.first, self.count = first[order], count[order]
        else:
            columns = []
            self.first = np.zeros(1, np.int64)
            self.count = np.full(1, self.channels)
        self._columns: dict[int, Array] = {
            id(e): column[self.first] for e, column in zip(varying, columns, strict=False)
        }
        self._intervals = {
            id(e): Interval.constant(np.asarray(known(e).reshape(-1)[0]))
            for e in constants
            if id(e) not in self._columns
        }
        self._intervals.update(
            (id(e), Interval(known(e), known(e))) for e in self.order if e.op == TABLE
        )
        self._known = {key: Interval.constant(column) for key, column in self._columns.items()}

    def intervals(self, x: Interval, kind: Channels) -> tuple[Interval, Interval]:
        """Return the two results on boxes: inputs ``x`` ``[n]`` in the channels ``kind``."""
        held: dict[int, Interval] = {}
        for i, e in enumerate(self.order):
            if e.op == INPUT:
                held[id(e)] = x
            elif e.op in (CONSTANT, TABLE):
                held[id(e)] = self._constant(e, kind)
            else:
                operands = [held[id(o)] for o in e.inputs]
                held[id(e)] = apply(e.op, operands, dict(e.attributes))
                for o in e.inputs:
                    if self._last[id(o)] == i:
                        held.pop(id(o), None)
        reference, candidate = (held[id(root)] for root in self.roots)
        return _whole(reference, len(kind)), _whole(candidate, len(kind))

    def points(self, x: Float32, kind: Channels, *, zero: bool) -> tuple[Points, Points]:
        """Return the two results at inputs ``x`` ``[n]`` in the channels ``kind``.

        For -0 and +0, Min, Max and Relu return +0 if ``zero`` is true, else -0.
        """

        def leaf(e: Expr) -> Points:
            return Points(x if e.op == INPUT else self._constant(e, kind).lo, np.zeros(1, np.bool_))

        results = fold(self.roots, leaf, partial(_point, zero=zero))
        reference, candidate = (
            Points(np.broadcast_to(one.values, x.shape), np.broadcast_to(one.undefined, x.shape))
            for one in results
        )
        return reference, candidate

    def is_undefined(self, x: Float32, kind: Channels) -> Mask:
        """Return whether ONNX defines neither result, at inputs ``x`` ``[n]`` in ``kind``."""
        reference, candidate = self.points(x, kind, zero=False)
        return np.asarray(reference.undefined & candidate.undefined)

    def constant(self, e: Expr, kind: int) -> Array:
        """Return the number of a constant in one kind of channels, or a table unchanged."""
        column = self._columns.get(id(e))
        return np.asarray(self._intervals[id(e)].lo if column is None else column[kind])

    def _constant(self, e: Expr, kind: Channels) -> Interval:
        column = self._columns.get(id(e))
        if column is None:
            return self._intervals[id(e)]
        facts = self._known[id(e)]
        values = column[kind]
        bad = None if facts.bad is None else facts.bad[kind]
        return Interval(values, values, bad=bad, nan=bad, sign=facts.sign, finite=facts.finite)


def _whole(result: Interval, size: int) -> Interval:
    """Return an interval with one element for each box, even if it depends only on constants."""
    if np.shape(result.lo) == (size,):
        return result
    lo = np.broadcast_to(result.lo, (size,))
    bad, nan = (
        None if mask is None else np.broadcast_to(mask, (size,))
        for mask in (result.bad, result.nan)
    )
    return Interval(lo, lo, bad=bad, nan=nan)


def _point(e: Expr, operands: list[Points], *, zero: bool) -> Points:
    values, attributes = [operand.values for operand in operands], dict(e.attributes)
    result = np.asarray(NUMPY[e.op](*values, **attributes))
    if e.op == "Where":
        condition, yes, no = operands
        chosen = np.where(condition.values, yes.undefined, no.undefined)
        return Points(result, np.asarray(condition.undefined | chosen))
    if e.op in TAKE_ONE_ZERO:
        a, b = values if e.op != "Relu" else (values[0], np.float32(0))
        tie = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        result = np.where(tie, np.float32(0.0 if zero else -0.0), result)
    mask = undefined(e.op, values, attributes)
    for operand in operands:
        mask = mask | operand.undefined
    return Points(result, mask)


class PointResults(NamedTuple):
    """Results of both expressions at inputs or boxes ``[n]``, and masks of differences.

    They hold for every choice of zeros by Min, Max and Relu.

    Attributes:
        reference, candidate: the two values; the candidate's with the other choice of zeros.
        differ: mask of different values.
        zero_sign: mask of zeros whose signs differ, or may differ.
        unknown: mask of values that ONNX does not define.
    """

    reference: Float32
    candidate: Float32
    differ: Mask
    zero_sign: Mask
    unknown: Mask

    @classmethod
    def of(cls, program: PairProgram, x: Float32, kind: Channels) -> PointResults:
        """Compare at inputs ``x`` ``[n]`` in the channels ``kind``."""
        a, b = program.points(x, kind, zero=False)
        others = program.points(x, kind, zero=True)
        unknown = a.undefined | b.undefined
        differ = ~_same(a.values, b.values)
        sign = np.zeros(len(x), np.bool_)
        for one, other in zip((a, b), others, strict=True):
            unknown = unknown | ~_same(one.values, other.values)
            for zeros in (one, other):
                sign |= np.signbit(zeros.values) != np.signbit(a.values)
        sign &= ~differ & (a.values == 0)
        return cls(a.values, others[1].values, differ & ~unknown, sign & ~unknown, unknown)

    def check(self, keys: Keys) -> None:
        """Raise Undecidable if ONNX does not define a result; the inputs have these keys."""
        if self.unknown.any():
            at = float(from_keys(keys[[np.argmax(self.unknown)]])[0])
            raise Undecidable(LEFT_OPEN(f"ONNX leaves open what is computed for the input {at!r}"))


def _same(a: Float32, b: Float32) -> Mask:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))

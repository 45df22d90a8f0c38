"""Two expressions prepared for evaluation on many boxes: channels, shared steps, constants.

Two expressions on many inputs of one channel at once, in buffers that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Float32
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import (
    CONSTANT,
    INPUT,
    TABLE,
    Expr,
    Undecidable,
    in_order,
    known,
    undefined,
)
from qgraph.proof.functions.interval import RULES, Array, Interval, Mask, apply

Channels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Points:
    """Values at single inputs.

    Attributes:
        values: ``[n]`` float32.
        undefined: ``[n]``, where ONNX leaves the value open.
    """

    values: Float32
    undefined: Mask


class Program:
    """A pair of expressions; what both contain is evaluated once.

    The elements of the broadcast constants are the channels. Those with the same constants, bit for
    bit, are one *kind*, and only kinds are evaluated.

    Attributes:
        channels: number of channels.
        first: ``[kinds]`` the first channel of each kind.
        count: ``[kinds]`` how many channels it stands for.
        roots: the two expressions.
        order: all that they consist of, operands first.

    Raises:
        Undecidable: a primitive has no rule, or the constants do not broadcast.
    """

    def __init__(self, reference: Expr, candidate: Expr) -> None:
        self.roots = (reference, candidate)
        self.order = in_order(self.roots)
        for e in self.order:
            if e.op not in (INPUT, CONSTANT, TABLE) and e.op not in RULES:
                raise Undecidable(f"there is no interval rule for {e.op}")
        if any(root.dtype == "BOOL" for root in self.roots):
            raise Undecidable("truth values are compared")
        self._spread([e for e in self.order if e.op == CONSTANT])
        self._last = {id(o): i for i, e in enumerate(self.order) for o in e.inputs}
        self._last.update((id(root), len(self.order)) for root in self.roots)

    def _spread(self, constants: list[Expr]) -> None:
        """Find channels and kinds, and lay each constant out over the kinds."""
        try:
            shape = np.broadcast_shapes(*(e.shape for e in constants))
        except ValueError as error:
            raise Undecidable("the constants of the two sides do not broadcast") from error
        self.channels = math.prod(shape)
        if not self.channels:
            raise Undecidable("a constant has no elements")
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

        Where Min, Max and Relu meet both zeros, they return -0 if ``zero`` is false, else +0.
        """
        held: dict[int, tuple[Array, Mask]] = {}
        for e in self.order:
            if e.op == INPUT:
                held[id(e)] = x, np.zeros(len(x), np.bool_)
            elif e.op in (CONSTANT, TABLE):
                held[id(e)] = self._constant(e, kind).lo, np.zeros(1, np.bool_)
            else:
                held[id(e)] = _point(e, [held[id(o)] for o in e.inputs], zero=zero)
        reference, candidate = (
            Points(*(np.broadcast_to(array, x.shape) for array in held[id(root)]))
            for root in self.roots
        )
        return reference, candidate

    def constant(self, e: Expr, kind: int) -> Array:
        """Return a constant as one number, as a kind of channels has it; a table as it is."""
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
    """Give the result of constants alone one element for each box."""
    if np.shape(result.lo) == (size,):
        return result
    lo = np.broadcast_to(result.lo, (size,))
    bad, nan = (
        None if mask is None else np.broadcast_to(mask, (size,))
        for mask in (result.bad, result.nan)
    )
    return Interval(lo, lo, bad=bad, nan=nan)


def _point(e: Expr, operands: list[tuple[Array, Mask]], *, zero: bool) -> tuple[Array, Mask]:
    values: list[Any] = [value for value, _ in operands]
    attributes = dict(e.attributes)
    result = np.asarray(NUMPY[e.op](*values, **attributes))
    if e.op == "Where":
        (condition, unsure), (_, yes), (_, no) = operands
        return result, np.asarray(unsure | np.where(condition, yes, no))
    if e.op in ("Min", "Max", "Relu"):
        a, b = values if e.op != "Relu" else (values[0], np.float32(0))
        tie = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        result = np.where(tie, np.float32(0.0 if zero else -0.0), result)
    mask = undefined(e.op, values, attributes)
    for _, operand in operands:
        mask = mask | operand
    return result, mask


_ZERO = np.float32(0)


@dataclass(frozen=True)
class _Step:
    """One primitive: where its operands lie, where its result goes, and what to look out for."""

    name: str
    function: Callable[..., Array]
    attributes: dict[str, Any]
    operands: tuple[int, ...]
    out: Array | None
    may_leave_open: bool


class Quick:
    """Evaluates the two expressions of a program, without a look at what ONNX leaves open.

    Args:
        program: the expressions.
        kind: the kind of channels whose constants are taken.
        size: how many inputs are evaluated at once.
    """

    def __init__(self, program: Program, kind: int, size: int) -> None:
        order = program.order
        place = {id(e): i for i, e in enumerate(order)}
        self._roots = [place[id(root)] for root in program.roots]
        last = {place[id(o)]: i for i, e in enumerate(order) for o in e.inputs}
        last.update(dict.fromkeys(self._roots, len(order)))
        self._values: list[Any] = [None] * len(order)
        self._steps: list[tuple[int, _Step]] = []
        self._inputs = [i for i, e in enumerate(order) if e.op == INPUT]
        self._size = size
        pool: dict[type, list[Array]] = {np.float32: [], np.bool_: []}
        held: dict[int, Array] = {}
        for i, e in enumerate(order):
            if e.op in (CONSTANT, TABLE):
                self._values[i] = program.constant(e, kind)
            elif e.op != INPUT:
                out = None
                if isinstance(NUMPY[e.op], np.ufunc):
                    element = np.bool_ if e.dtype == "BOOL" else np.float32
                    out = pool[element].pop() if pool[element] else np.empty(size, element)
                    held[i] = out
                operands = tuple(place[id(o)] for o in e.inputs)
                self._steps.append((i, self._step(e, operands, out)))
                for operand in set(operands):
                    if last[operand] == i and operand in held:
                        freed = held.pop(operand)
                        pool[freed.dtype.type].append(freed)

    def _step(self, e: Expr, operands: tuple[int, ...], out: Array | None) -> _Step:
        ties = e.op in ("Min", "Max", "Relu") and not any(
            operand.op == CONSTANT and np.all(self._values[place] != 0)
            for operand, place in zip(e.inputs, operands, strict=True)
        )
        may = ties or e.op in ("Cast", "Gather")
        return _Step(e.op, NUMPY[e.op], dict(e.attributes), operands, out, may)

    def __call__(self, x: Float32) -> tuple[Float32, Float32] | None:
        """Return both results at inputs ``x`` ``[size]``, which last until the next call.

        None is returned where ONNX leaves open what is computed for one of them, if only the sign
        of a zero.
        """
        values = self._values
        for place in self._inputs:
            values[place] = x
        for place, step in self._steps:
            operands = [values[operand] for operand in step.operands]
            if step.may_leave_open and _is_open(step, operands):
                return None
            if step.out is not None:
                step.function(*operands, out=step.out)
                values[place] = step.out
                continue
            result = step.function(*operands, **step.attributes)
            if any(np.may_share_memory(result, operand) for operand in operands):
                result = result.copy()
            values[place] = result
        a, b = (np.broadcast_to(values[root], (self._size,)) for root in self._roots)
        return a, b


def _is_open(step: _Step, operands: list[Array]) -> bool:
    if step.name == "Cast":
        # what is defined lies between two numbers, and NaN is passed on by minimum and maximum
        ends = np.array([operands[0].min(), operands[0].max()])
        return bool(undefined("Cast", [ends], step.attributes).any())
    if step.name == "Gather":
        table, index = operands
        ends = np.array([index.min(), index.max()])
        return bool(undefined("Gather", [table, ends], {}).any())
    a, b = operands if len(operands) == 2 else (operands[0], np.asarray(_ZERO))
    if a.ndim == 0:
        a, b = b, a
    if b.ndim == 0:
        opposite = (-b).view(np.uint32)
        return bool((a.view(np.uint32) == opposite).any())
    both = (a == 0) & (b == 0)
    return bool(both.any() and (both & (np.signbit(a) != np.signbit(b))).any())

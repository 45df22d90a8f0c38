"""Deciding many pairs of expressions of one form at once.

The quantizers of a network are often the same formula with other numbers. Their constants are laid
side by side as channels of one pair, so that NumPy works on all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from qgraph.proof.engine import Shape, decide, explore, replayed
from qgraph.proof.expression import CONSTANT, INPUT, Builder, Expr, in_order, known, text
from qgraph.proof.finding import Channels, Collector, Finding, Mask
from qgraph.proof.program import Program

Pair: TypeAlias = tuple[Expr, Expr]
_Key: TypeAlias = tuple[str, Shape | None]


def form(pair: Pair) -> tuple[Any, ...] | None:
    """Return what pairs must share to be decided together; None for one to be decided alone.

    Pairs that can go together have the same operators in the same places and differ in the values
    of single constants.
    """
    order = in_order(pair)
    place = {id(e): i for i, e in enumerate(order)}
    lines: list[Any] = []
    for e in order:
        if e.op == "Gather" or e.shape != ():
            return None
        lines.append((e.op, e.dtype, e.attributes, tuple(place[id(o)] for o in e.inputs)))
    return (*lines, *(place[id(root)] for root in pair))


def decide_all(
    pairs: Sequence[tuple[Expr, Expr, Shape | None]], *, until_difference: bool = False
) -> list[Finding]:
    """Return the findings for pairs of any forms, each with the shape of its variable.

    Pairs that are written the same are decided once, those of one form together.

    Args:
        pairs: reference, candidate, and the shape of their variable.
        until_difference: see :func:`~qgraph.proof.engine.decide`.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    keys = [(text(pair[:2]), pair[2]) for pair in pairs]
    groups: dict[object, dict[_Key, tuple[Expr, Expr, Shape | None]]] = {}
    for key, (a, b, shape) in zip(keys, pairs, strict=True):
        shared = form((a, b))
        groups.setdefault(key if shared is None or a is b else shared, {})[key] = a, b, shape
    decided: dict[_Key, Finding] = {}
    for group in groups.values():
        if len(group) == 1:
            ((key, (a, b, shape)),) = group.items()
            decided[key] = decide(a, b, input_shape=shape, until_difference=until_difference)
        else:
            both = [(a, b) for a, b, _ in group.values()]
            found = decide_together(both, until_difference=until_difference)
            decided.update(zip(group, found, strict=True))
    return [decided[key] for key in keys]


def decide_together(pairs: Sequence[Pair], *, until_difference: bool = False) -> list[Finding]:
    """Return what :func:`~qgraph.proof.engine.decide` finds for each of ``pairs``, of one form.

    Raises:
        ValueError: they are not of one form.
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    if len({form(pair) for pair in pairs}) > 1:
        raise ValueError("pairs of several forms cannot be decided together")
    if len(pairs) == 1 or pairs[0][0] is pairs[0][1]:
        return [decide(*pair, until_difference=until_difference) for pair in pairs]
    program = Program(*_side_by_side(pairs))
    if len(program.first) < len(pairs):
        return [decide(*pair, until_difference=until_difference) for pair in pairs]
    found = _Separately(len(pairs), program.first)
    boxes, end = explore(program, found, until_difference=until_difference)
    if end is not None:
        # One of them is to blame; alone, the others are decided all the same.
        return [decide(*pair, until_difference=until_difference) for pair in pairs]
    return [
        replayed(collector.finding(boxes), *pair)
        for collector, pair in zip(found.each, pairs, strict=True)
    ]


def _side_by_side(pairs: Sequence[Pair]) -> Pair:
    """Return one pair whose channels are ``pairs``."""
    builder = Builder()
    orders = [in_order(pair) for pair in pairs]
    made: dict[int, Expr] = {}
    for column in zip(*orders, strict=True):
        first = column[0]
        if first.op == INPUT:
            result = builder.input
        elif first.op == CONSTANT:
            result = builder.constant(np.stack([known(e) for e in column]))
        else:
            operands = [made[id(o)] for o in first.inputs]
            result = getattr(builder, first.op)(*operands, **dict(first.attributes))
        made[id(first)] = result
    reference, candidate = pairs[0]
    return made[id(reference)], made[id(candidate)]


class _Separately:
    """Takes down the differences of each channel in a collector of its own."""

    def __init__(self, channels: int, first: Channels) -> None:
        alone = np.zeros(1, np.int64)
        self.each = [Collector(1, alone, alone + 1) for _ in range(channels)]
        self._channel = first

    def differ(self, kind: Channels, *columns: Any) -> None:
        self._split("differ", kind, columns)

    def differ_in_zero_sign(self, kind: Channels, *columns: Any) -> None:
        self._split("differ_in_zero_sign", kind, columns)

    def differ_at_infinity(self, kind: Channels, *columns: Any, where: Mask) -> None:
        self._split("differ_at_infinity", kind, columns, where=where)

    def differ_in_zero_sign_at_infinity(self, kind: Channels, *columns: Any, where: Mask) -> None:
        self._split("differ_in_zero_sign_at_infinity", kind, columns, where=where)

    def differ_at_nan(self, kind: Channels, *columns: Any, where: Mask) -> None:
        self._split("differ_at_nan", kind, columns, where=where)

    def differing(self, kinds: int) -> Mask:
        channels = [self._channel[kind] for kind in range(kinds)]
        return np.array([self.each[channel].differing(1)[0] for channel in channels])

    def _split(self, note: str, kind: Channels, columns: tuple[Any, ...], **where: Mask) -> None:
        for k in sorted(set(kind.tolist())):
            own = kind == k
            collector = self.each[self._channel[k]]
            masks = {name: mask[own] for name, mask in where.items()}
            getattr(collector, note)(kind[own] * 0, *(column[own] for column in columns), **masks)

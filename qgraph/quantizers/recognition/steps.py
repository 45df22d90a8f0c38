"""Step chains: the operations on a number, one after the other, before and after its rounding.

A step maps one number to one number. Roundings of several primitives, clamps written with Where,
casts to a type and back, and rounding to a minifloat grid are one step each::

    Div 0.5, Max 0, Min 15, Round, Mul 0.5
    BeforeRounding(scale=0.5, codes=[0, 15])    Rounded(ROUND)    AfterRounding(scale=0.5)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from qgraph.numerics import Array
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.proof.functions.expression import Expr
from qgraph.records import dataclass

SAME_SCALE = 1e-5
"""Relative tolerance within which scales count as the same."""

ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)
LOWEST, HIGHEST = np.asarray(-np.inf, np.float32), np.asarray(np.inf, np.float32)


class NoMatch(Exception):  # noqa: N818 - no error: other readers may match
    """Steps do not have the form of a quantizer."""


class NoForm(NoMatch):
    """Steps of these kinds do not have the form of a quantizer, for any constants."""


def require(condition: object) -> None:
    """Raise NoMatch unless ``condition`` holds."""
    if not condition:
        raise NoMatch


@dataclass(frozen=True)
class Notation:
    """The operators in which a region is written.

    Attributes:
        is_pair: whether they are only QuantizeLinear, Clip and DequantizeLinear.
        codes: type of the stored codes that the region decodes; None for one that rounds.
    """

    dialect: str
    is_pair: bool = False
    codes: str | None = None


@dataclass(eq=False)
class _WithConstant:
    """An operator with a constant; not frozen, since very many are created."""

    name: str
    value: Array

    @cached_property
    def is_whole(self) -> bool:
        """Whether its constant consists of integers."""
        return not (self.value != np.rint(self.value)).any()

    @cached_property
    def number(self) -> float | None:
        """Its constant, None if that is an array or NaN."""
        value = None if self.value.size != 1 else float(self.value.reshape(()))
        return value if value == value else None


class Limited(_WithConstant):
    """``Max`` or ``Min`` with a constant."""

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """The properties that :func:`simplified` depends on."""
        return self.name, self.is_whole


class ArithmeticStep(_WithConstant):
    """``Add``, ``Sub``, ``Mul`` or ``Div`` of a constant."""

    @cached_property
    def is_idle(self) -> bool:
        """Whether it changes no number."""
        return same(self.value, ZERO if self.name in ("Add", "Sub") else ONE)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """The properties that :func:`simplified` depends on."""
        return self.name, self.is_whole, self.is_idle


@dataclass(frozen=True)
class Rounded:
    """Rounding to integers."""

    mode: Rounding


@dataclass(frozen=True, eq=False)
class Signed:
    """One of two constants, ``positive`` from 0 upward."""

    positive: Array
    negative: Array


@dataclass(frozen=True)
class Snapped:
    """Rounding to multiples of ``2**(max(floor(log2|v|), min_exponent) - mantissa_bits)``."""

    mantissa_bits: int
    min_exponent: int
    mode: Rounding


@dataclass(frozen=True, eq=False)
class Overflow:
    """Numbers above ``limit`` in magnitude become infinite or NaN."""

    limit: Array


@dataclass(frozen=True)
class Encoded:
    """A cast to a minifloat and back."""

    kind: Minifloat
    saturates: bool


@dataclass(frozen=True, eq=False)
class End:
    """From ``threshold`` upward (or downward) all other steps are skipped: the result is ``value``.

    ``x`` is what is compared with the threshold.
    """

    x: Expr
    threshold: Array
    value: Array
    above: bool


Step: TypeAlias = ArithmeticStep | Limited | Rounded | Signed | Snapped | Overflow | Encoded | End
ROUNDINGS = (Rounded, Signed, Snapped, Encoded)
"""Steps that give one of few numbers."""

LastSteps: TypeAlias = tuple[list[Step], Expr]
"""The last steps of an expression, the innermost first, and their operand."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps that lead from an inner expression to an outer one.

    Attributes:
        steps: the innermost first; an ``End`` precedes the first step that it skips.
        starts: for each step, its possible operands.
    """

    steps: tuple[Step, ...]
    starts: tuple[tuple[Expr, ...], ...]


class Kinds:
    """Numbers for what :func:`simplified` depends on: kinds of steps, and equal constants."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, steps: Sequence[Step]) -> list[int | None]:
        """Return the numbers of ``steps[0:]``, ``steps[1:]`` and so on, equal for equal kinds.

        None if a step has no simple constant.
        """
        index_of: dict[float, int] = {}
        number, numbers = -1, self._numbers
        indices: list[int | None] = []
        for step in reversed(steps):
            if isinstance(step, Rounded):
                key: tuple[object, ...] = (number, step.mode)
            elif isinstance(step, ArithmeticStep | Limited) and step.number is not None:
                key = number, step.kind, index_of.setdefault(step.number, len(index_of))
            else:
                break
            number = numbers.setdefault(key, len(numbers))
            indices.append(number)
        return [None] * (len(steps) - len(indices)) + indices[::-1]


def simplified(steps: tuple[Step, ...]) -> list[Step]:
    """Remove steps without effect, and steps that the previous step makes redundant."""
    result: list[Step] = []
    for step in steps:
        if isinstance(step, ArithmeticStep):
            if step.is_idle:
                continue
            if result and _undoes(step, result):
                result.pop()
                continue
        elif isinstance(step, Rounded) and _is_whole(result):
            continue
        result.append(step)
    return result


def _undoes(step: ArithmeticStep, steps: list[Step]) -> bool:
    """Return whether ``step`` undoes the last of ``steps`` up to a tolerated error."""
    last = steps[-1]
    if not isinstance(last, ArithmeticStep) or not same(last.value, step.value):
        return False
    names = last.name, step.name
    return names == ("Div", "Mul") or (names == ("Sub", "Add") and _is_whole(steps))


def _is_whole(steps: list[Step]) -> bool:
    """Return whether the result of ``steps`` is an integer, or an integer bound."""
    for step in reversed(steps):
        if isinstance(step, Rounded):
            return True
        if isinstance(step, ArithmeticStep) and step.name not in ("Add", "Sub"):
            return False
        if not isinstance(step, ArithmeticStep | Limited) or not step.is_whole:
            return False
    return False


def same(a: Array, b: Array | float) -> bool:
    """Return whether arrays are equal."""
    return bool((np.asarray(a) == b).all())

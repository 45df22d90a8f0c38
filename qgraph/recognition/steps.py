"""Steps of a chain, each of which takes one number and gives one.

Roundings that take several primitives, clamps written as choices, casts there and back, and the
snapping to a minifloat grid are one step each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.numerics.formats import Minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.proof.expression import Expr

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """``Add``, ``Sub``, ``Mul`` or ``Div`` of a constant."""

    name: str
    value: Array

    @cached_property
    def is_idle(self) -> bool:
        """Whether it changes no number."""
        if self.name in ("Add", "Sub"):
            return not self.value.any()
        return equals(self.value, 1.0)

    @cached_property
    def is_whole(self) -> bool:
        """Whether its constant is of whole numbers."""
        return not (self.value != np.rint(self.value)).any()


@dataclass(frozen=True, eq=False)
class Bound:
    """``Max`` or ``Min`` with a constant."""

    name: str
    value: Array

    @cached_property
    def is_whole(self) -> bool:
        """Whether its constant is of whole numbers."""
        return not (self.value != np.rint(self.value)).any()


@dataclass(frozen=True)
class Rounded:
    """Rounding to whole numbers."""

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
    """What is beyond ``limit`` in magnitude becomes infinite or NaN."""

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


Step: TypeAlias = Arithmetic | Bound | Rounded | Signed | Snapped | Overflow | Encoded | End
Peeled: TypeAlias = tuple[list[Step], Expr]
"""Steps, the innermost first, and what they start from."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps that lead from an inner expression to an outer one.

    Attributes:
        steps: the innermost first; an ``End`` stands before the first step that it skips.
        starts: for each step the expressions that it may be said to start from.
    """

    steps: tuple[Step, ...]
    starts: tuple[tuple[Expr, ...], ...]


def simplified(steps: tuple[Step, ...]) -> list[Step]:
    """Leave out steps that change nothing, or that the step before makes unnecessary."""
    result: list[Step] = []
    for step in steps:
        if isinstance(step, Arithmetic):
            if step.is_idle:
                continue
            divides = step.name == "Mul" and result and _is_division(result[-1], step.value)
            if divides or (step.name == "Add" and _is_subtraction(result, step.value)):
                result.pop()
                continue
        elif isinstance(step, Rounded) and _is_whole(result):
            continue
        result.append(step)
    return result


def _is_division(step: Step, value: Array) -> bool:
    return isinstance(step, Arithmetic) and step.name == "Div" and equals(step.value, value)


def _is_subtraction(steps: list[Step], value: Array) -> bool:
    """Return whether a sum undoes the last of ``steps``, of whole numbers, without an error."""
    last = steps[-1] if steps else None
    if isinstance(last, Arithmetic) and last.name == "Sub":
        return equals(last.value, value) and _is_whole(steps)
    return False


def _is_whole(steps: list[Step]) -> bool:
    """Return whether the result of ``steps`` is a whole number, or a bound that is one."""
    for step in reversed(steps):
        if isinstance(step, Rounded):
            return True
        if isinstance(step, Arithmetic) and step.name not in ("Add", "Sub"):
            return False
        if not isinstance(step, Arithmetic | Bound) or not step.is_whole:
            return False
    return False


def equals(value: Array, other: Array | float) -> bool:
    """Return whether all elements are equal."""
    return bool((value == other).all())

"""Steps of a chain, each of which takes one number and gives one.

Roundings that take several primitives, clamps written as choices, casts there and back, and the
snapping to a minifloat grid are one step each.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Bound:
    """``Max`` or ``Min`` with a constant."""

    name: str
    value: Array


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
        match step:
            case Arithmetic("Add" | "Sub", value) if not value.any():
                continue
            case Arithmetic("Mul" | "Div", value) if equals(value, 1.0):
                continue
            case Arithmetic("Mul", value) if result and _is_division(result[-1], value):
                result.pop()
                continue
            case Arithmetic("Add", value) if _is_subtraction(result, value):
                result.pop()
                continue
            case Rounded() if _is_whole(result):
                continue
            case _:
                result.append(step)
    return result


def _is_division(step: Step, value: Array) -> bool:
    return isinstance(step, Arithmetic) and step.name == "Div" and equals(step.value, value)


def _is_subtraction(steps: list[Step], value: Array) -> bool:
    """Return whether a sum undoes the last of ``steps``, of whole numbers, without an error."""
    match steps[-1:]:
        case [Arithmetic("Sub", taken)]:
            return equals(taken, value) and _is_whole(steps)
    return False


def _is_whole(steps: list[Step]) -> bool:
    """Return whether the result of ``steps`` is a whole number, or a bound that is one."""
    for step in reversed(steps):
        match step:
            case Rounded():
                return True
            case Bound(value=value) | Arithmetic("Add" | "Sub", value):
                if (value != np.rint(value)).any():
                    return False
            case _:
                return False
    return False


def equals(value: Array, other: Array | float) -> bool:
    """Return whether all elements are equal."""
    return bool((value == other).all())

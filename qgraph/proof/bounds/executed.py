"""Executed values as functions of whole numbers that both models compute exactly.

Codes are whole numbers. Sums of products of codes are computed exactly, in any order, while they
stay below 2**24 units. Up to the next rounding, a model often has a few float32 operations: a
multiplier, a bias, a clip. Such a function of few whole numbers is executed operation by operation,
so two models can be compared on every whole number that may occur.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.bounds.combination import Atom, Combination
from qgraph.proof.bounds.events import Event
from qgraph.proof.bounds.quantity import Quantity

_MOST = 2.0**40
"""Largest number of units of a coefficient or an offset."""

_NEAR = 2.0**-20
"""Maximum distance of a computed number of units from a whole number."""


@dataclass(frozen=True, eq=False)
class Whole:
    """A sum of whole multiples of atoms with whole values; ``key`` is equal for equal sums."""

    key: Hashable
    low: Float64
    high: Float64


@dataclass(frozen=True, eq=False)
class Start:
    """Exact numbers: ``whole * factor + offset``."""

    whole: Whole
    factor: Float64
    offset: Float64


@dataclass(frozen=True, eq=False)
class TailStep:
    """One operation of float32 on programs and executed constants."""

    name: str
    operands: tuple[Program | Array, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Program: TypeAlias = Start | TailStep


def program_of(q: Quantity) -> Program | None:
    """Return the program that computes data from whole numbers; None if it is not known."""
    if q.is_exact and q.unit is not None:
        start = start_of(q.meant, q.unit)
        if start is not None:
            return start
    if q.operation is None or not q.operation.computes(q):
        return None
    operands: list[Program | Array] = []
    for operand in q.operation.operands:
        program = operand.value if operand.value is not None else program_of(operand)
        if program is None:
            return None
        operands.append(program)
    return TailStep(q.operation.name, tuple(operands), q.operation.attributes)


def start_of(meant: Combination, unit: Float64) -> Start | None:
    """Return an exactly executed function as a function of whole numbers.

    All its values are multiples of a unit, and the whole numbers have no common divisor. So its
    coefficients are multiples of the unit too, and rounding to a multiple gives their exact values.
    """
    terms = [(c, atom) for c, atom in meant.terms if c.any()]
    if not terms or not np.isfinite(unit).all() or not all(is_whole(a) for _, a in terms):
        return None
    counts = [_units(c, unit) for c, _ in terms]
    offset = _units(meant.offset, unit)
    if offset is None or any(count is None for count in counts):
        return None
    starts = [count for count in counts if count is not None]
    factor = starts[0]
    if len(starts) > 1:
        factor = reduce(np.gcd, starts)
        factor = np.where(factor == 0, 1, factor) * np.where(starts[0] < 0, -1, 1)
    ratios = [count // np.where(factor == 0, 1, factor) for count in starts]
    if len(starts) == 1:
        ratios = [np.ones((), np.int64)]
    whole = Combination(
        tuple((r.astype(np.float64), a) for r, (_, a) in zip(ratios, terms, strict=True))
    )
    low, high = whole.range
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    return Start(Whole(whole.key, low, high), factor * unit, offset * unit)


def _units(numbers: Float64, unit: Float64) -> npt.NDArray[np.int64] | None:
    """Return numbers divided by the unit; None if the results are not whole."""
    counts = numbers / unit
    whole = np.rint(counts)
    near = np.abs(counts - whole) <= _NEAR
    return whole.astype(np.int64) if (near & (np.abs(whole) <= _MOST)).all() else None


def is_whole(atom: Atom) -> bool:
    """Return whether the values of an atom are whole numbers without a common divisor."""
    match atom.kind:
        case "codes" | "integers" | "one" | "wrapped":
            return True
        case "moved" | "placed":
            return all(is_whole(a) for _, a in atom.arguments[0].terms)
        case "sum" | "border":
            numbers = atom.numbers[0]
            is_plain = bool((numbers == np.rint(numbers)).all())
            return is_plain and all(is_whole(a) for _, a in atom.arguments[0].terms)
    return False


def wholes_of(program: Program) -> list[Whole]:
    """Return the whole numbers that a program depends on."""
    if isinstance(program, Start):
        return [program.whole]
    wholes: dict[Hashable, Whole] = {}
    for operand in program.operands:
        if isinstance(operand, Start | TailStep):
            wholes.update((whole.key, whole) for whole in wholes_of(operand))
    return list(wholes.values())


def arrays_of(program: Program, *, ranges: bool = True) -> list[Array]:
    """Return all arrays that a program reads, and the ranges of its whole numbers."""
    if isinstance(program, Start):
        ends = [program.whole.low, program.whole.high] if ranges else []
        return [program.factor, program.offset, *ends]
    arrays: list[Array] = []
    for operand in program.operands:
        if isinstance(operand, Start | TailStep):
            arrays += arrays_of(operand, ranges=ranges)
        else:
            arrays.append(operand)
    return arrays


def is_monotone(program: Program) -> bool:
    """Return whether a program of one whole number is monotone in it, in every channel."""
    if isinstance(program, Start):
        return True
    data = [o for o in program.operands if isinstance(o, Start | TailStep)]
    return len(data) == 1 and program.name in _MONOTONE and is_monotone(data[0])


_MONOTONE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Max", "Min", "Relu", "Cast", "Identity"}
    | {"Round", "Floor", "Ceil"}
)
"""Operations that are monotone in each operand, with the others fixed."""

Pick = Callable[[Array], Array]
"""Returns the elements of an array, which broadcasts to the tensor, at the evaluated points."""


def run(program: Program, points: Mapping[Hashable, Float64], pick: Pick) -> Array:
    """Execute a program on whole numbers, given by key, and return the results."""
    if isinstance(program, Start):
        number = points[program.whole.key] * pick(program.factor) + pick(program.offset)
        return np.asarray(number)
    operands = [
        run(o, points, pick) if isinstance(o, Start | TailStep) else pick(o)
        for o in program.operands
    ]
    # Exact numbers are float64 until the first operation of float32, which converts integers.
    return np.asarray(
        NUMPY[program.name](*[o.astype(np.float32) for o in operands], **program.attributes)
    )


def codes_of(event: Event, values: Array) -> Float64:
    """Return the codes of executed values."""
    half = np.float32(0.5)
    match event.kind:
        case "HalfUp":
            codes = np.sign(values) * np.floor(np.abs(values) + half)
        case "HalfDown":
            codes = np.sign(values) * np.ceil(np.abs(values) - half)
        case "Sign":
            codes = np.where(values >= 0, 1.0, -1.0)
        case _:
            codes = event.rounded(values.astype(np.float64))
    return np.asarray(codes, np.float64)

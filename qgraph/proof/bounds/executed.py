"""Executed values as functions of whole numbers, compared on all numbers that may occur.

Codes are whole numbers. Sums of products of codes are computed exactly, in any order, while they
stay below 2**24 units. Up to the next rounding, a model often has a few float32 operations: a
multiplier, a bias, a clip. Such a function of few whole numbers is executed operation by operation.

Monotone functions are compared on intervals of whole numbers. An interval is halved until each
function has equal results at both ends. Other functions are compared number by number, if there are
few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import reduce
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.bounds.combination import Atom, Combination
from qgraph.proof.bounds.quantity import Event, Quantity
from qgraph.records import dataclass, field

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


_LONGEST = 100
"""Maximum number of operations of a program; one whose result is used twice counts twice."""


def program_of(q: Quantity) -> Program | None:
    """Return the program that computes data from whole numbers; None if it is not known."""
    return _program(q, count(1))


def _program(q: Quantity, numbers: Iterator[int]) -> Program | None:
    if next(numbers) > _LONGEST:
        return None
    if q.is_exact and q.unit is not None:
        start = start_of(q.meant, q.unit)
        if start is not None:
            return start
    if q.operation is None or not q.operation.computes(q):
        return None
    operands: list[Program | Array] = []
    for operand in q.operation.operands:
        program = operand.value if operand.value is not None else _program(operand, numbers)
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


_MOST_POINTS = 1 << 21
"""Maximum number of points to evaluate at once."""
_FEW_POINTS = 1 << 10
"""Number of whole numbers that are evaluated at once rather than by halves."""
_MOST_ENUMERATED = 1 << 22
"""Maximum number of points to evaluate one by one."""

Results = Callable[[Mapping[Hashable, Float64], Pick], Array]
"""Returns the results of a model for some whole numbers."""


@dataclass(frozen=True)
class Counted:
    """Comparison of two models on all whole numbers that may occur, and possibly on more.

    The number of differing results is summed over channels. The others describe the whole number
    with the largest difference.
    """

    differing: int = 0
    largest: float = 0.0
    channel: int = 0
    at: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0


@dataclass(frozen=True)
class Finished:
    """A program, a function from its values to results, and the arrays that the function reads."""

    program: Program
    finish: Callable[[Array, Pick], Array] = lambda values, _: values
    arrays: tuple[Array, ...] = ()

    def __call__(self, points: Mapping[Hashable, Float64], pick: Pick) -> Float64:
        """Return the results for some whole numbers."""
        with np.errstate(all="ignore"):
            values = run(self.program, points, pick)
            return np.asarray(self.finish(values, pick), np.float64)


def compare(ours: Finished, theirs: Finished, *, has_steps: bool = True) -> Counted | None:
    """Return where the results of two models differ; None if there are too many numbers to compare.

    Both are functions of the same whole numbers. If ``has_steps``, their results are codes: few
    distinct whole numbers.
    """
    models = ours, theirs
    wholes = {whole.key: whole for model in models for whole in wholes_of(model.program)}
    arrays = [a for model in models for a in (*arrays_of(model.program), *model.arrays)]
    numbers = [
        a for model in models for a in (*arrays_of(model.program, ranges=False), *model.arrays)
    ]
    try:
        shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    except ValueError:
        return None
    if all(np.size(number) == 1 for number in numbers):
        shape = ()  # channels have one function, and only the ranges differ
    if math.prod(shape) > _MOST_POINTS:
        return None
    if len(wholes) == 1 and has_steps and all(is_monotone(m.program) for m in models):
        (whole,) = wholes.values()
        return _halved(models, whole, shape)
    return _enumerated(models, list(wholes.values()), shape)


def _ends(whole: Whole, shape: tuple[int, ...]) -> tuple[Float64, Float64]:
    if not shape:
        return np.reshape(whole.low.min(), 1), np.reshape(whole.high.max(), 1)
    low, high = (np.broadcast_to(end, shape).reshape(-1) for end in (whole.low, whole.high))
    return low, high


def _picking(shape: tuple[int, ...], channels: Array) -> Pick:
    def pick(array: Array) -> Array:
        if np.size(array) == 1:
            return np.reshape(array, ())
        return np.asarray(np.broadcast_to(array, shape).reshape(-1)[channels])

    return pick


def _halved(
    models: tuple[Finished, Finished], whole: Whole, shape: tuple[int, ...]
) -> Counted | None:
    low, high = _ends(whole, shape)
    channels = np.arange(low.size)

    def at(points: Float64, channels: Array) -> tuple[Float64, Float64]:
        pick = _picking(shape, channels)
        a, b = (np.broadcast_to(m({whole.key: points}, pick), points.shape) for m in models)
        return a, b

    if low.size == 1 and high[0] - low[0] < _FEW_POINTS:
        a, b = at(np.arange(low[0], high[0] + 1), channels)
        if (a == b).all():
            return Counted()
    first, last = at(low, channels), at(high, channels)
    counted = _tallied(Counted(), high, channels, last, np.ones(high.size))
    while low.size:
        if low.size > _MOST_POINTS or np.isnan([*first, *last]).any():
            return None
        done = (first[0] == last[0]) & (first[1] == last[1]) | (high - low <= 1)
        parts = low[done], channels[done], (first[0][done], first[1][done])
        counted = _tallied(counted, *parts, (high - low)[done])
        low, high, channels = low[~done], high[~done], channels[~done]
        first, last = ((a[~done], b[~done]) for a, b in (first, last))
        middle = np.floor((low + high) / 2)
        between = at(middle, channels)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        channels = np.tile(channels, 2)
        first, last = (
            (np.concatenate([a, c]), np.concatenate([b, d]))
            for (a, b), (c, d) in ((first, between), (between, last))
        )
    return counted


def _tallied(
    before: Counted,
    points: Float64,
    channels: Array,
    results: tuple[Float64, Float64],
    counts: Float64,
) -> Counted:
    """Return the counts, increased by those of points that each represent many whole numbers."""
    ours, theirs = results
    apart = np.where((ours != theirs) & (counts > 0), np.abs(ours - theirs), 0.0)
    if not apart.any():
        return before
    total = before.differing + int(counts[apart > 0].sum())
    i = int(np.argmax(apart))
    if apart[i] <= before.largest:
        return Counted(total, *list(vars(before).values())[1:])
    channel = int(channels[i])
    numbers = (float(array[i]) for array in (apart, points, ours, theirs))
    largest, point, a, b = numbers
    return Counted(total, largest, channel, point, a, b)


def _enumerated(
    models: tuple[Finished, Finished], wholes: list[Whole], shape: tuple[int, ...]
) -> Counted | None:
    ends = [_ends(whole, shape) for whole in wholes]
    sizes = [int((high - low).max()) + 1 for low, high in ends]
    channels = math.prod(shape)
    if not wholes or math.prod(sizes) * channels > _MOST_ENUMERATED:
        return None
    counted = Counted()
    for channel, points, is_inside in _points(ends, sizes, channels):
        pick = _picking(shape, channel)
        keyed = {whole.key: p for whole, p in zip(wholes, points, strict=True)}
        a, b = (np.broadcast_to(m(keyed, pick), channel.shape) for m in models)
        if np.isnan([a, b]).any():
            return None
        counted = _tallied(counted, points[0], channel, (a, b), is_inside.astype(np.float64))
    return counted


def _points(
    ends: list[tuple[Float64, Float64]], sizes: list[int], channels: int
) -> Iterator[tuple[Array, list[Float64], Array]]:
    """Yield blocks of channels, whole numbers, and masks of the numbers within their ranges."""
    total = math.prod(sizes) * channels
    for start in range(0, total, _MOST_POINTS):
        numbers = np.arange(start, min(start + _MOST_POINTS, total))
        channel, *offsets = np.unravel_index(numbers, (channels, *sizes))
        points = [low[channel] + at for (low, _), at in zip(ends, offsets, strict=True)]
        inside = [p <= high[channel] for (_, high), p in zip(ends, points, strict=True)]
        yield channel, points, np.logical_and.reduce(inside)

"""Roundings of data to codes: the rounded function, its limits, and roundings without effect.

A bias and the limits of codes may both differ by the same number. Then either the two models number
equal codes differently, or their codes differ. The decoders decide: in the first case, the codes of
real zero differ by the same number.

The rounding of concatenated tensors is also a rounding of each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import FLOAT32, SLACK, ZERO, largest_of, product
from qgraph.proof.bounds.combination import Atom, Atoms, AxisPart, Combination, places
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.bounds.executed import Finished, Pick, codes_of, compare, program_of, wholes_of
from qgraph.proof.bounds.quantity import Event, Pending, Quantity
from qgraph.records import dataclass, field, replace

SHIFTS = {"Floor": -0.5, "Ceil": 0.5}
"""Shift of thresholds of each rounding mode relative to rounding to nearest."""

_HALF = 0.5 - 2.0**-20
"""Slightly less than half a step, with a margin for the rounding of these sums."""


@dataclass(frozen=True, eq=False)
class RoundedData:
    """A rounding of data, with the limits of its codes.

    Attributes:
        event: the rounding.
        low, high: limits to which its result is clipped.
        function: the rounded function; limits of data are part of ``ends`` instead.
        ends: the first and the last code that may occur.
        clips: the first and the last code within the limits, as they are meant.
        executed: the same, as far apart as they may be executed.
        reach: the first and the last code without limits.
        uncertainty: how far codes of an executed limit may be apart; 0 for limits of codes.
        codes: the codes as a function.
        origin: the rounding in the model, if these are its moved codes; else None.
    """

    event: Event
    low: Float64
    high: Float64
    function: Combination
    ends: tuple[Float64, Float64]
    clips: tuple[Float64, Float64]
    executed: tuple[Float64, Float64]
    reach: tuple[Float64, Float64]
    uncertainty: float = 0.0
    codes: Combination = field(default_factory=Combination)
    origin: RoundedData | None = None


def rounding_of(codes: Pending) -> RoundedData:
    """Return a rounding with all limits of its data applied to its codes instead."""
    event = codes.event
    function, low, high = unlimited(event.before.meant)
    function = function.plus(Combination.constant(np.asarray(SHIFTS.get(event.kind, 0.0))))
    if event.kind == "Sign":
        ends = codes.low, codes.high
        return RoundedData(event, *ends, function, ends, ends, ends, ends)

    def coded(number: Float64) -> Float64:
        return np.asarray(np.clip(event.rounded(number), codes.low, codes.high))

    near = [[coded(end) for end in _near(event, limit)] for limit in (low, high)]
    apart = [np.max(event.place(b) - event.place(a), where=a < b, initial=0.0) for a, b in near]
    executed = near[0][0], near[1][1]
    # What is executed may lie beyond what is meant.
    before = event.before
    reach = _reached(event, (before.low, before.high), before.error)
    first, last = (np.asarray(np.clip(end, *executed)) for end in reach)
    bare = function.range
    off = before.absolute + product(before.relative, np.maximum(*map(np.abs, bare)))
    return RoundedData(
        event,
        codes.low,
        codes.high,
        function,
        ends=(first, last),
        clips=(coded(low), coded(high)),
        executed=executed,
        reach=_reached(event, bare, off),
        uncertainty=float(max(apart)),
    )


def _near(event: Event, limit: Float64) -> tuple[Float64, Float64]:
    """Return the smallest and the largest number that a limit of the data may be executed as.

    A limit is executed with the error of what follows it, so near a tie it may get another code.
    This is no more than the error of the data, and than 64 roundings of the numbers behind it.
    """
    before = event.before
    behind, size = before.meant, np.zeros(())
    while len(behind.terms) == 1 and behind.terms[0][1].kind == "clip":
        size = size + behind.size
        ((factor, atom),) = behind.terms
        behind = atom.arguments[0].times(factor)
    # each rounding in a type with fewer digits adds its unit to the relative error
    share = np.maximum(64 * FLOAT32.unit, 2 * before.relative)
    rounded = share * (np.abs(limit) + size)
    off = np.minimum(before.error, rounded) + np.abs(limit) * SLACK
    off = np.where(np.isfinite(limit), off, 0.0)
    return limit - off, limit + off


def _reached(event: Event, ends: tuple[Float64, Float64], off: Float64) -> tuple[Float64, Float64]:
    """Return the first and the last code of numbers in an interval, with an error."""
    low, high = (np.abs(end) * SLACK + off * (1 + SLACK) for end in ends)
    return event.rounded(ends[0] - low), event.rounded(ends[1] + high)


def unlimited(function: Combination) -> tuple[Combination, Float64, Float64]:
    """Return a function without the limits of its values, and the limits."""
    low, high = np.full((), -np.inf), np.full((), np.inf)
    while len(function.terms) == 1 and function.terms[0][1].kind == "clip":
        ((coefficient, atom),) = function.terms
        ends = [product(coefficient, end) + function.offset for end in atom.numbers]
        low, high = (np.clip(pick(*ends), low, high) for pick in (np.minimum, np.maximum))
        inner = atom.arguments[0].times(coefficient)
        function = Combination(
            inner.terms, inner.offset + function.offset, inner.size + function.size
        )
    return function, low, high


def limited_codes(data: RoundedData, shift: float) -> Callable[[Array, Pick], Array]:
    """Return the shifted function of the codes of a rounding."""

    def codes(values: Array, pick: Pick) -> Array:
        rounded = codes_of(data.event, values)
        return np.clip(rounded, pick(data.low), pick(data.high)) + shift

    return codes


def parts_of(atoms: Atoms, data: RoundedData) -> list[tuple[AxisPart, RoundedData]]:
    """Return the roundings of the parts of a concatenation; empty if the data is not one."""
    before, event = data.event.before, data.event
    beside = sorted(_places(before.meant))
    if len(beside) < 2 or event.mantissa is not None:
        return []
    if beside != places([place.size for place in beside], beside[0].axis):
        return []
    parts = []
    for place in beside:
        own = Quantity(
            _part(atoms, place, before.meant),
            place.part(before.low),
            place.part(before.high),
            place.part(before.absolute),
            place.part(before.relative),
            None if before.unit is None else place.part(before.unit),
            overflow=before.overflow,
        )
        limits = place.part(data.low), place.part(data.high)
        rounding = rounding_of(Pending(replace(event, before=own), *limits, ZERO))
        parts.append((place, replace(rounding, origin=data)))
    return parts


def _places(function: Combination) -> set[AxisPart]:
    """Return the intervals of the parts of a function; empty if a term belongs to no part."""
    found: set[AxisPart] = set()
    for _, atom in function.terms:
        own = {atom.attributes} if atom.kind == "placed" else set()
        inner = _places(atom.arguments[0]) if atom.kind == "clip" else own
        if not inner:
            return set()
        found |= {place for place in inner if isinstance(place, AxisPart)}
    return found


def _part(atoms: Atoms, place: AxisPart, function: Combination) -> Combination:
    terms = []
    for coefficient, atom in function.terms:
        if atom.kind == "clip":
            ends = place.part(atom.low), place.part(atom.high)
            numbers = [place.part(number) for number in atom.numbers]
            inner = _part(atoms, place, atom.arguments[0])
            atom = atoms.make("clip", None, (inner,), ends, numbers)
        elif atom.attributes == place:
            ((_, atom),) = atom.arguments[0].terms
        else:
            continue
        terms.append((place.part(coefficient), atom))
    return Combination(tuple(terms), place.part(function.offset), place.part(function.size))


def unchanged(data: RoundedData) -> Quantity | None:
    """Return the codes that data is decoded from, if rounding gives these codes again."""
    function, _, _ = unlimited(data.event.before.meant)
    terms = [(c, atom) for c, atom in function.terms if c.any()]
    program = program_of(data.event.before)
    if len(terms) != 1 or source_of(terms[0][1]).kind not in ("codes", "integers"):
        return None
    ((factor, atom),) = terms
    low, high = atom.low, atom.high
    if program is None:
        return None if data.uncertainty else _near_codes(data, factor, atom, function.offset)
    rounded = Finished(program, limited_codes(data, 0.0), (data.low, data.high))
    with np.errstate(all="ignore"):
        first = rounded({whole.key: low for whole in wholes_of(program)}, lambda array: array)
    shift = first - low
    if (shift != shift.reshape(-1)[:1]).any():
        return None
    shift = shift.reshape(-1)[0]
    meant = Combination.of(atom).plus(Combination.constant(shift))
    codes = Quantity(meant, low + shift, high + shift, unit=np.ones(()))
    own = program_of(codes)
    counted = None if own is None else compare(rounded, Finished(own))
    return codes if counted is not None and not counted.differing else None


def _near_codes(data: RoundedData, factor: Float64, atom: Atom, offset: Float64) -> Quantity | None:
    """Return codes within half a step of data, in every order of execution.

    The data are ``factor`` times the codes plus ``offset``, and have the limits of the rounding.
    """
    before = data.event.before
    shift = np.rint(offset).reshape(-1)[0]
    reach = largest_of(atom.low, atom.high)
    far = product(np.abs(factor - 1), reach) + np.abs(offset - shift) + before.error
    low, high = atom.low + shift, atom.high + shift
    first, last = data.clips
    is_inside = (low >= first).all() and (high <= last).all()
    if data.event.kind != "Round" or not (is_inside and (far < _HALF).all()):
        return None
    meant = Combination.of(atom).plus(Combination.constant(shift))
    return Quantity(meant, low, high, unit=np.ones(()))


def zeros_of(side: Evaluation) -> dict[Atom, list[Float64]]:
    """Return the codes of real zero, by the atoms of the decoded codes.

    There may be several: part of a decoder, such as a Sub, may also be read as a decoder.
    """
    zeros: dict[Atom, list[Float64]] = {}
    kinds = ((value.dtype, q) for value, q in side.values.items())
    reals = [q for dtype, q in kinds if dtype is not None and dtype.is_floating_point()]
    for q in (*side.decoded, *reals):
        if not isinstance(q, Quantity) or q.value is not None:
            continue
        terms = [(c, atom) for c, atom in q.meant.terms if c.any()]
        if len(terms) != 1 or not (terms[0][0] > 0).all():
            continue
        ((factor, atom),) = terms
        atom = source_of(atom)
        if atom.kind == "codes":
            zeros.setdefault(atom, []).append(-q.meant.offset / factor)
    return zeros


def source_of(atom: Atom) -> Atom:
    """Return the atom before its elements were moved."""
    while atom.kind == "moved" and len(atom.arguments[0].terms) == 1:
        ((_, atom),) = atom.arguments[0].terms
    return atom


def offset_of(side: Evaluation, node: ir.Node | None) -> Float64 | None:
    """Return the zero point that a node adds after rounding; None if its result is not codes."""
    operand = None if node is None else side.values.get(node.outputs[0])
    return operand.offset if isinstance(operand, Pending) else None


def moved_by(
    delta: Float64,
    offsets: tuple[Float64 | None, Float64 | None],
    zeros: tuple[Sequence[Float64], Sequence[Float64]],
) -> float:
    """Return the error of an assumed offset ``delta`` of the candidate's codes.

    ``offsets`` are zero points that both models add after rounding, if the codes are stored;
    ``zeros`` are codes of real zero, in the numbering of the reference.
    """
    ours, theirs = offsets
    if ours is not None and theirs is not None and not (delta + theirs - ours).any():
        return 0.0  # stored codes are the same numbers
    apart = [
        np.rint(there - here)
        for here, there in itertools.product(*zeros)
        if here.shape == there.shape or 1 in (here.size, there.size)  # else one was moved
    ]
    if not apart or not all(np.isfinite(each).all() for each in apart):
        return 0.0
    return min((float(each.reshape(-1)[0]) for each in apart), key=abs)

"""Expressions as chains of steps, each of which takes one number and gives one.

Roundings that take several primitives, clamps written as choices, casts there and back, and the
snapping to a minifloat grid are one step each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.numerics.formats import FORMATS, IntFormat, Minifloat
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.primitives import NUMPY
from qgraph.proof.expression import CONSTANT, FLOAT, Expr, in_order, known

Array = npt.NDArray[Any]

LONGEST = 40
"""Steps of the longest chain that is looked at."""
_ALMOST = 1e-5
"""Share by which the value beyond a range may miss that of its last level."""


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


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps that lead from an inner expression to an outer one.

    Attributes:
        steps: the innermost first; an ``End`` stands before the first step that it skips.
        starts: for each step the expressions that it may be said to start from.
    """

    steps: tuple[Step, ...]
    starts: tuple[tuple[Expr, ...], ...]


def chain_of(expression: Expr) -> Chain:
    """Return the chain that ends in ``expression``, as far in as it can be followed."""
    steps: list[Step] = []
    starts: list[list[Expr]] = []
    whole = expression
    while len(steps) < LONGEST:
        if expression.op == "Sign" and (signs := _of_sign(whole, expression)) is not None:
            steps, starts, expression = [signs], [[expression.inputs[0]]], expression.inputs[0]
        peeled = _peel(expression)
        if peeled is None:
            break
        new, expression = peeled
        steps += reversed(new)
        # Between the parts of one step there is nothing to start from.
        starts += [[] for _ in new]
        if starts:
            starts[-1].append(expression)
    steps.reverse()
    starts.reverse()
    _place_ends(steps, starts)
    return Chain(tuple(steps), tuple(map(tuple, starts)))


def _of_sign(whole: Expr, sign: Expr) -> Signed | None:
    """Return what ``whole`` makes of a sign, if zero counts as positive."""
    values: dict[int, list[Array]] = {
        id(sign): [np.asarray(number, np.float32) for number in (-1, 0, 1)]
    }
    with np.errstate(all="ignore"):
        for e in in_order([whole]):
            if e.op == CONSTANT:
                values[id(e)] = [known(e)] * 3
            elif id(e) not in values and e.inputs:
                operands = [values.get(id(operand)) for operand in e.inputs]
                if None not in operands:
                    attributes = dict(e.attributes)
                    columns = zip(*(o for o in operands if o is not None), strict=True)
                    made = [np.asarray(NUMPY[e.op](*column, **attributes)) for column in columns]
                    values[id(e)] = made
    found = values.get(id(whole))
    if found is None or not _is(found[1], found[2]):
        return None
    return Signed(found[2], found[0])


def _place_ends(steps: list[Step], starts: list[list[Expr]]) -> None:
    """Move each ``End`` to where the number that it looks at enters the chain.

    If more steps follow, it stays only as the clamp that it is to the steps that it skips.
    """
    for step in [step for step in steps if isinstance(step, End)]:
        before = steps.index(step)
        place = next((i for i in range(before) if step.x in starts[i]), None)
        if place is None:
            continue
        new: Step = step
        if not all(isinstance(later, End) for later in steps[before + 1 :]):
            if not _close(_value_after(steps[place:before], step.threshold), step.value):
                continue
            new = Bound("Min" if step.above else "Max", step.threshold)
        del steps[before]
        del starts[before]
        steps.insert(place, new)
        starts.insert(place, starts[place])
        starts[place + 1] = []


def _value_after(steps: list[Step], value: Array) -> Array | None:
    """Return what ``steps`` make of a number, None where that is not easily said."""
    with np.errstate(all="ignore"):
        for step in steps:
            match step:
                case Arithmetic(name, operand) | Bound(name, operand):
                    value = np.asarray(_FUNCTIONS[name](value, operand))
                case Rounded(mode):
                    value = round_to_integer(value, mode)
                case End():
                    pass
                case _:
                    return None
    return value


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": np.minimum,
    "Max": np.maximum,
}


def _close(a: Array | None, b: Array) -> bool:
    return a is not None and bool((np.abs(a - b) <= _ALMOST * np.abs(b)).all())


_Peeled: TypeAlias = tuple[list[Step], Expr]


def _peel(e: Expr) -> _Peeled | None:
    """Return the last steps of ``e``, the innermost first, and what they start from."""
    rule = _RULES.get(e.op)
    return None if rule is None else rule(e)


def _arithmetic(e: Expr) -> _Peeled | None:
    left, right = e.inputs
    if right.op == CONSTANT:
        return [Arithmetic(e.op, known(right))], left
    if left.op == CONSTANT and e.op in ("Add", "Mul"):
        return [Arithmetic(e.op, known(left))], right
    if e.op != "Mul":
        return None
    for one, other in ((left, right), (right, left)):
        found = _magnitude(one, other) or _snapped(one, other)
        if found is not None:
            return found
    return None


def _bound(e: Expr) -> _Peeled | None:
    left, right = e.inputs
    if right.op == CONSTANT:
        return [Bound(e.op, known(right))], left
    return ([Bound(e.op, known(left))], right) if left.op == CONSTANT else None


def _relu(e: Expr) -> _Peeled | None:
    return [Bound("Max", np.zeros((), np.float32))], e.inputs[0]


def _negated(e: Expr) -> _Peeled | None:
    return [Arithmetic("Mul", np.asarray(-1, np.float32))], e.inputs[0]


def _rounding(mode: Rounding) -> Callable[[Expr], _Peeled | None]:
    return lambda e: ([Rounded(mode)], e.inputs[0])


def _cast(e: Expr) -> _Peeled | None:
    attributes = dict(e.attributes)
    kind = FORMATS.get(attributes["to"])
    if attributes["to"] == FLOAT or isinstance(kind, IntFormat):
        return [], e.inputs[0]
    if not isinstance(kind, Minifloat):
        return None
    return [Encoded(kind, bool(attributes.get("saturate", 1)))], e.inputs[0]


def _magnitude(sign: Expr, size: Expr) -> _Peeled | None:
    """Read ``Sign(v)`` times something of ``Abs(v)`` that rounds."""
    if sign.op != "Sign":
        return None
    v = sign.inputs[0]
    inner = chain_of(size)
    for place, start in enumerate(inner.starts):
        if any(e.op == "Abs" and e.inputs[0] is v for e in start):
            steps = _of_magnitudes(inner.steps[place:])
            return None if steps is None else (steps, v)
    return None


def _of_magnitudes(steps: tuple[Step, ...]) -> list[Step] | None:
    """Return what ``steps`` on magnitudes do to numbers of both signs."""
    result: list[Step] = []
    half: str | None = None
    for step in simplified(steps):
        match step:
            case Bound("Min", value):
                result += [Bound("Min", value), Bound("Max", -value)]
            case Bound("Max", value) if not value.any():
                pass
            case Arithmetic("Add" | "Sub" as name, value) if _is(value, 0.5) and half is None:
                half = name
            case Rounded(mode):
                found = _SIGNED_MODES.get((mode, half))
                if found is None:
                    return None
                result.append(Rounded(found))
                half = None
            case _:
                return None
    return result if half is None else None


_SIGNED_MODES = {
    (Rounding.ROUND, None): Rounding.ROUND,
    (Rounding.FLOOR, None): Rounding.DOWN,
    (Rounding.CEIL, None): Rounding.UP,
    (Rounding.FLOOR, "Add"): Rounding.HALF_UP,
    (Rounding.CEIL, "Sub"): Rounding.HALF_DOWN,
}


def _snapped(rounded: Expr, step: Expr) -> _Peeled | None:
    """Read ``round(v / step) * step``, the step being a power of two that depends on v."""
    inner = chain_of(rounded)
    if not inner.steps or step.op != "Max":
        return None
    rounding, quotient = inner.steps[-1], inner.starts[-1]
    if not isinstance(rounding, Rounded) or not quotient or quotient[0].op != "Div":
        return None
    v, divisor = quotient[0].inputs
    grid = _grid(step, v) if divisor is step else None
    return None if grid is None else ([Snapped(*grid, rounding.mode)], v)


def _grid(step: Expr, v: Expr) -> tuple[int, int] | None:
    """Return mantissa bits and smallest exponent of ``max(power(|v|) * ulp, finest)``."""
    scaled, finest = step.inputs
    ulp: Array = np.ones((), np.float32)
    power = scaled
    if scaled.op == "Mul" and scaled.inputs[1].op == CONSTANT:
        power, ulp = scaled.inputs[0], known(scaled.inputs[1])
    if finest.op != CONSTANT or not (_is_power(power, v)):
        return None
    numbers = [_exponent(ulp), _exponent(known(finest))]
    if numbers[0] is None or numbers[1] is None:
        return None
    return -numbers[0], numbers[1] - numbers[0]


def _is_power(power: Expr, v: Expr) -> bool:
    """Return whether ``power`` is the power of two below |v|, at least in some range."""
    if power.op == "Cast" and power.inputs[0].op == "Cast":
        inner = power.inputs[0]
        to = dict(inner.attributes)
        down = to.get("to") == "FLOAT8E8M0" and to.get("round_mode") == "down"
        return down and _is_magnitude(inner.inputs[0], v)
    found = False
    while power.op == "Where":
        condition, taken, power = power.inputs
        if condition.op != "GreaterOrEqual" or not _is_magnitude(condition.inputs[0], v):
            return False
        if condition.inputs[1] is not taken or taken.op != CONSTANT:
            return False
        found = True
    return found and power.op == CONSTANT


def _is_magnitude(e: Expr, v: Expr) -> bool:
    return e.op == "Abs" and e.inputs[0] is v


def _exponent(value: Array) -> int | None:
    number = float(value.reshape(-1)[0])
    if not _is(value, number) or not number > 0:
        return None
    mantissa, exponent = np.frexp(number)
    return int(exponent) - 1 if mantissa == 0.5 else None


def _choice(e: Expr) -> _Peeled | None:
    condition, yes, no = e.inputs
    test, *operands = condition.op, *condition.inputs
    if test == "IsNaN":
        return ([], no) if no is operands[0] and yes.op == CONSTANT else None
    if test not in _SIDES or operands[1].op != CONSTANT:
        return None
    v, limit = operands[0], known(operands[1])
    above, includes = _SIDES[test]
    zero = not limit.any()
    if zero and (found := _truncated(v, yes, no, above=above)) is not None:
        return found
    if v.op == "Abs" and above and no is v.inputs[0]:
        return [Overflow(limit)], no
    if zero and yes.op == no.op == CONSTANT and above == includes:
        both = known(yes), known(no)
        return [Signed(*(both if above else both[::-1]))], v
    if yes.op != CONSTANT:
        return None
    if no is v and _is(known(yes), limit):
        return [Bound("Min" if above else "Max", limit)], v
    return [End(v, limit, known(yes), above)], no


_SIDES = {
    "Greater": (True, False),
    "GreaterOrEqual": (True, True),
    "Less": (False, False),
    "LessOrEqual": (False, True),
}
"""Comparisons: whether they hold above the limit, and at it."""


def _truncated(v: Expr, yes: Expr, no: Expr, *, above: bool) -> _Peeled | None:
    positive, negative = (yes, no) if above else (no, yes)
    if (positive.op, negative.op) != ("Floor", "Ceil"):
        return None
    return ([Rounded(Rounding.DOWN)], v) if positive.inputs == negative.inputs == (v,) else None


_RULES: dict[str, Callable[[Expr], _Peeled | None]] = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div"], _arithmetic),
    **dict.fromkeys(["Min", "Max"], _bound),
    "Relu": _relu,
    "Neg": _negated,
    "Round": _rounding(Rounding.ROUND),
    "Floor": _rounding(Rounding.FLOOR),
    "Ceil": _rounding(Rounding.CEIL),
    "Cast": _cast,
    "Where": _choice,
}


def simplified(steps: tuple[Step, ...]) -> list[Step]:
    """Leave out steps that change nothing, or that the step before makes unnecessary."""
    result: list[Step] = []
    for step in steps:
        match step:
            case Arithmetic("Add" | "Sub", value) if not value.any():
                continue
            case Arithmetic("Mul" | "Div", value) if _is(value, 1.0):
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
    return isinstance(step, Arithmetic) and step.name == "Div" and _is(step.value, value)


def _is_subtraction(steps: list[Step], value: Array) -> bool:
    """Return whether a sum undoes the last of ``steps``, of whole numbers, without an error."""
    match steps[-1:]:
        case [Arithmetic("Sub", taken)]:
            return _is(taken, value) and _is_whole(steps)
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


def _is(value: Array, other: Array | float) -> bool:
    return bool((value == other).all())

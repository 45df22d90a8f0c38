"""Step chains of expressions.

Each rule matches the last steps of an expression and returns their operand. Rules are
applied from the last operation backwards until none matches::

    Mul(Round(Div(x, 0.5)), 0.5)   ->   x: Div 0.5, Round, Mul 0.5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, Minifloat
from qgraph.numerics.primitives import NUMPY
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.proof.functions.expression import CONSTANT, FLOAT, Expr, in_order, known
from qgraph.quantizers.recognition.steps import (
    ROUNDINGS,
    ArithmeticStep,
    Chain,
    Encoded,
    End,
    LastSteps,
    Limited,
    Overflow,
    Rounded,
    Signed,
    Snapped,
    Step,
    same,
    simplified,
)
from qgraph.quantizers.recognition.taken import close, is_step

LONGEST = 40
"""Maximum number of steps of a chain."""

_ALMOST = 1e-5
"""Relative tolerance between the value beyond a range and its last level."""


class Memory:
    """Cache of the last steps of expressions; equal steps are one object."""

    def __init__(self) -> None:
        self._last: dict[int, LastSteps | None] = {}
        self._steps: dict[tuple[object, ...], Step] = {}

    def last_steps(self, e: Expr) -> LastSteps | None:
        """Return the last steps of ``e``, the innermost first, and their operand."""
        key = id(e)
        if key not in self._last:
            rule = _RULES.get(e.op)
            last = None if rule is None else rule(e)
            if last is not None:
                last = [self._steps.setdefault(_key(step), step) for step in last[0]], last[1]
            self._last[key] = last
        return self._last[key]


def _key(step: Step) -> tuple[object, ...]:
    parts = (id(v) if isinstance(v, np.ndarray | Expr) else v for v in vars(step).values())
    return type(step), *parts


def chain_of(
    expression: Expr,
    memory: Memory | None = None,
    *,
    most_roundings: int = LONGEST,
    ends: Callable[[Sequence[Step]], bool] | None = None,
) -> Chain:
    """Return the longest step chain that ends in ``expression``.

    It has at most some roundings, and ends before steps, the first of which divides, for which
    ``ends`` is true. The memory is a cache for the same expressions.
    """
    memory = memory or Memory()
    roundings = 0
    steps: list[Step] = []
    starts: list[list[Expr]] = []
    whole = expression
    while len(steps) < LONGEST:
        if expression.op == "Sign" and (signs := _of_sign(whole, expression)) is not None:
            steps, starts, expression = [signs], [[expression.inputs[0]]], expression.inputs[0]
        last = memory.last_steps(expression)
        if last is None:
            break
        new, expression = last
        for step in new:
            if isinstance(step, ROUNDINGS):
                roundings += 1
        if roundings > most_roundings:
            break
        steps += reversed(new)
        # A region cannot start between the parts of one step.
        starts += [[] for _ in new]
        if starts:
            starts[-1].append(expression)
        if ends is not None and new and is_step(new[0], "Div") and ends(steps[::-1]):
            break
    steps.reverse()
    starts.reverse()
    _move_ends(steps, starts)
    return Chain(tuple(steps), tuple(map(tuple, starts)))


def _of_sign(whole: Expr, sign: Expr) -> Signed | None:
    """Return ``whole`` as a step on a sign, with zero counted as positive."""
    numbers = np.asarray([-1, 0, 1], np.float32)
    values: dict[int, list[Array]] = {id(sign): [number.reshape(()) for number in numbers]}
    with np.errstate(all="ignore"):
        for e in in_order([whole]):
            operands = [values[id(operand)] for operand in e.inputs if id(operand) in values]
            if e.op == CONSTANT:
                values[id(e)] = [known(e)] * 3
            elif id(e) not in values and e.inputs and len(operands) == len(e.inputs):
                compute, attributes = NUMPY[e.op], dict(e.attributes)
                columns = zip(*operands, strict=True)
                values[id(e)] = [np.asarray(compute(*row, **attributes)) for row in columns]
    results = values.get(id(whole))
    if results is None or not same(results[1], results[2]):
        return None
    return Signed(results[2], results[0])


def _move_ends(steps: list[Step], starts: list[list[Expr]]) -> None:
    """Move each ``End`` to the position of the number that it compares.

    If more steps follow, it becomes a clamp for the steps that it skips.
    """
    for step in [step for step in steps if isinstance(step, End)]:
        before = steps.index(step)
        index = next((i for i in range(before) if step.x in starts[i]), None)
        if index is None:
            continue
        new: Step = step
        if not all(isinstance(later, End) for later in steps[before + 1 :]):
            value = _value_after(steps[index:before], step.threshold)
            if value is None or not close(value, step.value, _ALMOST):
                continue
            new = Limited("Min" if step.above else "Max", step.threshold)
        del steps[before]
        del starts[before]
        steps.insert(index, new)
        starts.insert(index, starts[index])
        starts[index + 1] = []


def _value_after(steps: list[Step], value: Array) -> Array | None:
    """Return the result of ``steps`` for a number, None if it is not simple."""
    with np.errstate(all="ignore"):
        for step in steps:
            match step:
                case ArithmeticStep(name, operand) | Limited(name, operand):
                    value = np.asarray(NUMPY[name](value, operand))
                case Rounded(mode):
                    value = round_to_integer(value, mode)
                case End():
                    pass
                case _:
                    return None
    return value


def _arithmetic(e: Expr) -> LastSteps | None:
    left, right = e.inputs
    if e.op == "Add" and _is_nothing(right):
        return [], left
    if right.op == CONSTANT:
        return [ArithmeticStep(e.op, known(right))], left
    if left.op == CONSTANT and e.op in ("Add", "Mul"):
        return [ArithmeticStep(e.op, known(left))], right
    if e.op != "Mul":
        return None
    for one, other in ((left, right), (right, left)):
        last = _of_magnitude(one, chain_of(other)) if one.op == "Sign" else None
        if last is None and other.op == "Max":
            last = _snapped(chain_of(one), other)
        if last is not None:
            return last
    return None


def _is_nothing(e: Expr) -> bool:
    """Return whether an expression is ``v - v``, an artefact of straight-through estimators."""
    if e.op != "Mul" or e.inputs[0].op != "Abs" or e.inputs[1].op != CONSTANT:
        return False
    return not known(e.inputs[1]).any()


def _bound(e: Expr) -> LastSteps | None:
    left, right = e.inputs
    if right.op == CONSTANT:
        return [Limited(e.op, known(right))], left
    return ([Limited(e.op, known(left))], right) if left.op == CONSTANT else None


def _always(step: Step) -> Callable[[Expr], LastSteps | None]:
    return lambda e: ([step], e.inputs[0])


def _cast(e: Expr) -> LastSteps | None:
    attributes = dict(e.attributes)
    form = FORMATS.get(attributes["to"])
    if attributes["to"] == FLOAT or isinstance(form, IntFormat):
        return [], e.inputs[0]
    if not isinstance(form, Minifloat):
        return None
    return [Encoded(form, bool(attributes.get("saturate", 1)))], e.inputs[0]


def _choice(e: Expr) -> LastSteps | None:
    condition, yes, no = e.inputs
    test, *operands = condition.op, *condition.inputs
    if test == "IsNaN":
        return ([], no) if no is operands[0] and yes.op == CONSTANT else None
    if test not in _SIDES or operands[1].op != CONSTANT:
        return None
    v, limit = operands[0], known(operands[1])
    above, includes = _SIDES[test]
    zero = not limit.any()
    if zero and (last := _truncated(v, yes, no, above=above)) is not None:
        return last
    if v.op == "Abs" and above and no is v.inputs[0]:
        return [Overflow(limit)], no
    if zero and yes.op == no.op == CONSTANT and above == includes:
        both = known(yes), known(no)
        return [Signed(*(both if above else both[::-1]))], v
    if yes.op != CONSTANT:
        return None
    if no is v and same(known(yes), limit):
        return [Limited("Min" if above else "Max", limit)], v
    return [End(v, limit, known(yes), above)], no


_SIDES = {
    "Greater": (True, False),
    "GreaterOrEqual": (True, True),
    "Less": (False, False),
    "LessOrEqual": (False, True),
}
"""Comparisons, and whether they hold above the limit and at the limit."""


def _truncated(v: Expr, yes: Expr, no: Expr, *, above: bool) -> LastSteps | None:
    positive, negative = (yes, no) if above else (no, yes)
    if (positive.op, negative.op) != ("Floor", "Ceil"):
        return None
    return ([Rounded(Rounding.DOWN)], v) if positive.inputs == negative.inputs == (v,) else None


def _of_magnitude(sign: Expr, size: Chain) -> LastSteps | None:
    """Read ``Sign(v)`` times a rounding function of ``Abs(v)``."""
    v = sign.inputs[0]
    for index, start in enumerate(size.starts):
        if any(e.op == "Abs" and e.inputs[0] is v for e in start):
            steps = _of_magnitudes(size.steps[index:])
            return None if steps is None else (steps, v)
    return None


def _of_magnitudes(steps: tuple[Step, ...]) -> list[Step] | None:
    """Convert ``steps`` on magnitudes to steps on numbers of both signs."""
    result: list[Step] = []
    half: str | None = None
    for step in simplified(steps):
        match step:
            case Limited("Min", value):
                result += [Limited("Min", value), Limited("Max", -value)]
            case Limited("Max", value) if not value.any():
                pass
            case ArithmeticStep("Add" | "Sub" as name, value) if same(value, 0.5) and half is None:
                half = name
            case Rounded(mode):
                signed = _SIGNED_MODES.get((mode, half))
                if signed is None:
                    return None
                result.append(Rounded(signed))
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


def _snapped(rounded: Chain, step: Expr) -> LastSteps | None:
    """Read ``round(v / step) * step`` with a step that is a power of two and depends on v."""
    if not rounded.steps:
        return None
    rounding, quotient = rounded.steps[-1], rounded.starts[-1]
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
    """Return whether ``power`` is the power of two below |v|, at least on some range."""
    if power.op == "Cast" and power.inputs[0].op == "Cast":
        inner = power.inputs[0]
        to = dict(inner.attributes)
        down = to.get("to") == "FLOAT8E8M0" and to.get("round_mode") == "down"
        return down and _is_magnitude(inner.inputs[0], v)
    has_branch = False
    while power.op == "Where":
        condition, taken, power = power.inputs
        if condition.op != "GreaterOrEqual" or not _is_magnitude(condition.inputs[0], v):
            return False
        if condition.inputs[1] is not taken or taken.op != CONSTANT:
            return False
        has_branch = True
    return has_branch and power.op == CONSTANT


def _is_magnitude(e: Expr, v: Expr) -> bool:
    return e.op == "Abs" and e.inputs[0] is v


def _exponent(value: Array) -> int | None:
    number = float(value.reshape(-1)[0]) if value.size else 0.0
    if not same(value, number) or not number > 0:
        return None
    mantissa, exponent = np.frexp(number)
    return int(exponent) - 1 if mantissa == 0.5 else None


_RULES: dict[str, Callable[[Expr], LastSteps | None]] = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div"], _arithmetic),
    **dict.fromkeys(["Min", "Max"], _bound),
    "Relu": _always(Limited("Max", np.zeros((), np.float32))),
    "Neg": _always(ArithmeticStep("Mul", np.asarray(-1, np.float32))),
    "Round": _always(Rounded(Rounding.ROUND)),
    "Floor": _always(Rounded(Rounding.FLOOR)),
    "Ceil": _always(Rounded(Rounding.CEIL)),
    "Cast": _cast,
    "Where": _choice,
}

"""Expressions as chains of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.formats import FORMATS, IntFormat, Minifloat
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.primitives import NUMPY
from qgraph.proof.expression import CONSTANT, FLOAT, Expr, in_order, known
from qgraph.recognition.magnitudes import of_magnitude, snapped
from qgraph.recognition.steps import (
    Arithmetic,
    Bound,
    Chain,
    Encoded,
    End,
    Overflow,
    Peeled,
    Rounded,
    Signed,
    Step,
    equals,
)

Array = npt.NDArray[Any]

LONGEST = 40
"""Steps of the longest chain that is looked at."""


_ALMOST = 1e-5
"""Share by which the value beyond a range may miss that of its last level."""


class Memory:
    """What was found out about single expressions, as long as they all exist.

    Steps that are the same are one object.
    """

    def __init__(self) -> None:
        self._peeled: dict[int, Peeled | None] = {}
        self._steps: dict[tuple[object, ...], Step] = {}

    def peel(self, e: Expr) -> Peeled | None:
        """Return the last steps of ``e``, the innermost first, and what they start from."""
        key = id(e)
        if key not in self._peeled:
            rule = _RULES.get(e.op)
            found = None if rule is None else rule(e)
            if found is not None:
                found = [self._steps.setdefault(_key(step), step) for step in found[0]], found[1]
            self._peeled[key] = found
        return self._peeled[key]


def _key(step: Step) -> tuple[object, ...]:
    parts = (id(v) if isinstance(v, np.ndarray | Expr) else v for v in vars(step).values())
    return type(step), *parts


def chain_of(expression: Expr, memory: Memory | None = None) -> Chain:
    """Return the chain that ends in ``expression``, as far in as it can be followed."""
    memory = memory or Memory()
    steps: list[Step] = []
    starts: list[list[Expr]] = []
    whole = expression
    while len(steps) < LONGEST:
        if expression.op == "Sign" and (signs := _of_sign(whole, expression)) is not None:
            steps, starts, expression = [signs], [[expression.inputs[0]]], expression.inputs[0]
        peeled = memory.peel(expression)
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
    if found is None or not equals(found[1], found[2]):
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


def _arithmetic(e: Expr) -> Peeled | None:
    left, right = e.inputs
    if right.op == CONSTANT:
        return [Arithmetic(e.op, known(right))], left
    if left.op == CONSTANT and e.op in ("Add", "Mul"):
        return [Arithmetic(e.op, known(left))], right
    if e.op != "Mul":
        return None
    for one, other in ((left, right), (right, left)):
        found = of_magnitude(one, chain_of(other)) if one.op == "Sign" else None
        if found is None and other.op == "Max":
            found = snapped(chain_of(one), other)
        if found is not None:
            return found
    return None


def _bound(e: Expr) -> Peeled | None:
    left, right = e.inputs
    if right.op == CONSTANT:
        return [Bound(e.op, known(right))], left
    return ([Bound(e.op, known(left))], right) if left.op == CONSTANT else None


_POSITIVE = Bound("Max", np.zeros((), np.float32))
_NEGATION = Arithmetic("Mul", np.asarray(-1, np.float32))


def _relu(e: Expr) -> Peeled | None:
    return [_POSITIVE], e.inputs[0]


def _negated(e: Expr) -> Peeled | None:
    return [_NEGATION], e.inputs[0]


def _rounding(mode: Rounding) -> Callable[[Expr], Peeled | None]:
    return lambda e: ([Rounded(mode)], e.inputs[0])


def _cast(e: Expr) -> Peeled | None:
    attributes = dict(e.attributes)
    kind = FORMATS.get(attributes["to"])
    if attributes["to"] == FLOAT or isinstance(kind, IntFormat):
        return [], e.inputs[0]
    if not isinstance(kind, Minifloat):
        return None
    return [Encoded(kind, bool(attributes.get("saturate", 1)))], e.inputs[0]


def _choice(e: Expr) -> Peeled | None:
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
    if no is v and equals(known(yes), limit):
        return [Bound("Min" if above else "Max", limit)], v
    return [End(v, limit, known(yes), above)], no


_SIDES = {
    "Greater": (True, False),
    "GreaterOrEqual": (True, True),
    "Less": (False, False),
    "LessOrEqual": (False, True),
}
"""Comparisons: whether they hold above the limit, and at it."""


def _truncated(v: Expr, yes: Expr, no: Expr, *, above: bool) -> Peeled | None:
    positive, negative = (yes, no) if above else (no, yes)
    if (positive.op, negative.op) != ("Floor", "Ceil"):
        return None
    return ([Rounded(Rounding.DOWN)], v) if positive.inputs == negative.inputs == (v,) else None


_RULES: dict[str, Callable[[Expr], Peeled | None]] = {
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

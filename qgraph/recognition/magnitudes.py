"""Steps that look at the magnitude of a number: symmetric roundings, and minifloat grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics.rounding import Rounding
from qgraph.proof.expression import CONSTANT, Expr, known
from qgraph.recognition.steps import (
    Arithmetic,
    Bound,
    Chain,
    Peeled,
    Rounded,
    Snapped,
    Step,
    equals,
    simplified,
)

Array = npt.NDArray[Any]


def of_magnitude(sign: Expr, size: Chain) -> Peeled | None:
    """Read ``Sign(v)`` times something of ``Abs(v)`` that rounds."""
    v = sign.inputs[0]
    for place, start in enumerate(size.starts):
        if any(e.op == "Abs" and e.inputs[0] is v for e in start):
            steps = _of_magnitudes(size.steps[place:])
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
            case Arithmetic("Add" | "Sub" as name, value) if equals(value, 0.5) and half is None:
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


def snapped(rounded: Chain, step: Expr) -> Peeled | None:
    """Read ``round(v / step) * step``, the step being a power of two that depends on v."""
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
    if not equals(value, number) or not number > 0:
        return None
    mantissa, exponent = np.frexp(number)
    return int(exponent) - 1 if mantissa == 0.5 else None

"""Checking what is stated about two constants."""

from __future__ import annotations

import numpy as np

from qgraph.exactness import Exactness
from qgraph.numerics.values import compare_values
from qgraph.verification.outcome import Outcome, check_witness
from qgraph.verification.sides import Pair, Side
from qgraph.verification.statements import Shown, Statement


def check_constants(statement: Statement, sides: tuple[Side, Side], values: Pair) -> Outcome:
    """Return what is so about two constants.

    Raises:
        EquivalenceError: they are not constant, or of different types or shapes.
    """
    arrays = [side.known.array(value) for side, value in zip(sides, values, strict=True)]
    a, b = arrays
    if a is None or b is None:
        raise statement.fails("its values are not constant")
    if statement.entries or statement.tiles or statement.cases:
        raise statement.fails("constants are made of nothing")
    if a.shape != b.shape or a.dtype != b.dtype:
        raise statement.fails("the constants have different types or shapes")
    if a.dtype.kind in "OSU":
        differing = int(np.count_nonzero(a != b))
        check_witness(statement, None)
        return Outcome(Exactness.DIFFERENT if differing else Exactness.BITS, differing)
    found = compare_values(a, b)
    shown = None
    if found.place is not None:
        at = [float(array.reshape(-1)[found.place]) for array in (a, b)]
        shown = Shown(float(found.place), at[0], at[1])
    check_witness(statement, shown)
    return Outcome(
        found.rung,
        found.differing,
        found.zero_sign,
        may_lose_signs=found.rung is not Exactness.BITS,
    )

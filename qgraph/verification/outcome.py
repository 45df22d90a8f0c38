"""What the checker itself finds about a region, and whether a certificate states the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qgraph.certification.certificate import ProofVerdict
from qgraph.exactness import Exactness, Method
from qgraph.verification.sides import Pair
from qgraph.verification.statements import Shown, Statement


@dataclass(frozen=True)
class Outcome:
    """Facts about two values that are made of equal ones; see ``certificate.Region``.

    Attributes:
        exactness: None where only a difference was shown, or where it is graded elsewhere.
        tells_zeros_apart: whether either side makes other values of -0 than of +0.
        may_lose_signs: whether zeros may differ in sign.
    """

    exactness: Exactness | None
    differing_inputs: int = 0
    zero_sign_inputs: int = 0
    channels: int = 1
    differing_channels: tuple[tuple[int, int], ...] = ()
    nan_differs: bool = False
    infinity_differs: bool = False
    remark: str = ""
    tells_zeros_apart: bool = False
    may_lose_signs: bool = False


@dataclass(frozen=True)
class Claim:
    """Two values that are equal if the entries are.

    Attributes:
        number: which statement makes it.
        values: the values.
        entries: pairs that they are made of; none for constants.
        statement: what is stated.
        tells_zeros_apart, may_lose_signs: see :class:`Outcome`.
    """

    number: int
    values: Pair
    entries: tuple[Pair, ...]
    statement: Statement
    tells_zeros_apart: bool = False
    may_lose_signs: bool = False


def check_outcome(statement: Statement, found: Outcome) -> None:
    """See that a statement says what was found.

    Raises:
        EquivalenceError: it does not.
    """
    counts = (
        ("differing_inputs", "inputs that differ"),
        ("zero_sign_inputs", "inputs whose zeros differ in sign"),
        ("differing_channels", "channels that differ"),
    )
    facts = (
        ("channels", "channels"),
        ("nan_differs", "whether NaN is kept"),
        ("infinity_differs", "whether infinities differ"),
    )
    # where only a difference is shown, inputs were not counted to the end
    for name, told in facts if statement.method is Method.NONE else (*counts, *facts):
        stated, known = getattr(statement, name), getattr(found, name)
        if stated != known:
            raise statement.fails(f"{told}: {_short(known)}, not {_short(stated)}")
    if statement.exactness is None and statement.method is not Method.NONE:
        raise statement.fails("it states no rung")
    if found.exactness is not None and statement.exactness is not found.exactness:
        raise statement.fails(f"it holds in {found.exactness}, not in {statement.exactness}")
    if statement.largest_steps is not None and not found.differing_inputs:
        raise statement.fails("it states a largest difference, but nothing differs")
    remarks = [found.remark]
    if found.nan_differs:
        remarks.append("NaN is not kept")
    if found.infinity_differs:
        remarks.append("infinities differ")
    expected = "; ".join(filter(None, remarks))
    if statement.method is not Method.NONE and statement.reason != expected:
        raise statement.fails(f"its remark is {statement.reason!r}, expected {expected!r}")


def check_rung(statement: Statement) -> None:
    """See that the verdict of a region follows from its rung, and what is counted from its method.

    Raises:
        EquivalenceError: it does not.
    """
    rung, verdict = statement.exactness, statement.verdict
    if statement.counted is not (statement.method is not Method.NONE):
        told = "counted" if statement.counted else "not counted"
        raise statement.fails(f"its inputs are called {told}, but its method is {statement.method}")
    if rung is None:
        shown = verdict is ProofVerdict.DIFFERENT and statement.method is Method.NONE
        fits = shown or verdict is ProofVerdict.UNDECIDED
    elif rung is Exactness.VALUES:
        fits = verdict is not ProofVerdict.UNDECIDED  # not equal enough, where bits were asked for
    else:
        equal = rung > Exactness.VALUES
        fits = verdict is (ProofVerdict.PROVED if equal else ProofVerdict.DIFFERENT)
    if not fits:
        raise statement.fails(f"it is called {verdict}, but its rung is {rung}")


def check_witness(statement: Statement, shown: Shown | None) -> None:
    """See that the witness of a statement is what both sides make of its input.

    Raises:
        EquivalenceError: it is not.
    """
    stated = statement.witness
    if stated is None or shown is None:
        if stated is not shown:
            raise statement.fails("it has no witness" if stated is None else "it has a witness")
        return
    for name in ("input", "reference", "candidate"):
        ours, theirs = getattr(shown, name), getattr(stated, name)
        same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        if not same or (
            not math.isnan(ours) and math.copysign(1, ours) != math.copysign(1, theirs)
        ):
            raise statement.fails(f"the {name} of its witness is {ours!r}, not {theirs!r}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."

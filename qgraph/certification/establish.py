"""Whether the regions that differ make two models different.

One region does if its pairing is forced, see :mod:`qgraph.certification.forced`. Otherwise an input
of the models may show it. If neither is found, these regions are undecided, and so are the models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qgraph.certification.discharge import Shown, discharge
from qgraph.certification.forced import differs, forced
from qgraph.certification.regions import Decided, cut, decide_cuts, undecided
from qgraph.equivalence.demonstration import Demonstration, Runs
from qgraph.exactness import Exactness
from qgraph.matching.match import Matching

_BATCHES = 3
"""Random inputs that are tried."""

_WITNESSES = 4
"""Regions whose witnesses are tried as inputs."""

Established = tuple[Matching, list[Shown], Demonstration | None]


def establish(
    matching: Matching,
    shown: Sequence[Shown],
    level: Exactness,
    known: Decided,
    *,
    same_sums: bool,
) -> Established:
    """Return what was shown, differences only if they make the models different, and what shows it.

    Args:
        matching: of the two models.
        shown: its claims, and what became of them.
        level: what was asked for: bits or values.
        known: see :func:`~qgraph.certification.regions.decide_cuts`.
        same_sums: whether all else is proved, so that the models add the same numbers.
    """
    differing = [s for s in shown if differs(s, level)]
    if not differing:
        return matching, list(shown), None
    found = forced(matching, shown, level, known)
    if found is None and matching.is_hinted:
        # names may have divided the models into regions that are too small to be seen through
        sides = matching.reference.plain, matching.candidate.plain
        other = Matching(*sides, by_name=False)
        without = discharge(other, level, known)
        found = forced(other, without, level, known)
        if found is not None:
            matching, shown = other, without
    if found is not None:
        nearest, forcing = found
        return matching, [forcing if s is nearest else s for s in shown], None
    free = (
        [value for value in side.plain.graph.inputs if not value.is_initializer()]
        for side in (matching.reference, matching.candidate)
    )
    runs = Runs(
        (matching.reference.plain, matching.candidate.plain),
        matching.paired("input", *free),
        matching.outputs,
        same_sums=same_sums,
    )
    example = runs.first(_demonstrations(matching, differing, known))
    if example is not None:
        return matching, list(shown), example
    return matching, [_left_open(s) if differs(s, level) else s for s in shown], None


def _demonstrations(
    matching: Matching, differing: Sequence[Shown], known: Decided
) -> Iterator[Demonstration]:
    """Yield inputs full of a number on which a region differs, then random ones."""
    aimed = [s for s in differing if s.region is not None]
    for s in aimed[:_WITNESSES]:
        for entry in s.claim.entries:
            if entry[0].is_graph_input():
                exit_ = s.claim.reference, s.claim.candidate
                (outcome,) = decide_cuts(matching, [cut(matching, exit_, entry)], known)
                if outcome.witness is not None:
                    yield Demonstration(0, str(entry[0].name), outcome.witness.input)
    yield from map(Demonstration, range(_BATCHES))


def _left_open(s: Shown) -> Shown:
    outcome = s.outcome
    count = f"{outcome.differing} of its inputs" if outcome.differing else "some of its inputs"
    if not outcome.is_counted and outcome.differing:
        count = f"at least {count}"
    such = "" if outcome.witness is None else f", such as {outcome.witness.input!r}"
    return replace(
        s,
        outcome=undecided(
            f"its sides differ on {count}{such}, but nothing forces the models to differ: "
            "another difference may undo it, or these inputs may not occur"
        ),
    )

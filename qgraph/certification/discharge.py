"""Showing what a matching claims, each claim as near to its values as it can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.certification.joint import JointCut, decide_joint
from qgraph.certification.regions import (
    Cut,
    Decided,
    Outcome,
    count_all,
    cut,
    decide_cuts,
    undecided,
)
from qgraph.exactness import Exactness, Method
from qgraph.matching.match import Claim, Kind, Matching, Pair
from qgraph.proof.enumeration import effort
from qgraph.proof.expression import Undecidable, text

_GUESSED = "it begins with results of different operators, which may belong to other values"

_ENTRIES = 4
"""So many entries are tried, each farther away than the one before."""

_MOST_OPERATIONS = 48
"""Operations on all inputs, of all regions and channels together: about a minute in two threads."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A claim and what became of it; ``region`` is absent for constants and open claims."""

    claim: Claim
    outcome: Outcome
    region: Cut | None = None

    def reaches(self, level: Exactness) -> bool:
        """Return whether the values are equal enough."""
        return self.outcome.rung is not None and self.outcome.rung >= level


def discharge(matching: Matching, level: Exactness, known: Decided | None = None) -> list[Shown]:
    """Return what became of each claim, in their order.

    A region that is not equal enough from its nearest entry is tried from farther ones.

    Args:
        matching: with its claims.
        level: what is enough: bits or values.
        known: see :func:`~qgraph.certification.regions.decide_cuts`.
    """
    claims = matching.claims
    shown = _show_regions(matching, level, {} if known is None else known)
    for claim in claims:
        if claim.kind is Kind.CONSTANT:
            shown[claim] = Shown(claim, _compare_constants(matching, claim))
        elif claim.kind is Kind.JOINT:
            shown[claim] = Shown(claim, _decide_joint(matching, claim))
        elif claim.kind is Kind.OPEN:
            shown[claim] = Shown(claim, undecided(claim.reason))
    guessed = {_exit(c) for c in claims if c.kind is Kind.OPEN and _operators_differ(c)}
    for claim, found_so_far in shown.items():
        region = found_so_far.region
        if region is not None and region.entry in guessed and not found_so_far.reaches(level):
            shown[claim] = Shown(claim, undecided(_GUESSED), region)
    return [shown[claim] for claim in claims]


def _operators_differ(claim: Claim) -> bool:
    nodes = claim.reference.producer(), claim.candidate.producer()
    return len({node and node.op_identifier() for node in nodes}) > 1


def _exit(claim: Claim) -> Pair:
    return claim.reference, claim.candidate


def _show_regions(matching: Matching, level: Exactness, known: Decided) -> dict[Claim, Shown]:
    """Return what is shown of each region from the first entry that suffices; else what is known.

    What is counted from a farther entry is known better than what was given up from a nearer one.
    The entries of one distance are tried for all regions together.
    """
    shown: dict[Claim, Shown] = {}
    left = [claim for claim in matching.claims if claim.kind is Kind.REGION]
    for distance in range(_ENTRIES):
        left = [claim for claim in left if distance < len(claim.entries)]
        cuts = [cut(matching, _exit(claim), claim.entries[distance]) for claim in left]
        outcomes = decide_cuts(matching, cuts, known)
        for claim, region, outcome in zip(left, cuts, outcomes, strict=True):
            found, before = Shown(claim, outcome, region), shown.get(claim)
            counts = before is None or (outcome.is_counted and not before.outcome.is_counted)
            if counts or found.reaches(level):
                shown[claim] = found
        left = [claim for claim in left if not shown[claim].reaches(level)]
    return shown


def try_all_inputs(shown: Sequence[Shown]) -> list[Shown]:
    """Return what is shown once regions that were given up are decided input by input.

    Those of least effort come first, and those that would take too long are left as they are.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    efforts: list[tuple[int, int]] = []
    for place, s in enumerate(shown):
        finding, pair = s.outcome.finding, s.outcome.expressions
        if finding is not None and finding.given_up and pair is not None:
            efforts.append((effort(*pair), place))
    left = _MOST_OPERATIONS
    done = list(shown)
    found: dict[object, Outcome] = {}
    for operations, place in sorted(efforts):
        region, outcome = done[place].region, done[place].outcome
        if region is None or outcome.expressions is None:
            continue
        key = text(outcome.expressions), region.shape
        if key not in found:
            left -= operations
            found[key] = count_all(region, outcome) if left >= 0 else _spared(outcome)
        done[place] = replace(done[place], outcome=found[key])
    return done


def _spared(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        reason=f"{outcome.reason}; there are too many functions and channels to try all inputs",
    )


def _decide_joint(matching: Matching, claim: Claim) -> Outcome:
    try:
        region = JointCut(claim.entries, _exit(claim))
        return decide_joint((matching.reference, matching.candidate), region)
    except Undecidable as reason:
        return undecided(reason.reason)


def _compare_constants(matching: Matching, claim: Claim) -> Outcome:
    compared = matching.compare_constants(_exit(claim))
    if compared is not None:
        found, witness = compared
        return Outcome(
            found.rung,
            Method.CONSTANT,
            differing=found.differing,
            zero_sign=found.zero_sign,
            witness=witness,
        )
    sides = matching.reference.known, matching.candidate.known
    reference, candidate = (
        known.array(value) for known, value in zip(sides, _exit(claim), strict=True)
    )
    if reference is None or candidate is None:
        return undecided("a constant cannot be computed here")
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        return undecided(
            f"{reference.dtype}{list(reference.shape)} became "
            f"{candidate.dtype}{list(candidate.shape)}"
        )
    differing = int(np.count_nonzero(reference != candidate))
    rung = Exactness.DIFFERENT if differing else Exactness.BITS
    return Outcome(rung, Method.CONSTANT, differing=differing)


def names(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of nodes; unnamed ones are named after their first output."""
    return tuple(node.name or str(node.outputs[0].name) for node in nodes)

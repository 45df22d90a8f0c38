"""Showing what a matching claims, each claim as near to its values as it can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.certification.joint import JointCut, decide_joint
from qgraph.certification.regions import Cut, Outcome, count_all, cut, decide_cuts, undecided
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


def discharge(matching: Matching, level: Exactness) -> list[Shown]:
    """Return what became of each claim, in their order.

    A region that is not equal enough from its nearest entry is tried from farther ones.

    Args:
        matching: with its claims.
        level: what is enough: bits or values.
    """
    claims = matching.claims
    nearest = [
        (claim, cut(matching, _exit(claim), claim.entries[0]))
        for claim in claims
        if claim.kind is Kind.REGION
    ]
    found = dict(
        zip(nearest, decide_cuts(matching, [region for _, region in nearest]), strict=True)
    )
    shown = {claim: Shown(claim, outcome, region) for (claim, region), outcome in found.items()}
    for claim in claims:
        if claim.kind is Kind.CONSTANT:
            shown[claim] = Shown(claim, _compare_constants(matching, claim))
        elif claim.kind is Kind.JOINT:
            shown[claim] = Shown(claim, _decide_joint(matching, claim))
        elif claim.kind is Kind.OPEN:
            shown[claim] = Shown(claim, undecided(claim.reason))
        elif not shown[claim].reaches(level):
            shown[claim] = _from_farther(matching, shown[claim], claim.entries[1:], level)
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


def _from_farther(
    matching: Matching, shown: Shown, entries: Sequence[Pair], level: Exactness
) -> Shown:
    """Return what is shown from the first of ``entries`` that suffices; else what is known.

    What is counted from a farther one is known better than what was given up from a nearer one.
    """
    known = shown
    for entry in entries[: _ENTRIES - 1]:
        region = cut(matching, _exit(shown.claim), entry)
        (outcome,) = decide_cuts(matching, [region])
        other = Shown(shown.claim, outcome, region)
        if other.reaches(level):
            return other
        if outcome.is_counted and not known.outcome.is_counted:
            known = other
    return known


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
    same = np.array_equal(reference, candidate)
    return Outcome(
        Exactness.BITS if same else Exactness.DIFFERENT, Method.CONSTANT, differing=not same
    )


def names(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of nodes; unnamed ones are named after their first output."""
    return tuple(node.name or str(node.outputs[0].name) for node in nodes)

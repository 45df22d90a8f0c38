"""Showing what a matching claims, each claim as near to its values as it can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.interface import Pair
from qgraph.proof.functions.decide import Outcome, undecided
from qgraph.proof.functions.enumeration import effort
from qgraph.proof.functions.expression import Undecidable
from qgraph.proof.joint import decide_joint
from qgraph.proof.matching.match import Claim, Kind, Matching
from qgraph.proof.regions import Cut, Decided, count_all, cut, decide_cuts

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

    @property
    def verdict(self) -> Verdict:
        """What holds."""
        return self.outcome.verdict

    @property
    def exit(self) -> Pair:
        """The values."""
        return self.claim.reference, self.claim.candidate


def discharge(matching: Matching, level: Exactness, known: Decided | None = None) -> list[Shown]:
    """Return what became of each claim, in their order.

    A region that is not equal enough from its nearest entry is tried from farther ones.

    Args:
        matching: with its claims.
        level: what is enough: bits or values.
        known: see :func:`~qgraph.proof.regions.decide_cuts`.
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
    for claim, s in shown.items():
        if s.region is not None and s.region.entry in guessed and not s.verdict.reaches(level):
            shown[claim] = Shown(claim, undecided(_GUESSED), s.region)
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
            if counts or found.verdict.reaches(level):
                shown[claim] = found
        left = [claim for claim in left if not shown[claim].verdict.reaches(level)]
    return shown


def try_all_inputs(shown: Sequence[Shown]) -> list[Shown]:
    """Return what is shown once regions that were given up are decided input by input.

    Those of least effort come first, and those that would take too long are left as they are.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    efforts: list[tuple[int, int]] = []
    for place, s in enumerate(shown):
        finding, pair = s.outcome.finding, s.outcome.pair
        if finding is not None and finding.given_up and pair is not None:
            efforts.append((effort(*pair.functions), place))
    left = _MOST_OPERATIONS
    done = list(shown)
    found: Decided = {}
    for operations, place in sorted(efforts):
        outcome = done[place].outcome
        if outcome.pair is None:
            continue
        key = outcome.pair.key
        if key not in found:
            left -= operations
            found[key] = count_all(outcome) if left >= 0 else _spared(outcome)
        done[place] = replace(done[place], outcome=found[key])
    return done


def _spared(outcome: Outcome) -> Outcome:
    verdict = outcome.verdict
    reason = f"{verdict.reason}; there are too many functions and channels to try all inputs"
    return replace(outcome, verdict=replace(verdict, reason=reason))


def _decide_joint(matching: Matching, claim: Claim) -> Outcome:
    try:
        return decide_joint(matching, claim.entries, _exit(claim))
    except Undecidable as reason:
        return undecided(reason.reason)


def _compare_constants(matching: Matching, claim: Claim) -> Outcome:
    compared = matching.compare_constants(_exit(claim))
    if compared is not None:
        found, witness = compared
        counts = found.differing, found.zero_sign, witness
        return Outcome(Verdict(Exactness.of(found), Method.CONSTANT, *counts))
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
    level = Exactness.DIFFERENT if differing else Exactness.BITS
    return Outcome(Verdict(level, Method.CONSTANT, differing))


def names(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of nodes; unnamed ones are named after their first output."""
    return tuple(node.name or str(node.outputs[0].name) for node in nodes)

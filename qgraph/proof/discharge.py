"""Prove the claims of a matching, each on the smallest sufficient region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from qgraph.effort import is_over, part_of
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.scopes import node_name
from qgraph.proof.cases import decide_joint, decide_steps
from qgraph.proof.functions.decide import PairOutcome, undecided
from qgraph.proof.functions.enumeration import effort
from qgraph.proof.matching.match import EqualityClaim, Kind, Matching
from qgraph.proof.matching.zero_signs import has_positive_zeros
from qgraph.proof.regions import Cut, Decided, count_all, cut, decide_cuts
from qgraph.reasons import (
    DO_NOT_FIT,
    NOT_COMPUTED,
    NOT_FORCED,
    NOT_MATCHED,
    Undecidable,
    explained,
)
from qgraph.records import dataclass, replace

_GUESSED = NOT_FORCED("it begins with results of different operators, which may not correspond")

_ENTRIES = 4
"""Number of entries to try, in order of distance."""

_MOST_OPERATIONS = 48
"""Limit of operations on all inputs, summed over regions and channels: about a minute in two
threads."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A claim, its outcome, and the region that was compared, if there was one.

    If ``is_assumed``, it makes models different only if sums take the differing numbers. ``larger``
    is a larger region whose comparison was stopped, without a difference so far.
    """

    claim: EqualityClaim
    outcome: PairOutcome
    region: Cut | None = None
    is_assumed: bool = False
    larger: Shown | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim."""
        return self.outcome.verdict

    @property
    def is_given_up(self) -> bool:
        """Whether the comparison of the region was stopped because it takes too long."""
        return self.outcome.finding is not None and self.outcome.finding.given_up

    @property
    def is_open(self) -> bool:
        """Whether the claim stays undecided, even if all inputs are tried."""
        return self.verdict.exactness is None and not self.is_given_up

    @property
    def is_trivial(self) -> bool:
        """Whether the claim is about two stored constants that are equal bit for bit."""
        are_stored = all(value.is_initializer() for value in self.claim.values)
        return are_stored and self.verdict.exactness is Exactness.BITS

    @property
    def loses_zero_sign(self) -> bool:
        """Whether the values may be zeros of different signs."""
        finding = self.outcome.finding
        at_infinity = finding is not None and finding.infinity_sign_differs
        may_differ = self.verdict.zero_sign_inputs > 0 or at_infinity
        values = self.claim.reference, self.claim.candidate
        return may_differ and not all(map(has_positive_zeros, values))


def discharge(matching: Matching, level: Exactness, known: Decided) -> list[Shown]:
    """Return the outcome of each claim, in the order of the claims.

    If a region does not reach ``level`` with its nearest entry, farther entries are tried.
    """
    claims = matching.claims
    shown = _show_regions(matching, level, known)
    for claim in claims:
        if claim.kind is Kind.CONSTANT:
            shown[claim] = Shown(claim, _compare_constants(matching, claim))
        elif claim.kind is Kind.JOINT:
            try:
                outcome = decide_joint(matching, claim.entries, claim.values, known)
            except Undecidable as reason:
                outcome = undecided(reason.reason)
            shown[claim] = Shown(claim, outcome)
        elif claim.kind is Kind.OPEN:
            shown[claim] = Shown(claim, undecided(explained(claim.reason, NOT_MATCHED)))
    made_by = {
        c.values: {node and node.op_identifier() for node in (v.producer() for v in c.values)}
        for c in claims
        if c.kind is Kind.OPEN
    }
    guessed = {values for values, operators in made_by.items() if len(operators) > 1}
    for claim, s in shown.items():
        if s.region is not None and s.region.entry in guessed and not s.verdict.reaches(level):
            shown[claim] = Shown(claim, undecided(_GUESSED), s.region)
    return [shown[claim] for claim in claims]


def _show_regions(
    matching: Matching, level: Exactness, known: Decided
) -> dict[EqualityClaim, Shown]:
    """Return the outcome of each region, for its nearest entry with which it reaches ``level``.

    If there is none, the nearest entry whose inputs were all counted is used, otherwise the nearest
    one. The entries of equal distance are tried for all regions together.
    """
    shown: dict[EqualityClaim, Shown] = {}
    stopped: dict[EqualityClaim, Shown] = {}
    left = [claim for claim in matching.claims if claim.kind is Kind.REGION]
    for distance in range(_ENTRIES):
        left = [claim for claim in left if distance < len(claim.entries)]
        cuts = [cut(matching, claim.values, claim.entries[distance]) for claim in left]
        outcomes = [
            _or_by_steps(matching, region, outcome, known)
            for region, outcome in zip(cuts, decide_cuts(matching, cuts, known), strict=True)
        ]
        for claim, region, outcome in zip(left, cuts, outcomes, strict=True):
            candidate, before = Shown(claim, outcome, region), shown.get(claim)
            counts = before is None or (outcome.is_counted and not before.outcome.is_counted)
            if counts or candidate.verdict.reaches(level):
                shown[claim] = candidate
            elif candidate.is_given_up and not outcome.differs(level):
                stopped.setdefault(claim, candidate)
        left = [claim for claim in left if not shown[claim].verdict.reaches(level)]
    for claim, larger in stopped.items():
        if shown[claim].outcome.differs(level):
            shown[claim] = replace(shown[claim], larger=larger)
    return shown


def _or_by_steps(
    matching: Matching, region: Cut, outcome: PairOutcome, known: Decided
) -> PairOutcome:
    """Return the outcome, for a region that was not compared, by the steps of its quantizers."""
    given_up = outcome.finding is not None and outcome.finding.given_up
    if outcome.verdict.exactness is None and not given_up:
        with suppress(Undecidable):
            return decide_steps(matching, region, known) or outcome
    return outcome


def try_all_inputs(shown: Sequence[Shown]) -> list[Shown]:
    """Try all inputs of regions whose comparison was stopped, and return all outcomes.

    The cheapest regions come first. Regions that would take too long are left unchanged. A region
    may differ on inputs that do not occur; if a larger one is known, this one is tried instead.
    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    if is_over():
        return list(shown)
    tried = [s.larger or s for s in shown]
    stopped: dict[Hashable, list[int]] = defaultdict(list)
    efforts: dict[Hashable, int] = {}
    for index, s in enumerate(tried):
        if s.is_given_up and (pair := s.outcome.pair) is not None:
            stopped[pair.key].append(index)
            efforts[pair.key] = efforts.get(pair.key) or effort(*pair.functions)
    keys = sorted(stopped, key=lambda key: (efforts[key], stopped[key]))
    ends = list(accumulate(efforts[key] for key in keys))
    total = max((end for end in ends if end <= _MOST_OPERATIONS), default=0)
    done = list(shown)
    for key, end in zip(keys, ends, strict=True):
        outcome = tried[stopped[key][0]].outcome
        with part_of(total, end - efforts[key], end):
            if end <= total:
                outcome = count_all(outcome)
            else:
                before = outcome.verdict.reason
                reason = f"{before}; there are too many functions and channels to try all inputs"
                outcome = outcome.restated(reason)
        for index in stopped[key]:
            if outcome.is_counted or tried[index] is shown[index]:
                done[index] = replace(tried[index], outcome=outcome)
    return done


def _compare_constants(matching: Matching, claim: EqualityClaim) -> PairOutcome:
    compared = matching.compare_constants(claim.values)
    if compared is not None:
        comparison, witness = compared
        counts = comparison.differing, comparison.zero_sign, witness
        return PairOutcome(Verdict(Exactness.of(comparison), Method.CONSTANT, *counts))
    sides = matching.reference.known, matching.candidate.known
    reference, candidate = (
        known.array(value) for known, value in zip(sides, claim.values, strict=True)
    )
    if reference is None or candidate is None:
        return undecided(NOT_COMPUTED("a constant cannot be computed here"))
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        after = f"{candidate.dtype}{list(candidate.shape)}"
        before = f"{reference.dtype}{list(reference.shape)}"
        return undecided(DO_NOT_FIT(f"the constants are {before} and {after}"))
    differing = int(np.count_nonzero(reference != candidate))
    level = Exactness.DIFFERENT if differing else Exactness.BITS
    return PairOutcome(Verdict(level, Method.CONSTANT, differing))


def names(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of nodes; unnamed ones are named after their first output."""
    return tuple(map(node_name, nodes))

"""Showing what a matching claims, each claim as near to its values as it can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.certification.joint import JointCut, decide_joint
from qgraph.certification.regions import Cut, Outcome, cut, decide_cuts, undecided
from qgraph.exactness import Exactness, Method, Witness
from qgraph.matching.match import Claim, Kind, Matching, Pair
from qgraph.numerics.values import compare_values
from qgraph.proof.expression import Undecidable

_GUESSED = "it begins with results of different operators, which may belong to other values"

_ENTRIES = 4
"""So many entries are tried, each farther away than the one before."""


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
    """Return what is shown from the first of ``entries`` that suffices; else what is known."""
    for entry in entries[: _ENTRIES - 1]:
        region = cut(matching, _exit(shown.claim), entry)
        (outcome,) = decide_cuts(matching, [region])
        other = Shown(shown.claim, outcome, region)
        if other.reaches(level):
            return other
    return shown


def _decide_joint(matching: Matching, claim: Claim) -> Outcome:
    try:
        region = JointCut(claim.entries, _exit(claim))
        return decide_joint((matching.reference, matching.candidate), region)
    except Undecidable as reason:
        return undecided(reason.reason)


def _compare_constants(matching: Matching, claim: Claim) -> Outcome:
    arrays = [
        side.known.array(value)
        for side, value in (
            (matching.reference, claim.reference),
            (matching.candidate, claim.candidate),
        )
    ]
    reference, candidate = arrays
    if reference is None or candidate is None:
        return undecided("a constant cannot be computed here")
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        return undecided(
            f"{reference.dtype}{list(reference.shape)} became "
            f"{candidate.dtype}{list(candidate.shape)}"
        )
    if reference.dtype.kind in "OSU":
        same = np.array_equal(reference, candidate)
        return Outcome(
            Exactness.BITS if same else Exactness.DIFFERENT, Method.CONSTANT, differing=not same
        )
    found = compare_values(reference, candidate)
    witness = None
    if found.place is not None:
        at = (array.reshape(-1)[found.place] for array in (reference, candidate))
        witness = Witness(float(found.place), *map(float, at))
    return Outcome(
        found.rung,
        Method.CONSTANT,
        differing=found.differing,
        zero_sign=found.zero_sign,
        witness=witness,
    )


def names(nodes: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of nodes; unnamed ones are named after their first output."""
    return tuple(node.name or str(node.outputs[0].name) for node in nodes)

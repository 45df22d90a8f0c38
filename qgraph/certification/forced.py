"""Which regions that differ make two models different.

A region compares two values that were paired because the models would be equal if the values were.
That two such values differ says little: another difference further on may undo it. It counts if

1. the entries of the region are equal, by claims that were proved and by nothing else;
2. the models are one function of the two values, so that no second difference can undo it; others
   may only be moved thresholds, which give no other values than those around them;
3. the entry can be one of the inputs that differ;
4. the difference shows in an output of which 2 holds.

3 and 4 are read off the operators around the region; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qgraph.certification.discharge import Shown
from qgraph.certification.regions import Decided, cut, decide_cuts
from qgraph.exactness import Exactness
from qgraph.matching.attained import Attained
from qgraph.matching.closure import Closure, Fact
from qgraph.matching.context import Context
from qgraph.matching.match import Kind, Matching, Pair
from qgraph.matching.visible import visible
from qgraph.proof.keys import from_keys

_MOST = 32
"""Regions that are looked at."""


def forced(
    matching: Matching, shown: Sequence[Shown], level: Exactness, known: Decided
) -> tuple[Shown, Shown] | None:
    """Return a region that differs and makes the models different; None if there is none.

    Returns: the region among ``shown``, and the same from the entry from which it counts.

    Args:
        matching: of the two models.
        shown: all its claims, and what became of them.
        level: what was asked for: bits or values.
        known: see :func:`~qgraph.certification.regions.decide_cuts`.
    """
    differing = [s for s in shown if differs(s, level)]
    if not differing:
        return None
    proved = [_fact(s) for s in shown if s.reaches(level)]
    closure = Closure(matching, proved)
    moved = [s for s in differing if _only_moves_thresholds(s)]
    attained = Attained(matching.reference.known, matching.reference.plain.imports)
    for s in differing[:_MOST]:
        others = [_exit(other) for other in moved if other is not s]
        without = Context(matching, closure, proved, others)
        including = Context(matching, closure, proved, [*others, _exit(s)])
        decided = [p for p in matching.outputs if not without.holds(p) and including.holds(p)]
        if not decided or adds_bias(matching, s) or not _shows(matching, s, decided, level):
            continue
        for version in _versions(matching, s, known):
            entries = _entries(version)
            if (
                differs(version, level)
                and all(map(without.holds, entries))
                and _occurs(version, attained, level)
            ):
                return s, version
    return None


def differs(s: Shown, level: Exactness) -> bool:
    """Return whether two values were shown to differ."""
    is_decided = s.outcome.rung is not None or s.outcome.at_most < level
    return is_decided and not s.reaches(level)


def _exit(s: Shown) -> Pair:
    return s.claim.reference, s.claim.candidate


def _entries(s: Shown) -> tuple[Pair, ...]:
    return s.claim.entries if s.region is None else (s.region.entry,)


def _fact(s: Shown) -> Fact:
    return Fact(_exit(s), _entries(s))


def _only_moves_thresholds(s: Shown) -> bool:
    """Return whether values differ on narrow stretches between two of them on which both agree."""
    return s.outcome.rung is Exactness.NEAR and s.outcome.is_counted


def adds_bias(matching: Matching, s: Shown) -> bool:
    """Return whether a region adds the bias of a sum, which ONNX lets be rounded otherwise."""
    if s.region is None:
        return False
    parts = s.region.reference_nodes, s.region.candidate_nodes
    sides = matching.reference, matching.candidate
    return any(
        value.name in side.plain.bias_sums
        for side, nodes in zip(sides, parts, strict=True)
        for node in nodes
        for value in node.outputs
    )


def _shows(matching: Matching, s: Shown, outputs: Sequence[Pair], level: Exactness) -> bool:
    return visible(
        s.claim.reference,
        matching.reference.known,
        {a for a, _ in outputs},
        everywhere=s.outcome.finding is not None and s.outcome.finding.channels == 1,
        # sums do not show the sign of a zero, but NaN
        through_sums=_differs_in_value(s, level) or s.outcome.nan_differs,
    )


def _differs_in_value(s: Shown, level: Exactness) -> bool:
    """Return whether numbers differ; where bits are asked for it may be signs of zero and NaN."""
    if level is Exactness.VALUES:
        return True
    rung = s.outcome.at_most if s.outcome.rung is None else s.outcome.rung
    return rung < Exactness.VALUES


def _versions(matching: Matching, s: Shown, known: Decided) -> Iterator[Shown]:
    """Yield a region, then the same from entries that lie farther away."""
    yield s
    if s.claim.kind is not Kind.REGION or s.region is None:
        return
    for entry in s.claim.entries:
        if entry != s.region.entry:
            region = cut(matching, _exit(s), entry)
            (outcome,) = decide_cuts(matching, [region], known)
            yield replace(s, outcome=outcome, region=region)


def _occurs(s: Shown, attained: Attained, level: Exactness) -> bool:
    """Return whether the entry of a region can be one of the inputs that differ."""
    if s.claim.kind is Kind.CONSTANT:
        return True
    if s.region is None:
        return False
    source = s.region.entry[0]
    if not _differs_in_value(s, level):
        return attained.is_fed(source)
    limits = attained.source(source)
    return limits is not None and any(limits.admit(*stretch) for stretch in _stretches(s))


def _stretches(s: Shown) -> Iterator[tuple[int, int, float, float]]:
    """Yield channels, how many there are, and the first and last of some inputs that differ."""
    finding, witness = s.outcome.finding, s.outcome.witness
    channels = 0 if finding is None else finding.channels
    if witness is not None:
        yield s.outcome.channel or 0, channels, witness.input, witness.input
    if finding is not None and not finding.enumerated:
        runs = finding.runs
        bounds = (from_keys(keys).astype(np.float64).tolist() for keys in (runs.lo, runs.hi))
        for channel, first, last in zip(runs.channel.tolist(), *bounds, strict=True):
            yield channel, channels, first, last

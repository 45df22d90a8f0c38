"""Decide which regions that differ make two models different.

If the two values of a region are equal, so are the models. If the values differ, the models may
still be equal, because a later difference can undo the first one. The region makes the models
different if

1. its entries are equal, by proved claims only;
2. both models are the same function of the two values, so that no second difference can undo the
   first one. Other regions may only move thresholds: all their values also occur on inputs next to
   the thresholds;
3. the entry can take one of the differing inputs;
4. the difference reaches an output for which 2 holds.

3 and 4 follow from the operators around the region; nothing is run. If no region satisfies all
four, a run of the models may still show a difference. Otherwise the regions and the models are
undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import onnx_ir as ir

from qgraph.certificate import Demonstration
from qgraph.exactness import Exactness
from qgraph.graph.interface import Pair
from qgraph.graph.scopes import graphs_of
from qgraph.numerics.float32 import from_keys
from qgraph.ops.determined import is_exact, is_random
from qgraph.proof.discharge import Shown, discharge
from qgraph.proof.functions.decide import undecided
from qgraph.proof.matching.attained import Attained
from qgraph.proof.matching.closure import Closure, Context, Implication, Ways
from qgraph.proof.matching.match import Kind, Matching
from qgraph.proof.matching.normalise import live_nodes
from qgraph.proof.matching.visible import visible
from qgraph.proof.regions import Decided, cut, decide_cuts
from qgraph.reasons import NOT_FORCED

_MOST = 32
"""Maximum number of regions to examine."""


def forced(
    matching: Matching, shown: Sequence[Shown], level: Exactness, known: Decided
) -> tuple[Shown, Shown] | None:
    """Return a differing region that makes the models different; None if there is none.

    Returns: the region in ``shown``, and the same region with the entry for which it is forced.

    Args:
        matching: the matching of the two models.
        shown: all its claims with their outcomes.
        level: the level to prove: bits or values.
        known: see :func:`~qgraph.proof.regions.decide_cuts`.
    """
    differing = [s for s in shown if s.outcome.differs(level)]
    if not differing:
        return None
    proved = [fact_of(s) for s in shown if s.verdict.reaches(level)]
    ways = Ways(matching, Closure(matching, proved), proved)
    moved = [s for s in differing if _only_moves_thresholds(s)]
    attained = Attained(matching.reference.known, matching.reference.normalised.imports)
    for s in differing[:_MOST]:
        others = [other.claim.values for other in moved if other is not s]
        without = Context(ways, others)
        including = Context(ways, [*others, s.claim.values])
        decided = [
            p for p in matching.interface.outputs if not without.holds(p) and including.holds(p)
        ]
        if not decided or adds_bias(matching, s) or not _shows(matching, s, decided, level):
            continue
        for version in _versions(matching, s, known):
            entries = _entries(version)
            if (
                version.outcome.differs(level)
                and all(map(without.holds, entries))
                and _occurs(version, attained, level)
            ):
                return s, version
    return None


def _entries(s: Shown) -> tuple[Pair, ...]:
    return s.claim.entries if s.region is None else (s.region.entry,)


def fact_of(s: Shown) -> Implication:
    """Return a claim as a fact, if it is proved."""
    return Implication(s.claim.values, _entries(s))


def _only_moves_thresholds(s: Shown) -> bool:
    """Return whether values differ only on narrow intervals between inputs with equal values."""
    return s.verdict.exactness is Exactness.NEAR and s.outcome.is_counted


def adds_bias(matching: Matching, s: Shown) -> bool:
    """Return whether a region adds the bias of a sum, whose rounding ONNX does not define."""
    if s.region is None:
        return False
    parts = s.region.reference_nodes, s.region.candidate_nodes
    sides = matching.reference, matching.candidate
    return any(
        value.name in side.normalised.bias_sums
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
        # sums pass NaN on, but not the sign of a zero
        through_sums=_differs_in_value(s, level) or s.verdict.nan_differs,
    )


def _differs_in_value(s: Shown, level: Exactness) -> bool:
    """Return whether numbers differ, not only signs of zero or NaN as the level bits allows."""
    if level is Exactness.VALUES:
        return True
    return s.outcome.differs(Exactness.VALUES)


def _versions(matching: Matching, s: Shown, known: Decided) -> Iterator[Shown]:
    """Yield a region, then regions with the same exit and farther entries."""
    yield s
    if s.claim.kind is not Kind.REGION or s.region is None:
        return
    for entry in s.claim.entries:
        if entry != s.region.entry:
            region = cut(matching, s.claim.values, entry)
            (outcome,) = decide_cuts(matching, [region], known)
            yield replace(s, outcome=outcome, region=region)


def _occurs(s: Shown, attained: Attained, level: Exactness) -> bool:
    """Return whether the entry of a region can take one of the differing inputs."""
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
    """Yield the channel, the number of channels, and the ends of intervals of differing inputs."""
    finding, witness = s.outcome.finding, s.verdict.witness
    channels = 0 if finding is None else finding.channels
    if witness is not None:
        yield s.verdict.witness_channel or 0, channels, witness.input, witness.input
    if finding is not None and not finding.enumerated:
        runs = finding.runs
        bounds = (from_keys(keys).astype(np.float64).tolist() for keys in (runs.lo, runs.hi))
        for channel, first, last in zip(runs.channel.tolist(), *bounds, strict=True):
            yield channel, channels, first, last


_BATCHES = 3
"""Number of random inputs to try."""

_WITNESSES = 4
"""Maximum number of regions whose witnesses are tried as inputs."""

Established = tuple[Matching, list[Shown], Demonstration | None]


class Demonstrate(Protocol):
    """Runs two models, see :func:`qgraph.execution.demonstration.demonstrate`."""

    def __call__(
        self,
        models: tuple[ir.Model, ir.Model],
        inputs: Sequence[Pair],
        outputs: Sequence[tuple[ir.Value, ir.Value, bool]],
        tried: Iterable[Demonstration],
        *,
        same_sums: bool,
    ) -> Demonstration | None:
        """Return the first of some inputs on which the outputs differ; None if there is none."""


def establish(
    matching: Matching,
    shown: Sequence[Shown],
    level: Exactness,
    known: Decided,
    demonstrate: Demonstrate | None,
    *,
    same_sums: bool,
) -> Established:
    """Return the outcomes; differing regions become undecided unless the models are different.

    Returns: the matching, the outcomes, and the input that shows a difference, if a run did.

    Args:
        matching: the matching of the two models.
        shown: its claims with their outcomes.
        level: the level to prove: bits or values.
        known: see :func:`~qgraph.proof.regions.decide_cuts`.
        demonstrate: runs the models; None to run nothing.
        same_sums: whether everything else is proved, so that the models add the same numbers.
    """
    differing = [s for s in shown if s.outcome.differs(level)]
    if not differing:
        return matching, list(shown), None
    pair = forced(matching, shown, level, known)
    for other in matching.others() if pair is None else ():
        # regions may be too small or too large
        without = discharge(other, level, known)
        pair = forced(other, without, level, known)
        if pair is not None:
            matching, shown = other, without
            break
    if pair is not None:
        nearest, forcing = pair
        return matching, [forcing if s is nearest else s for s in shown], None
    if demonstrate is not None:
        pairs = matching.interface
        example = demonstrate(
            (matching.reference.normalised.model, matching.candidate.normalised.model),
            pairs.inputs,
            comparable(pairs.outputs),
            _demonstrations(matching, differing, known),
            same_sums=same_sums,
        )
        if example is not None:
            return matching, list(shown), example
    return matching, [_left_open(s) if s.outcome.differs(level) else s for s in shown], None


def _demonstrations(
    matching: Matching, differing: Sequence[Shown], known: Decided
) -> Iterator[Demonstration]:
    """Yield inputs filled with a number on which a region differs, then random inputs."""
    aimed = [s for s in differing if s.region is not None]
    for s in aimed[:_WITNESSES]:
        for entry in s.claim.entries:
            if entry[0].is_graph_input():
                (outcome,) = decide_cuts(matching, [cut(matching, s.claim.values, entry)], known)
                if outcome.verdict.witness is not None:
                    yield Demonstration(0, str(entry[0].name), outcome.verdict.witness.input)
    yield from map(Demonstration, range(_BATCHES))


def comparable(outputs: Iterable[Pair]) -> list[tuple[ir.Value, ir.Value, bool]]:
    """Return the pairs of defined outputs, and whether ONNX defines their last bits."""
    pairs = ((a, b, {_reliance(value) for value in (a, b)}) for a, b in outputs)
    return [(a, b, kinds == {"exact"}) for a, b, kinds in pairs if "undetermined" not in kinds]


def _reliance(value: ir.Value) -> str:
    """Return whether a value is exact, rounded or undefined, by the nodes that compute it."""
    reliance = "exact"
    for node in live_nodes([value]):
        if is_random(node, {"": 1}) or _is_open_cast(node):
            return "undetermined"
        if not graphs_of(node) and not (is_exact(node) and not _divides_by_data(node)):
            reliance = "rounded"
    return reliance


def _is_open_cast(node: ir.Node) -> bool:
    """Return whether a node casts numbers to integers whose range they may exceed."""
    if node.op_type not in ("Cast", "CastLike") or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    if before is None or after is None:
        return True
    return before.is_floating_point() and after.is_integer()


def _divides_by_data(node: ir.Node) -> bool:
    """Return whether a node divides by data, so that it may distinguish -0 from +0."""
    return node.op_type in ("Div", "Reciprocal", "Mod", "Atan2")


def _left_open(s: Shown) -> Shown:
    differing, witness = s.verdict.differing_inputs, s.verdict.witness
    count = f"{differing} of its inputs" if differing else "some of its inputs"
    if not s.outcome.is_counted and differing:
        count = f"at least {count}"
    such = "" if witness is None else f", such as {witness.input!r}"
    return replace(
        s,
        outcome=undecided(
            NOT_FORCED(
                f"its sides differ on {count}{such}, but this does not show that the models "
                "differ: another difference may undo it, or these inputs may not occur"
            )
        ),
    )

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

3 and 4 follow from a run of both models whose outputs differ. 3 also follows if the region starts
at an input of the model. Otherwise, that sums take every number between their limits is a
condition. 4 also follows from the operators after the region if they only move elements. Other
operators may hide the difference, so runs have to show it. If no region satisfies all four, a run
of both models may still show a difference. Otherwise the regions and the models are undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.conditions import Demonstration, Reached
from qgraph.exactness import Exactness
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.interface import Difference, Pair
from qgraph.graph.scopes import graphs_of
from qgraph.numerics import Float64
from qgraph.numerics.float32 import from_keys, to_keys
from qgraph.ops.known_values import is_exact, is_random
from qgraph.proof.bounds.closure import Closure, Context, Implication, Ways
from qgraph.proof.discharge import Shown, discharge
from qgraph.proof.functions.decide import undecided
from qgraph.proof.matching.attained import Attained, Limits, is_moved_to, later_operators
from qgraph.proof.matching.match import Kind, Matching
from qgraph.proof.matching.normalise import live_nodes
from qgraph.proof.regions import Decided, cut, decide_cuts
from qgraph.reasons import NOT_FORCED
from qgraph.records import dataclass, field, replace

_MOST = 32
"""Maximum number of regions to examine."""

_REGIONS_RUN = 4
"""Maximum number of regions for which the models are run from an entry on."""


class Runner(Protocol):
    """Runs two models, as the module :mod:`qgraph.execution.demonstration` does."""

    def demonstrate(
        self,
        models: tuple[ir.Model, ir.Model],
        inputs: Sequence[Pair],
        outputs: Sequence[tuple[ir.Value, ir.Value, bool]],
        tried: Iterable[Demonstration],
        *,
        same_sums: bool,
    ) -> Demonstration | None:
        """Return the first of some inputs on which the outputs differ; None if there is none."""

    def reaches(
        self,
        models: tuple[ir.Model, ir.Model],
        inputs: Sequence[Pair],
        difference: Difference,
        tried: Iterable[Demonstration],
    ) -> Reached | None:
        """Return a run in which a difference reaches an output; None if there is none."""


@dataclass
class Forced:
    """A region that makes two models different, also with the entry for which it does.

    Without an example, no run of a whole model showed it.
    """

    nearest: Shown
    version: Shown
    example: Demonstration | None = None


@dataclass
class Search:
    """How to find whether differences reach an output, and prove a level.

    The models may be run for ``left`` more regions. ``hiding`` lists the types of later operators,
    for regions whose difference no run showed.
    """

    level: Exactness
    known: Decided
    runs: Runner | None
    left: int = _REGIONS_RUN
    hiding: dict[Pair, list[str]] = field(default_factory=dict)


def forced(matching: Matching, shown: Sequence[Shown], search: Search) -> Forced | None:
    """Return a differing region that makes the models different; None if there is none."""
    level = search.level
    differing = [s for s in shown if s.outcome.differs(level)]
    if not differing:
        return None
    proved = [fact_of(s) for s in shown if s.verdict.reaches(level)]
    ways = Ways(matching, Closure(matching, proved), proved)
    # these differ only on narrow intervals between inputs with equal values
    near = (s for s in differing if s.verdict.exactness is Exactness.NEAR)
    moved = [s for s in near if s.outcome.is_counted]
    attained = Attained(matching.reference.known, matching.reference.normalised.imports)
    for s in differing[:_MOST]:
        others = [other.claim.values for other in moved if other is not s]
        without = Context(ways, others)
        including = Context(ways, [*others, s.claim.values])
        decided = [
            a
            for a, b in matching.interface.outputs
            if not without.holds((a, b)) and including.holds((a, b))
        ]
        if not decided or adds_bias(matching, s):
            continue
        for version in _versions(matching, s, search.known):
            entries = _entries(version)
            if not version.outcome.differs(level) or not all(map(without.holds, entries)):
                continue
            try:
                numbers = _occurring(version, attained, level)
            except Unknown:
                continue
            entry = None if version.region is None else version.region.entry[0]
            known, finding = matching.reference.known, version.outcome.finding
            everywhere = finding is not None and finding.channels == 1
            value, ends = version.claim.reference, set(decided)
            is_moved = is_moved_to(value, known, ends, everywhere=everywhere)
            if is_moved and (entry is None or attained.is_fed(entry)):
                return Forced(s, version)
            found = _reaches(matching, version, decided, numbers, search)
            if found is None and not is_moved:
                continue
            if found is not None and found.example is not None:
                return Forced(s, version, found.example)
            is_input = entry is not None and entry.is_graph_input()
            return Forced(s, replace(version, is_assumed=not is_input))
    return None


def _reaches(
    matching: Matching,
    s: Shown,
    outputs: Sequence[ir.Value],
    numbers: Sequence[float],
    search: Search,
) -> Reached | None:
    """Return a run that shows that the difference of a region reaches an output."""
    values = _differs_in_value(s, search.level)
    if not values and not s.verdict.nan_differs:
        return None  # sums lose the sign of a zero
    search.hiding[s.claim.values] = later_operators(s.claim.reference, outputs)
    if search.runs is None or not search.left:
        return None
    search.left -= 1
    sides = zip(s.claim.values, (matching.reference, matching.candidate), strict=True)
    constants = None
    if s.claim.kind is Kind.CONSTANT:
        arrays = [side.known.array(value) for value, side in sides]
        if arrays[0] is None or arrays[1] is None:
            return None
        constants = arrays[0], arrays[1]
    models = matching.reference.normalised.model, matching.candidate.normalised.model
    return search.runs.reaches(
        models,
        matching.interface.inputs,
        Difference(
            None if s.region is None else s.region.entry,
            s.claim.values,
            constants,
            outputs,
            numbers if values else [np.nan],
            search.level is Exactness.BITS,
        ),
        demonstrations(matching, [s], search.level, search.known),
    )


def _entries(s: Shown) -> tuple[Pair, ...]:
    return s.claim.entries if s.region is None else (s.region.entry,)


def fact_of(s: Shown) -> Implication:
    """Return a claim as a fact, if it is proved."""
    return Implication(s.claim.values, _entries(s))


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


def _differs_in_value(s: Shown, level: Exactness) -> bool:
    """Return whether numbers differ, not only signs of zero or NaN as the level bits allows."""
    return level is Exactness.VALUES or s.outcome.differs(Exactness.VALUES)


def _versions(matching: Matching, s: Shown, known: Decided) -> Iterator[Shown]:
    yield s
    if s.claim.kind is not Kind.REGION or s.region is None:
        return
    for entry in s.claim.entries:
        if entry != s.region.entry:
            region = cut(matching, s.claim.values, entry)
            (outcome,) = decide_cuts(matching, [region], known)
            yield replace(s, outcome=outcome, region=region)


def _occurring(s: Shown, attained: Attained, level: Exactness) -> list[float]:
    """Return differing inputs that the entry of a region can take, or raise Unknown."""
    if s.claim.kind is Kind.CONSTANT:
        return []
    source = given(s.region).entry[0]
    if not _differs_in_value(s, level):
        require(attained.is_fed(source))
        return []
    limits, (channels, (channel, first, last)) = given(attained.source(source)), _stretches(s)
    found = np.flatnonzero(limits.admit(channel.astype(np.int64), channels, first, last))
    require(len(found))
    chosen = found[:: max(1, -(-len(found) // _NUMBERS))]
    return [_within(limits, float(first[i]), float(last[i])) for i in chosen]


_NUMBERS = 16
"""Maximum number of differing inputs of a region to try."""


def _within(limits: Limits, first: float, last: float) -> float:
    """Return a number between two numbers, and between limits if possible."""
    lo, hi = max(first, limits.lo.min()), min(last, limits.hi.max())
    ends = np.array([lo, hi] if lo <= hi else [first, last], np.float32)
    middle = from_keys(to_keys(ends).sum(keepdims=True) // 2)
    return float(np.clip(middle, first, last)[0])


def _stretches(s: Shown) -> tuple[int, Float64]:
    """Return the number of channels, and channel and ends of differing intervals, witness first."""
    finding, witness = s.outcome.finding, s.verdict.witness
    found: list[list[Any]] = []
    if witness is not None:
        found.append([[s.verdict.witness_channel or 0], [witness.input], [witness.input]])
    if finding is not None and not finding.enumerated:
        ends = (from_keys(keys) for keys in (finding.runs.lo, finding.runs.hi))
        found.append([finding.runs.channel, *ends])
    intervals = np.concatenate(found, axis=1, dtype=np.float64) if found else np.empty((3, 0))
    return 0 if finding is None else finding.channels, intervals


_BATCHES = 3
"""Number of random inputs to try."""

_WITNESSES = 4
"""Maximum number of regions whose witnesses are tried as inputs."""


def demonstrations(
    matching: Matching, differing: Sequence[Shown], level: Exactness, known: Decided
) -> Iterator[Demonstration]:
    """Yield inputs filled with a number on which a region differs, then random inputs.

    NaN is such a number only at the level bits.
    """
    aimed = [s for s in differing if s.region is not None]
    for s in aimed[:_WITNESSES]:
        for entry in s.claim.entries:
            if entry[0].is_graph_input():
                (outcome,) = decide_cuts(matching, [cut(matching, s.claim.values, entry)], known)
                witness = outcome.verdict.witness
                if witness is not None and (outcome.differs(level) or level is Exactness.BITS):
                    yield Demonstration(0, str(entry[0].name), witness.input)
    yield from map(Demonstration, range(_BATCHES))


Established = tuple[Matching, list[Shown], Demonstration | None]


def establish(
    matching: Matching,
    shown: Sequence[Shown],
    level: Exactness,
    known: Decided,
    runs: Runner | None,
    *,
    same_sums: bool,
) -> Established:
    """Return the matching, its outcomes, and the input that shows a difference, if a run did.

    Differing regions become undecided unless the models are different. ``same_sums`` tells whether
    everything else is proved, so that the models add the same numbers.
    """
    differing = [s for s in shown if s.outcome.differs(level)]
    if not differing:
        return matching, list(shown), None
    search = Search(level, known, runs)
    found = forced(matching, shown, search)
    for other in matching.others() if found is None else ():
        # regions may be too small or too large
        without = discharge(other, level, known)
        found = forced(other, without, search)
        if found is not None:
            matching, shown = other, without
            break
    if found is not None:
        forcing = [found.version if s is found.nearest else s for s in shown]
        return matching, forcing, found.example
    if runs is not None:
        pairs = matching.interface
        example = runs.demonstrate(
            (matching.reference.normalised.model, matching.candidate.normalised.model),
            pairs.inputs,
            comparable(pairs.outputs),
            demonstrations(matching, differing, level, known),
            same_sums=same_sums,
        )
        if example is not None:
            return matching, list(shown), example
    return matching, left_open(shown, level, search.hiding), None


def left_open(
    shown: Sequence[Shown], level: Exactness, hiding: Mapping[Pair, Sequence[str]] = {}
) -> list[Shown]:
    """Return regions that differ as undecided, with the later operators that may hide it."""
    return [
        _left_open(s, hiding.get(s.claim.values, ())) if s.outcome.differs(level) else s
        for s in shown
    ]


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
        # division by data may distinguish -0 from +0
        divides = node.op_type in ("Div", "Reciprocal", "Mod", "Atan2")
        if not graphs_of(node) and (divides or not is_exact(node)):
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


def _left_open(s: Shown, hiding: Sequence[str]) -> Shown:
    differing, witness = s.verdict.differing_inputs, s.verdict.witness
    count = f"{differing} of its inputs" if differing else "some of its inputs"
    if not s.outcome.is_counted and differing:
        count = f"at least {count}"
    such = "" if witness is None else f", such as {witness.input!r}"
    reason = (
        f"its sides differ on {count}{such}, but this does not show that the models differ: "
        "another difference may undo it, or these inputs may not occur"
    )
    if hiding:
        reason = (
            f"its sides differ on {count}{such}, but this does not show that the models differ: "
            f"later operators may hide it ({', '.join(hiding)}), or these inputs may not occur"
        )
    return replace(s, outcome=undecided(NOT_FORCED(reason)))

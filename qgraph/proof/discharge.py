"""Prove the claims of a matching, each on the smallest region that suffices.

A region may have two inputs. There are too many pairs of floats to try. If each input first goes
through a quantizer, there are few pairs of codes: all inputs on which both quantizers have constant
results form one case. Each case is run once, by the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qgraph.evidence import Cases
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.interface import Pair
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import between, dominators
from qgraph.numerics import Array
from qgraph.numerics.float32 import from_keys
from qgraph.numerics.values import compare_values, is_nan
from qgraph.proof.functions.decide import PairOutcome, remarks, undecided
from qgraph.proof.functions.enumeration import all_values, effort
from qgraph.proof.functions.expression import Builder, Undecidable
from qgraph.proof.functions.lowering import lower
from qgraph.proof.functions.search import Plateaus, plateaus
from qgraph.proof.matching.classes import MatchedModel
from qgraph.proof.matching.match import EqualityClaim, Kind, Matching
from qgraph.proof.matching.operators import is_reshape
from qgraph.proof.matching.zero_signs import distinguishes_signed_zeros
from qgraph.proof.regions import Cut, Decided, count_all, cut, decide_cuts, run_nodes
from qgraph.reasons import (
    DO_NOT_FIT,
    NOT_COMPUTED,
    NOT_FORCED,
    NOT_KNOWN,
    NOT_MATCHED,
    TWO_INPUTS,
    TYPE_NOT_PROVED,
    explained,
    restated,
)

_GUESSED = NOT_FORCED("it begins with results of different operators, which may not correspond")

_ENTRIES = 4
"""Number of entries to try, in order of distance."""

_MOST_OPERATIONS = 48
"""Operations on all inputs, of all regions and channels together: about a minute in two threads."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A claim and its outcome; ``region`` is None for constants and open claims."""

    claim: EqualityClaim
    outcome: PairOutcome
    region: Cut | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim."""
        return self.outcome.verdict


def discharge(matching: Matching, level: Exactness, known: Decided | None = None) -> list[Shown]:
    """Return the outcome of each claim, in the order of the claims.

    A region that does not reach ``level`` from its nearest entry is tried from farther ones.

    Args:
        matching: the matching with its claims.
        level: the level to reach: bits or values.
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
            shown[claim] = Shown(claim, undecided(explained(claim.reason, NOT_MATCHED)))
    guessed = {c.values for c in claims if c.kind is Kind.OPEN and _operators_differ(c)}
    for claim, s in shown.items():
        if s.region is not None and s.region.entry in guessed and not s.verdict.reaches(level):
            shown[claim] = Shown(claim, undecided(_GUESSED), s.region)
    return [shown[claim] for claim in claims]


def _operators_differ(claim: EqualityClaim) -> bool:
    nodes = claim.reference.producer(), claim.candidate.producer()
    return len({node and node.op_identifier() for node in nodes}) > 1


def _show_regions(
    matching: Matching, level: Exactness, known: Decided
) -> dict[EqualityClaim, Shown]:
    """Return the outcome of each region, from its nearest entry that reaches ``level``.

    If no entry does, the nearest entry whose inputs were all counted is used, else the nearest one.
    The entries of equal distance are tried for all regions together.
    """
    shown: dict[EqualityClaim, Shown] = {}
    left = [claim for claim in matching.claims if claim.kind is Kind.REGION]
    for distance in range(_ENTRIES):
        left = [claim for claim in left if distance < len(claim.entries)]
        cuts = [cut(matching, claim.values, claim.entries[distance]) for claim in left]
        outcomes = decide_cuts(matching, cuts, known)
        for claim, region, outcome in zip(left, cuts, outcomes, strict=True):
            candidate, before = Shown(claim, outcome, region), shown.get(claim)
            counts = before is None or (outcome.is_counted and not before.outcome.is_counted)
            if counts or candidate.verdict.reaches(level):
                shown[claim] = candidate
        left = [claim for claim in left if not shown[claim].verdict.reaches(level)]
    return shown


def try_all_inputs(shown: Sequence[Shown]) -> list[Shown]:
    """Return the outcomes after trying all inputs of regions that were given up.

    The cheapest regions come first. Regions that would take too long are left unchanged.

    Raises:
        UnsupportedError: this thread does not follow IEEE 754.
    """
    efforts: list[tuple[int, int]] = []
    for index, s in enumerate(shown):
        finding, pair = s.outcome.finding, s.outcome.pair
        if finding is not None and finding.given_up and pair is not None:
            efforts.append((effort(*pair.functions), index))
    left = _MOST_OPERATIONS
    done = list(shown)
    found: Decided = {}
    for operations, index in sorted(efforts):
        outcome = done[index].outcome
        if outcome.pair is None:
            continue
        key = outcome.pair.key
        if key not in found:
            left -= operations
            found[key] = count_all(outcome) if left >= 0 else _spared(outcome)
        done[index] = replace(done[index], outcome=found[key])
    return done


def _spared(outcome: PairOutcome) -> PairOutcome:
    verdict = outcome.verdict
    reason = f"{verdict.reason}; there are too many functions and channels to try all inputs"
    reason = restated(verdict.reason, reason)
    return replace(outcome, verdict=replace(verdict, reason=reason))


def _decide_joint(matching: Matching, claim: EqualityClaim) -> PairOutcome:
    try:
        return decide_joint(matching, claim.entries, claim.values)
    except Undecidable as reason:
        return undecided(reason.reason)


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


_CASES = 1 << 22
_BOXES = 1 << 20
_NARROW_BITS = 8
_SPECIAL = np.array([-np.inf, np.inf, np.nan], np.float32)


def decide_joint(matching: Matching, entries: Sequence[Pair], exit_: Pair) -> PairOutcome:
    """Compare both sides for every case. The verdict counts cases.

    Args:
        matching: the matching of the two models.
        entries: two pairs of equal values, from which both sides are computed.
        exit_: the pair of values to compare.

    Raises:
        Undecidable: an entry has too many values, or parameters vary by channel.
    """
    sides = matching.reference, matching.candidate
    parts = []
    for side, end, *starts in zip(sides, exit_, *entries, strict=True):
        nodes = between(end, starts, side.joined)
        if nodes is None:
            raise Undecidable(TWO_INPUTS("it does not depend on two values only"))
        _check_parameters(side, nodes)
        parts.append(nodes)
    (first, one), (second, other) = (_cases(sides, parts, entry) for entry in entries)
    if first.size * second.size > _CASES:
        raise Undecidable(
            TWO_INPUTS(f"there are {first.size} x {second.size} cases, too many to try")
        )
    x, z = np.repeat(first, second.size), np.tile(second, first.size)
    results = [
        run_nodes(side, nodes, {a: x, b: z}, end)
        for side, nodes, end, a, b in zip(sides, parts, exit_, *entries, strict=True)
    ]
    if results[0].dtype != results[1].dtype or results[0].shape != results[1].shape:
        raise Undecidable(DO_NOT_FIT("the results are of different types or shapes"))
    special = is_nan(x) | is_nan(z)
    numbers = [result[~special] for result in results]
    comparison = compare_values(*numbers)
    at_nan = compare_values(*(result[special] for result in results))
    nan_differs = Exactness.of(at_nan) < Exactness.BITS
    witness = None
    if comparison.differing and comparison.index is not None:
        at = (array[comparison.index] for array in (x[~special], *numbers))
        witness = Witness(*map(float, at))
    reason = f"{np.count_nonzero(~special)} pairs of values of two inputs were tried"
    verdict = Verdict(
        # -0 and +0 are one case, so nothing is claimed about them
        min(Exactness.of(comparison), Exactness.VALUES),
        Method.EXHAUSTIVE,
        comparison.differing,
        max(1, comparison.zero_sign),
        witness,
        remarks(reason, nan=nan_differs),
        nan_differs=nan_differs,
    )
    return PairOutcome(verdict, cases=(one, other))


def _check_parameters(side: MatchedModel, nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        if is_reshape(node):
            raise Undecidable(TWO_INPUTS("it has two inputs, and reshapes data"))
        data = []
        for value in node.inputs:
            array = None if value is None else side.known.array(value)
            if array is not None and array.size > 1:
                raise Undecidable(
                    TWO_INPUTS("it has two inputs, and parameters that vary by channel")
                )
            if array is None and value is not None:
                data.append(value)
        if distinguishes_signed_zeros(node, data):
            # -0 and +0 are one case
            raise Undecidable(
                TWO_INPUTS(f"it has two inputs, and {node.op_type} distinguishes -0 from +0")
            )


def _cases(
    sides: tuple[MatchedModel, MatchedModel], parts: Sequence[Sequence[ir.Node]], entry: Pair
) -> tuple[Array, Cases]:
    """Return one value of an entry for each case, and how the cases divide its inputs."""
    dtype = entry[0].dtype or entry[1].dtype
    if dtype is None:
        raise Undecidable(NOT_KNOWN("the type of one of its two inputs is not known"))
    if dtype is not ir.DataType.FLOAT:
        if dtype.bitwidth > _NARROW_BITS or not dtype.is_integer():
            raise Undecidable(TYPE_NOT_PROVED(f"one of its two inputs is {dtype.name}"))
        return all_values(dtype), Cases(None, None)
    for name, side, value in zip(("reference", "candidate"), sides, entry, strict=True):
        found = _levels(name, side, value)
        if found is not None:
            return found
    keys: list[Array] = []
    for side, nodes, value in zip(sides, parts, entry, strict=True):
        for end in _quantized(side, nodes, value):
            chain = between(end, [value], side.joined) or []
            keys.append(_steps(side, chain, value, end).lo)
    starts = np.unique(np.concatenate(keys))
    return np.concatenate([from_keys(starts), _SPECIAL]), Cases(None, None, tuple(starts.tolist()))


def _levels(name: str, side: MatchedModel, value: ir.Value) -> tuple[Array, Cases] | None:
    """Return the values that quantizers of a model leave to ``value``, and the inputs of each.

    None is returned if ``value`` is not computed by a quantizer.
    """
    chain = dominators(value, side.operands)
    for start in chain[1:]:
        if start.dtype is not ir.DataType.FLOAT:
            # the steps are those of float32 functions only
            continue
        nodes = between(value, [start], side.joined)
        try:
            plateaus = _steps(side, nodes or [], start, value)
        except Undecidable:
            continue
        beyond = run_nodes(side, nodes or [], {start: _SPECIAL}, value)
        levels = np.unique(np.concatenate([plateaus.value, beyond, _SPECIAL[-1:]]))
        return levels, Cases(name, str(start.name), tuple(plateaus.lo.tolist()))
    return None


def _quantized(side: MatchedModel, nodes: Sequence[ir.Node], entry: ir.Value) -> list[ir.Value]:
    """Return the values computed from ``entry`` alone that nodes combine with other values."""
    alone = {entry}
    for node in nodes:
        sources = side.joined(node.outputs[0])
        if alone.issuperset(sources):
            alone.add(node.outputs[0])
    ends = []
    for value in alone:
        users = [node for node in nodes if value in node.inputs]
        if any(node.outputs[0] not in alone for node in users):
            ends.append(value)
    return ends


def _steps(side: MatchedModel, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value) -> Plateaus:
    _check_parameters(side, nodes)
    return plateaus(lower(nodes, x, y, (), Builder(), constants=side.known.array), max_boxes=_BOXES)

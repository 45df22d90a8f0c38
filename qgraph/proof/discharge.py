"""Prove the claims of a matching, each on the smallest sufficient region.

A model may compute NaN from its constants, whatever its inputs are. A quantizer with an infinite
scale, as exporters write it for a mask of minus infinity, makes NaN of every finite number:
``x / inf`` is 0, and ``0 * inf`` is NaN. A NaN in a small constant does the same, an infinite
factor does it of 0, and a Softmax of elements that are all masked by minus infinity. A proof must
not assume that no NaN reaches regions behind them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from qgraph.certificate import RegionVerdict
from qgraph.effort import is_over, part_of
from qgraph.exactness import Exactness, Method, ProofVerdict, Verdict
from qgraph.graph.constants import constant, constant_tensor
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import reached
from qgraph.numerics import Float64
from qgraph.proof.cases import decide_joint, decide_steps
from qgraph.proof.functions.decide import PairOutcome, undecided
from qgraph.proof.functions.enumeration import effort
from qgraph.proof.matching.match import EqualityClaim, Kind, Matching
from qgraph.proof.matching.zero_signs import has_positive_zeros
from qgraph.proof.regions import Cut, Decided, RegionLowering, count_all, cut, decide_cuts
from qgraph.reasons import (
    CONSTANT_NAN,
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
    lowering = RegionLowering(matching)
    for distance in range(_ENTRIES):
        left = [claim for claim in left if distance < len(claim.entries)]
        cuts = [cut(matching, claim.values, claim.entries[distance]) for claim in left]
        outcomes = [
            _or_by_steps(matching, region, outcome, known)
            for region, outcome in zip(
                cuts, decide_cuts(matching, cuts, known, lowering), strict=True
            )
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
    if outcome.verdict.exactness is None and not (given_up or outcome.is_refuted):
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


_MOST_ELEMENTS = 1 << 12
"""Maximum number of elements of a constant that is examined."""

_SCALED = frozenset({"DequantizeLinear", "Quant", "QuantizeLinear"})
"""Operators whose second operand is a scale."""

_MULTIPLIED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Mul"})
"""Operators that multiply their first two operands."""


def without_nans(regions: Sequence[RegionVerdict], nodes: Iterable[ir.Node]) -> list[RegionVerdict]:
    """Leave proved regions undecided if a NaN of constants reaches them and is not kept.

    ``nodes`` are those of the reference.
    """

    def is_lossy(region: RegionVerdict) -> bool:
        is_proved = region.verdict is ProofVerdict.PROVED
        return region.nan_differs and is_proved and bool(region.entries)

    if not any(map(is_lossy, regions)):
        return list(regions)
    causes = {str(value.name): cause for value, cause in _nans_of_constants(nodes).items()}
    left = []
    for region in regions:
        if is_lossy(region) and (cause := causes.get(region.entries[0][0])):
            reason = CONSTANT_NAN(f"NaN reaches it: {cause}")
            region = replace(region, verdict=ProofVerdict.UNDECIDED, exactness=None, reason=reason)
        left.append(region)
    return left


def _nans_of_constants(nodes: Iterable[ir.Node]) -> dict[ir.Value, str]:
    """Return the values that a NaN of constants may reach, each with the cause.

    Integers, such as the codes of a QuantizeLinear, end the way of a NaN. Constants with more
    elements than scales and masks usually have are not examined.
    """
    causes = {value: cause for node, cause in _sources(nodes) for value in _floats([node])}
    for value, following in reached(list(causes), _following).items():
        for each in following:
            causes.setdefault(each, causes[value])
    return causes


def _following(value: ir.Value) -> list[ir.Value]:
    return _floats(node for node, _ in value.uses())


def _floats(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    results = [value for node in nodes for value in node.outputs]
    return [v for v in results if v.dtype is None or v.dtype.is_floating_point()]


def _sources(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, str]]:
    special: dict[ir.Value, tuple[bool, bool]] = {}
    for node in nodes:
        if node.op_type in ("LogSoftmax", "Softmax") and (mask := _full_mask(node)):
            yield (
                node,
                f"mask {mask.name!r} leaves no element to {node.op_type} {node_name(node)!r}",
            )
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if value not in special:
                special[value] = _special(value)
            has_nan, has_infinity = special[value]
            if has_nan:
                yield node, f"constant {value.name!r} has a NaN"
            elif has_infinity and index == 1 and node.op_type in _SCALED:
                yield node, f"the scale of {node.op_type} {node_name(node)!r} is infinite"
            elif has_infinity and index and node.op_type == "FakeQuantize":
                yield node, f"a limit of {node.op_type} {node_name(node)!r} is infinite"
            elif has_infinity and index < 2 and node.op_type in _MULTIPLIED:
                yield node, f"a factor of {node.op_type} {node_name(node)!r} is infinite"


def _full_mask(node: ir.Node) -> ir.Value | None:
    """Return the constant that is added before a Softmax if it masks a whole last axis."""
    masked = node.inputs[0].producer() if node.inputs[0] is not None else None
    if masked is None or masked.op_type != "Add":
        return None
    for value in masked.inputs:
        array = None if value is None else _examined(value)
        if array is not None and array.ndim and np.isneginf(array).all(axis=-1).any():
            return value
    return None


def _special(value: ir.Value) -> tuple[bool, bool]:
    """Return whether a small constant has a NaN, and an infinity."""
    array = _examined(value)
    if array is None:
        return False, False
    return bool(np.isnan(array).any()), bool(np.isinf(array).any())


def _examined(value: ir.Value) -> Float64 | None:
    """Return a small constant of real numbers."""
    tensor = constant_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    if math.prod(tensor.shape.numpy()) > _MOST_ELEMENTS:
        return None
    return np.asarray(constant(value), np.float64)

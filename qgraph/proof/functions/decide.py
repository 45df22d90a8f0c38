"""Decide where two expressions differ, over all float32 inputs.

The quantizers of a network are often the same formula with different numbers. Pairs of the same
form are decided together: their constants become channels of one pair, so that NumPy evaluates all
of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.numerics.float32 import check_float_environment
from qgraph.numerics.values import Comparison
from qgraph.proof.functions.expression import Builder, Expr, evaluate, rebuilt
from qgraph.proof.functions.finding import Collector, PairFinding, compare_special_inputs, sample
from qgraph.proof.functions.level import grade
from qgraph.proof.functions.lowering import Shape
from qgraph.proof.functions.pair import CONSTANTS, FunctionPair, Key
from qgraph.proof.functions.program import PairProgram
from qgraph.proof.functions.search import MAX_BOXES, BoxSearch
from qgraph.reasons import DO_NOT_FIT, NOT_KNOWN, ExplainedReason, Undecidable, restated
from qgraph.records import dataclass, replace

if TYPE_CHECKING:
    from qgraph.conditions import Cases


@dataclass(frozen=True)
class PairOutcome:
    """The verdict on a pair of functions, and its evidence.

    Attributes:
        verdict: the verdict.
        finding: counts and intervals of differing inputs; None if no intervals were evaluated.
        pair: both functions; None if no intervals were evaluated.
        zeros_differ: if the values of a type were enumerated, whether -0 and +0 have different
            results on either side.
        at_most: the highest level that is still possible if the verdict is undecided.
        cases: for a region with two inputs, how each of them was divided.
    """

    verdict: Verdict
    finding: PairFinding | None = None
    pair: FunctionPair | None = None
    zeros_differ: bool = False
    at_most: Exactness = Exactness.BITS
    cases: tuple[Cases, ...] = ()

    @property
    def distinguishes_zeros(self) -> bool:
        """Whether -0 and +0 have different results, on either side."""
        if self.finding is None or self.pair is None:
            return self.zeros_differ
        for function in self.pair.functions:
            x = np.zeros((1,) * len(function.shape), np.float32)
            if not np.array_equal(evaluate(function, x), evaluate(function, -x), equal_nan=True):
                return True
        return False

    @property
    def is_refuted(self) -> bool:
        """Whether values differ on inputs that were not counted."""
        return self.finding is None and self.pair is not None

    @property
    def is_counted(self) -> bool:
        """Whether all inputs were compared. If not, numbers of inputs are lower bounds."""
        return self.verdict.method is not Method.NONE

    def restated(self, reason: str) -> PairOutcome:
        """Return the outcome with a reason that says more about the same cause."""
        reason = restated(self.verdict.reason, reason)
        return replace(self, verdict=replace(self.verdict, reason=reason))

    def differs(self, level: Exactness) -> bool:
        """Return whether a difference was found, so that ``level`` is not reached."""
        highest = self.verdict.exactness or self.at_most
        return highest < level


def undecided(reason: ExplainedReason) -> PairOutcome:
    """Return an undecided outcome with a reason."""
    return PairOutcome(Verdict(reason=reason))


def remarks(reason: str | None, *, nan: bool, infinity: bool = False) -> str | None:
    """Return a reason, extended by remarks on NaN and infinities."""
    parts = [reason, "NaN is not kept" if nan else None, "infinities differ" if infinity else None]
    return restated(reason, "; ".join(filter(None, parts))) or None


def tried(
    comparison: Comparison,
    at_nan: Comparison | None,
    witness: Witness | None = None,
    reason: str | None = None,
    **fields: Any,
) -> Verdict:
    """Return the verdict on values that were all tried: on numbers, and on NaN apart from them.

    ``fields`` are fields of the verdict that do not follow from the comparison.
    """
    nan_differs = at_nan is not None and Exactness.of(at_nan) < Exactness.BITS
    level = Exactness.of(comparison)
    verdict = Verdict(
        min(level, Exactness.VALUES) if nan_differs else level,
        Method.EXHAUSTIVE,
        comparison.differing,
        comparison.zero_sign,
        witness,
        remarks(reason, nan=nan_differs),
        nan_differs=nan_differs,
    )
    return replace(verdict, **fields)


def decide_pairs(
    pairs: Sequence[FunctionPair | PairOutcome],
    decided: dict[Key, PairOutcome],
    *,
    at_least: Exactness | None = None,
    keeps_runs: bool = True,
) -> list[PairOutcome]:
    """Return an outcome for each pair. Outcomes among the arguments are returned unchanged.

    Equal pairs are decided once, and pairs of the same form together. Outcomes in ``decided`` are
    reused, and new ones are added. A pair that is not equal in values may be left undecided if it
    does not reach the level ``at_least``. If ``keeps_runs``, the findings list the inputs that
    differ, which may be millions.

    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    soon = at_least is not None and at_least >= Exactness.VALUES
    keys = {i: pair.key for i, pair in enumerate(pairs) if isinstance(pair, FunctionPair)}
    new: dict[Key, FunctionPair] = {}
    for i, pair in enumerate(pairs):
        if isinstance(pair, FunctionPair) and keys[i] not in decided:
            new[keys[i]] = pair
    below: dict[Key, PairOutcome] = {}
    findings = decide_all(list(new.values()), until_difference=soon)
    for (key, pair), finding in zip(new.items(), findings, strict=True):
        if soon and (finding.differing or finding.infinity_differs):
            below[key] = not_counted(pair)
        else:
            own = finding if keeps_runs else finding.without_runs()
            decided[key] = judge(pair, finding, own)
    outcomes = decided | below
    return [
        pair if isinstance(pair, PairOutcome) else outcomes[keys[i]] for i, pair in enumerate(pairs)
    ]


def not_counted(pair: FunctionPair) -> PairOutcome:
    """Return the outcome of a pair whose values differ, if the inputs are not counted."""
    return PairOutcome(Verdict(reason="values differ"), None, pair)


def judge(pair: FunctionPair, finding: PairFinding, kept: PairFinding | None = None) -> PairOutcome:
    """Return the outcome of a finding about a pair of functions, which keeps ``kept`` if given."""
    graded = grade(finding, pair)
    level, largest = graded.level, graded.largest
    method = Method.CONGRUENCE if pair.is_same else Method.INTERVALS
    reason, at_most = finding.undecided, Exactness.BITS
    witness, channel = finding.witness, finding.witness_channel
    if finding.enumerated:
        method, reason = Method.EXHAUSTIVE, "all inputs were tried one by one"
        if finding.largest_ulps is not None:
            reason += f"; values are up to {finding.largest_ulps} floats apart"
    elif finding.undecided is not None:
        method = Method.NONE
        shown = sample(finding, *pair.functions)
        if shown is not None:
            at_most, witness, channel = shown.at_most, shown.witness, shown.channel
        if at_most is Exactness.DIFFERENT:
            level = at_most
            more = "the inputs that differ are not counted, there are more"
            reason = restated(reason, f"{more}: {reason}")
    verdict = Verdict(
        level,
        method,
        finding.differing,
        finding.zero_sign,
        witness,
        remarks(reason, nan=finding.nan_differs, infinity=finding.infinity_differs),
        channel,
        largest,
        finding.nan_differs,
        finding.infinity_differs,
        graded.codes,
        graded.noise,
        graded.noise_steps,
    )
    return PairOutcome(verdict, kept or finding, pair, at_most=at_most)


def decide(
    reference: Expr,
    candidate: Expr,
    *,
    input_shape: Shape | None = None,
    max_boxes: int = MAX_BOXES,
    domain: tuple[float, float] | None = None,
    until_difference: bool = False,
) -> PairFinding:
    """Compare two expressions on every float32 input and in every channel.

    Args:
        reference: the reference function.
        candidate: the candidate; use one builder for both so that common parts are recognised.
        input_shape: shape of the variable, None for unknown dimensions; used to check that both
            results have the same shape.
        max_boxes: maximum number of boxes to evaluate before giving up.
        domain: restricts the finite inputs to those from the first to the second number.
        until_difference: stop at the first difference; the finding then does not count them.

    Raises:
        UnsupportedError: this thread does not follow IEEE 754.
    """
    channels = math.prod(reference.shape)
    if reference is candidate:
        return PairFinding(channels)
    try:
        check_shapes(reference.shape, candidate.shape, input_shape)
        program = PairProgram(reference, candidate)
    except Undecidable as undecidable:
        return PairFinding(channels, undecided=undecidable.reason)
    (finding,), end = explore(
        Collector(program),
        program,
        max_boxes=max_boxes,
        domain=domain,
        until_difference=until_difference,
    )
    given_up = end is not None and end.by_effort
    return replace(replayed(finding, reference, candidate), given_up=given_up)


def replayed(finding: PairFinding, reference: Expr, candidate: Expr) -> PairFinding:
    """Return a finding whose witness has the exact values of both expressions at its input.

    A witness of the search may have bounds only, if values vary on the interval of its input.
    """
    witness = finding.witness
    if witness is None or not finding.differing:
        return finding
    x = np.asarray(witness.input, np.float32)
    shape = np.broadcast_shapes(reference.shape, candidate.shape)
    values = [
        np.broadcast_to(evaluate(root, x), shape).reshape(-1)[finding.witness_channel or 0]
        for root in (reference, candidate)
    ]
    return replace(finding, witness=Witness(witness.input, *map(float, values)))


def explore(
    collector: Collector,
    program: PairProgram,
    *,
    max_boxes: int = MAX_BOXES,
    domain: tuple[float, float] | None = None,
    until_difference: bool = False,
) -> tuple[list[PairFinding], Undecidable | None]:
    """Return where the expressions of a program differ, and why the search stopped early.

    With ``until_difference``, the search ends for each pair of functions at its first difference.
    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    check_float_environment()
    search = BoxSearch(program, max_boxes, domain, refines=not until_difference)
    end = None
    with np.errstate(all="ignore"):
        special, keys = compare_special_inputs(program, collector)
        try:
            if until_difference:
                search.drop(collector.finished())
            for boxes, results, _ in search.settled():
                results.check(boxes.lo)
                collector.note("value", boxes, *results[:2], results.differ)
                collector.note("zero", boxes, *results[:2], results.zero_sign)
                if until_difference:
                    search.drop(collector.finished())
            special.check(keys)
        except Undecidable as undecidable:
            end = undecidable
    check_float_environment()
    return collector.findings(search.boxes, undecided=None if end is None else end.reason), end


def check_shapes(
    reference: tuple[int, ...],
    candidate: tuple[int, ...],
    shape: Shape | None,
    *,
    exactly: bool = False,
) -> None:
    """Check that the constants on both sides give the result the same shape.

    ``reference`` and ``candidate`` are the shapes to which their constants broadcast, ``shape`` is
    that of the variable. If its rank is unknown, nothing is checked, or ``exactly`` equal shapes
    are required, which fit every rank, 0 included.

    Raises Undecidable if the shapes differ, or may differ.
    """
    if shape is None:
        if exactly and reference != candidate:
            raise Undecidable(
                NOT_KNOWN(
                    "the shape of its data is not known, and the parameters have the shapes "
                    f"{list(reference)} and {list(candidate)}"
                )
            )
        return
    results = [_result_shape(shape, constants) for constants in (reference, candidate)]
    if results[0] != results[1]:
        raise Undecidable(
            DO_NOT_FIT(f"the results have shapes {list(results[0])} and {list(results[1])}")
        )


def _result_shape(data: Shape, constants: tuple[int, ...]) -> Shape:
    rank = max(len(data), len(constants))
    sizes: Shape = (1,) * (rank - len(data)) + data
    others = (1,) * (rank - len(constants)) + constants
    for size, other in zip(sizes, others, strict=True):
        if size is not None and 1 not in (size, other) and size != other:
            raise Undecidable(
                DO_NOT_FIT(
                    f"constants of shape {list(constants)} do not fit data of shape {list(data)}"
                )
            )
    # an unknown dimension may be 1, which the constants enlarge
    return tuple(b if a == 1 or b != 1 else a for a, b in zip(sizes, others, strict=True))


def decide_all(
    pairs: Sequence[FunctionPair], *, until_difference: bool = False
) -> Iterator[PairFinding]:
    """Yield the finding of :func:`decide` for each pair, deciding pairs of one form together.

    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    groups: dict[object, list[int]] = {}
    for i, pair in enumerate(pairs):
        shared = None if pair.is_same else pair.form
        groups.setdefault(i if shared is None else shared, []).append(i)
    decided: dict[int, PairFinding] = {}
    for group in (each for each in groups.values() if len(each) > 1):
        with suppress(Undecidable):  # each is decided alone then
            program = PairProgram(*_side_by_side([pairs[i] for i in group]))
            if len(program.first) == len(group):
                collector = Collector(program, separate=True)
                findings, end = explore(collector, program, until_difference=until_difference)
                if end is None:
                    decided.update(zip(group, findings, strict=True))
    for i, pair in enumerate(pairs):
        if i in decided:
            finding = decided.pop(i)
            yield replayed(finding, *pair.functions) if finding.differing else finding
        elif pair.is_same:
            yield PairFinding(math.prod(pair.outline[0].shape))
        else:  # if one pair of a group is undecidable, each is decided alone
            yield decide(*pair.functions, input_shape=pair.shape, until_difference=until_difference)


def _side_by_side(pairs: Sequence[FunctionPair]) -> tuple[Expr, Expr]:
    first = pairs[0]
    columns = zip(*(pair.constants for pair in pairs), strict=True)
    constants = [e for e in first.order if e.op in CONSTANTS]
    stacked = {id(e): np.stack(column) for e, column in zip(constants, columns, strict=True)}
    reference, candidate = rebuilt(first.outline, Builder(), lambda e: stacked[id(e)])
    return reference, candidate

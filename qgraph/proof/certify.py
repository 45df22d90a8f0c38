"""Prove that two models are equal for every input, or find the regions that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import onnx_ir as ir

from qgraph.certificate import Certificate, Identity, RegionVerdict, conditions_of
from qgraph.conditions import (
    BIAS_LAST,
    OPEN_BOUNDS,
    ROUNDED_ONCE,
    SUMS_REACH,
    WHOLE_SUMS,
    Condition,
    Division,
)
from qgraph.effort import is_over
from qgraph.errors import OptionError, member
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.graph.interface import Pair
from qgraph.graph.slices import between
from qgraph.ops.integer import definitions
from qgraph.ops.kernels import mat_mul_n_bits
from qgraph.proof.discharge import Shown, discharge, names, try_all_inputs, without_nans
from qgraph.proof.forced import Established, Runner, adds_bias, establish, left_open
from qgraph.proof.functions.decide import PairOutcome
from qgraph.proof.functions.divisions import boxes
from qgraph.proof.functions.pair import Key
from qgraph.proof.matching.match import EqualityClaim, Kind, Matching
from qgraph.proof.matching.normalise import NormalisedModel, listed_facts, normalised_models
from qgraph.proof.matching.zero_signs import ZeroRegion, zero_sign_nodes
from qgraph.proof.normal.normalise import NormalForm, normalise
from qgraph.proof.regions import Decided
from qgraph.reasons import SIGN_OF_ZERO, Undecidable
from qgraph.records import dataclass

_Sides = tuple[NormalisedModel, NormalisedModel]


@dataclass(frozen=True)
class Proof:
    """A certificate that names no files, the matching from which it was made, and its claims."""

    certificate: Certificate
    matching: Matching
    shown: Sequence[Shown]


def certify(
    reference: ir.Model,
    candidate: ir.Model,
    *,
    exact: str = Exactness.VALUES,
    keep_inputs: bool = False,
    evidence: bool = False,
    runs: Runner | None = None,
    counts: bool = True,
    decided: Decided | None = None,
) -> Proof:
    """Prove that two models compute equal outputs for every input.

    The graphs are matched, starting at their inputs. If they differ in form, the smallest regions
    that compute one value from equal values are compared over all inputs, by the definitions of
    their operators. After a difference, the values are assumed equal, so that later differences are
    found too. Regions that differ make the models different if their pairing is forced (see
    :mod:`qgraph.proof.forced`), or if a run of both models shows a difference in the outputs.
    Otherwise they are undecided.

    Args:
        reference: the model to compare with.
        candidate: the model that should be equal.
        exact: the level to prove: values, or bits, which includes NaN and the sign of zero.
        keep_inputs: do not treat initializers that are also graph inputs as constants.
        evidence: list in the certificate how the inputs of each region were divided, for its
            verification.
        runs: runs the models to find an input on which their outputs differ; None to run nothing.
        counts: count the inputs on which regions differ in values. If not, such regions are
            undecided, which takes less time.
        decided: outcomes of earlier calls, for any models; new ones are added.

    Raises:
        ModelError: the models have different inputs or outputs.
        OptionError: ``exact`` is neither values nor bits.
        UnsupportedError: a function cannot be inlined, or this thread does not follow IEEE 754.
    """
    level = member(Exactness, exact, "exact")
    if level < Exactness.VALUES:
        raise OptionError(
            f"exact={level} cannot be proved for whole models, expected values or bits. Ask for "
            "one of these."
        )
    sides = normalised_models(
        reference, candidate, keep_inputs=keep_inputs, open_sums=True, defines=True
    )
    first = None if sides[0].defined else runs
    known = Decided() if decided is None else decided
    known.at_least = None if counts else level
    (matching, shown, shown_by), form = _show(sides, level, first, known)
    if sides[0].defined and _failed(shown, level) and not is_over():
        sides = normalised_models(reference, candidate, keep_inputs=keep_inputs, open_sums=True)
        (matching, shown, shown_by), form = _show(sides, level, runs, known)
    failed = any(s.outcome.differs(level) for s in shown) if counts else _failed(shown, level)
    if sides[0].has_open_sums and failed and not is_over():
        # They may differ only at numbers that no sum of codes is.
        sides = normalised_models(reference, candidate, keep_inputs=keep_inputs)
        (matching, shown, shown_by), form = _show(sides, level, runs, known)
    sides = matching.reference.normalised, matching.candidate.normalised
    divided: _Divided | None = {} if evidence else None
    regions = [_region(s, matching, level, divided) for s in shown if not s.is_trivial]
    regions = without_nans(regions, matching.reference.nodes)
    seen = (
        RegionVerdict(
            reference_nodes=names([node]),
            candidate_nodes=names([node]),
            reference_value=str(node.outputs[0].name),
            candidate_value=str(node.outputs[0].name),
            reason=SIGN_OF_ZERO(reason),
        )
        for node, reason in _zero_sign_nodes(matching, shown)
    )
    regions += dict.fromkeys(seen)  # both models may have the node
    facts, of_sizes = listed_facts(sides, _names_of_values(regions))
    # the last bits of some computed constants are not defined by ONNX
    inexact = matching.reference.known.inexact | matching.candidate.known.inexact
    certificate = Certificate(
        _verdict(regions),
        _exactness(regions, form),
        Identity(None, None),
        Identity(None, None),
        tuple(regions),
        (
            *dict.fromkeys(_conditions(regions, sides)),
            *(() if form is None else form.conditions),
            *([ROUNDED_ONCE(", ".join(sorted(inexact)))] if inexact else []),
            *of_sizes,
            *mat_mul_n_bits.conditions([*reference.graph, *candidate.graph]),
        ),
        (*matching.notes, *(() if form is None else (form.note,))),
        kept_inputs=keep_inputs,
        facts=tuple(facts),
        shown_by=shown_by,
    )
    return Proof(certificate, matching, shown)


def _names_of_values(regions: Sequence[RegionVerdict]) -> tuple[set[str], set[str]]:
    names: tuple[set[str], set[str]] = (set(), set())
    for region in regions:
        for pair in ((region.reference_value, region.candidate_value), *region.entries):
            names[0].add(pair[0])
            names[1].add(pair[1])
        for cases in region.cases:
            if cases.side is not None and cases.start is not None:
                names[cases.side == "candidate"].add(cases.start)
    return names


_Divided = dict[Key, tuple[Division, ...]]
"""Division of the inputs, by pair of functions."""

_Attempt = tuple[Matching, list[Shown], NormalForm | None]


def _show(
    sides: _Sides, level: Exactness, runs: Runner | None, known: Decided
) -> tuple[Established, NormalForm | None]:
    """Return the attempt with the fewest failed claims, on the models as written or in normal form.

    The normal form is tried if claims about the models as written fail. It is tried first if the
    matching of the models as written pairs results of different operators.
    """
    tried: list[_Attempt] = []
    for matching, form in _in_order(sides, level):
        tried.append((*_attempt(matching, level, known), form))
        if not _failed(tried[-1][1], level) or is_over():
            return _concluded(tried[-1], level, known, runs)
    as_written = next(attempt for attempt in tried if attempt[2] is None)
    best = min([as_written, *tried], key=lambda attempt: _failed(attempt[1], level))
    concluded = _concluded(best, level, known, runs)
    if best is as_written or _is_decided(concluded[0], level):
        return concluded
    second = _concluded(as_written, level, known, runs)
    return second if _is_decided(second[0], level) else concluded


def _in_order(sides: _Sides, level: Exactness) -> Iterator[tuple[Matching, NormalForm | None]]:
    """Yield the matchings to try, the most promising one first."""
    as_written = Matching(*sides)
    is_doubtful = any(map(_is_doubtful, as_written.claims))
    later = []
    for form in _normal_forms(sides, level) if is_doubtful else ():
        matching = Matching(*form.sides)
        if len(matching.claims) < len(as_written.claims):
            yield matching, form
        else:
            later.append((matching, form))
    yield as_written, None
    yield from later
    for form in () if is_doubtful else _normal_forms(sides, level):
        yield Matching(*form.sides), form


def _concluded(
    attempt: _Attempt, level: Exactness, known: Decided, runs: Runner | None
) -> tuple[Established, NormalForm | None]:
    """Complete an attempt: enumerate costly regions, and establish its differences.

    All inputs of a region are tried only if that can change the verdict or its counts.
    """
    matching, shown, form = attempt
    if any(s.larger for s in shown) and not any(s.is_open for s in shown):
        shown = try_all_inputs(shown)
    established: Established = matching, left_open(shown, level), None
    if (counts := known.at_least is None) or not _failed(shown, level):
        established = _established(matching, shown, level, known, runs)
    matching, shown, example = established
    if any(s.outcome.differs(level) for s in shown):
        return (matching, try_all_inputs(shown) if counts else shown, example), form
    if any(s.is_open for s in shown):
        return established, form  # the models are undecided, whatever the other regions give
    return _established(matching, try_all_inputs(shown), level, known, runs), form


def _established(
    matching: Matching,
    shown: Sequence[Shown],
    level: Exactness,
    known: Decided,
    runs: Runner | None,
) -> Established:
    is_decided = all(s.verdict.reaches(level) or s.outcome.differs(level) for s in shown)
    biases = matching.reference.normalised.bias_sums | matching.candidate.normalised.bias_sums
    same_sums = is_decided and not biases and not _zero_sign_nodes(matching, shown)
    return establish(matching, shown, level, known, runs, same_sums=same_sums)


def _is_decided(established: Established, level: Exactness) -> bool:
    shown = established[1]
    return not _failed(shown, level) or any(s.outcome.differs(level) for s in shown)


def _normal_forms(sides: _Sides, level: Exactness) -> list[NormalForm]:
    """Yield the models in a normal form that keeps bits, and in one that keeps ``level``."""
    forms = (normalise(sides, kept) for kept in dict.fromkeys((Exactness.BITS, level)))
    return [form for form in forms if form is not None]


def _is_doubtful(claim: EqualityClaim) -> bool:
    """Return whether a claim is open, or one side of its region has no nodes."""
    if claim.kind is Kind.OPEN:
        return True
    nearest = claim.entries[:1] if claim.kind is Kind.REGION else ()
    return any(claim.reference is a or claim.candidate is b for a, b in nearest)


def _attempt(matching: Matching, level: Exactness, known: Decided) -> tuple[Matching, list[Shown]]:
    """Prove the claims of a matching; if some fail, try other matchings of the models."""
    shown = _discharged(matching, level, known)
    for other in matching.others() if _failed(shown, level) else ():
        without = _discharged(other, level, known)
        if _failed(without, level) < _failed(shown, level):
            matching, shown = other, without
        if not _failed(shown, level):
            break
    return matching, shown


def _discharged(matching: Matching, level: Exactness, known: Decided) -> list[Shown]:
    shown = discharge(matching, level, known)
    differs = [s.outcome.is_refuted or s.outcome.differs(level) for s in shown]
    is_open = any(s.is_given_up and not d for s, d in zip(shown, differs, strict=True))
    known.hides_proofs |= is_open or not any(differs)
    return shown


def _failed(shown: Sequence[Shown], level: Exactness) -> int:
    return sum(not s.verdict.reaches(level) for s in shown)


def _zero_sign_nodes(matching: Matching, shown: Sequence[Shown]) -> list[tuple[ir.Node, str]]:
    """Return nodes that distinguish zeros whose sign may differ between models, with a reason."""
    nodes = []
    # all values of a class that some claim proves except for the sign of zero, on both sides
    lossy = {
        matching.class_of(matching.reference, s.claim.reference) for s in shown if s.loses_zero_sign
    }
    for index, side in enumerate((matching.reference, matching.candidate)):
        exits = {value for value in side.classes if matching.class_of(side, value) in lossy}
        steps = [
            ZeroRegion(
                s.region.entry[index],
                s.region.exit[index],
                frozenset((s.region.reference_nodes, s.region.candidate_nodes)[index]),
                s.outcome.distinguishes_zeros,
            )
            for s in shown
            if s.region is not None
        ]
        outputs = side.normalised.graph.outputs
        nodes += zero_sign_nodes(side.nodes, outputs, exits, steps, side.known.array)
    return nodes


def _region(
    s: Shown, matching: Matching, level: Exactness, divided: _Divided | None
) -> RegionVerdict:
    outcome, finding = s.outcome, s.outcome.finding
    nodes, entries = _extent(s, matching)
    verdict = ProofVerdict.DIFFERENT if outcome.differs(level) else ProofVerdict.UNDECIDED
    return RegionVerdict(
        **vars(s.verdict),
        reference_nodes=names(nodes[0]),
        candidate_nodes=names(nodes[1]),
        reference_value=str(s.claim.reference.name),
        candidate_value=str(s.claim.candidate.name),
        entries=entries,
        verdict=ProofVerdict.PROVED if s.verdict.reaches(level) else verdict,
        counted=outcome.is_counted,
        channels=1 if finding is None else finding.channels,
        differing_channels=() if finding is None else finding.by_channel,
        conditions=(
            *((BIAS_LAST,) if adds_bias(matching, s) else ()),
            *((SUMS_REACH,) if s.is_assumed else ()),
        ),
        boxes=() if divided is None else _boxes(outcome, divided),
        cases=() if divided is None else outcome.cases,
    )


def _extent(
    s: Shown, matching: Matching
) -> tuple[list[Sequence[ir.Node]], tuple[tuple[str, str], ...]]:
    """Return the nodes of both sides and the names of the entries."""
    if s.region is not None:
        nodes: list[Sequence[ir.Node]] = [s.region.reference_nodes, s.region.candidate_nodes]
        pairs: tuple[Pair, ...] = (s.region.entry,)
    elif s.claim.kind is Kind.JOINT:
        pairs = s.claim.entries
        sides = zip(s.claim.values, (matching.reference, matching.candidate), strict=True)
        nodes = [
            between(value, [pair[index] for pair in pairs], side.joined) or ()
            for index, (value, side) in enumerate(sides)
        ]
    else:
        producers = (value.producer() for value in s.claim.values)
        nodes, pairs = [() if node is None else (node,) for node in producers], ()
    return nodes, tuple((str(a.name), str(b.name)) for a, b in pairs)


def _boxes(outcome: PairOutcome, divided: _Divided) -> tuple[Division, ...]:
    """Return the division of the inputs of a region, computed once for each pair of functions."""
    pair, finding = outcome.pair, outcome.finding
    if pair is None or finding is None or finding.undecided is not None or finding.enumerated:
        return ()
    if pair.key not in divided:
        divided[pair.key] = ()  # one function without steps on both sides needs no evidence
        with suppress(Undecidable):
            divided[pair.key] = boxes(*pair.functions)
    return divided[pair.key]


def _verdict(regions: Sequence[RegionVerdict]) -> ProofVerdict:
    verdicts = {region.verdict for region in regions}
    worst_first = ProofVerdict.DIFFERENT, ProofVerdict.UNDECIDED
    return next((v for v in worst_first if v in verdicts), ProofVerdict.PROVED)


def _exactness(regions: Sequence[RegionVerdict], form: NormalForm | None) -> Exactness | None:
    levels = [region.exactness for region in regions if region.exactness is not None]
    whole = min([*levels, Exactness.BITS if form is None else form.exactness])
    return whole if len(levels) == len(regions) else None


def _conditions(regions: Sequence[RegionVerdict], sides: _Sides) -> Iterator[Condition]:
    yield from conditions_of(regions, max(side.frozen for side in sides))
    needed = {
        WHOLE_SUMS: any(side.has_common_sums for side in sides),
        BIAS_LAST: any(side.bias_sums for side in sides),
        OPEN_BOUNDS: sides[0].open_clips != sides[1].open_clips,
    }
    yield from (condition for condition, is_needed in needed.items() if is_needed)
    yield from definitions.conditions(sides[0].defined)

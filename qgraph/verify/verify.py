"""Check a certificate: decide its statements again, by the definitions of operators alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from qgraph import conditions as schema
from qgraph.certificate import Certificate, ListedFact, ProofVerdict, conditions_of
from qgraph.conditions import Condition
from qgraph.errors import EquivalenceError, UnsupportedError
from qgraph.exactness import Exactness, Method, PartFinding, Status, Verification
from qgraph.graph.inference.walk import infer, reshaped_sizes
from qgraph.graph.interface import Interface, are_equal_defaults, common_domain, conflict, interface
from qgraph.numerics.float32 import check_float_environment
from qgraph.ops.integer.definitions import (
    conditions_of as conditions_of_definitions,
    differing_definitions,
)
from qgraph.ops.kernels import mat_mul_n_bits
from qgraph.reasons import VERDICT_NOT_CHECKED
from qgraph.verify.bounds import check_bounds
from qgraph.verify.reading import Reading, merged, shape_of
from qgraph.verify.regions import EqualValues, check

_OF_PROOFS = frozenset({Exactness.BITS, Exactness.VALUES})


def verify(certificate: Certificate, reference: ir.Model, candidate: ir.Model) -> Verification:
    """Check a certificate of two models: decide all its statements again.

    Raises:
        ModelError: the models have different numbers of inputs or outputs.
        UnsupportedError: this thread does not follow IEEE 754.
    """
    check_float_environment()
    models = reference, candidate
    regions = certificate.regions
    is_bound = any(region.method is Method.BOUND for region in regions)
    # a segment of a bound starts and ends at operators as they are written
    defined = frozenset() if is_bound else differing_definitions(models)
    if not set(conditions_of_definitions(models, defined)) <= set(certificate.conditions):
        defined = frozenset()
    try:
        one, other = sides = (
            Reading(reference, keep_inputs=certificate.kept_inputs, defined=defined),
            Reading(candidate, keep_inputs=certificate.kept_inputs, defined=defined),
        )
    except UnsupportedError as error:
        no = PartFinding(Status.UNCHECKED, str(error))
        return Verification(ProofVerdict.UNDECIDED, (no,) * len(regions), no, no)
    paired, domain = interface(one.graph, other.graph), common_domain(one.model, other.model)
    if is_bound:
        findings, problem = check_bounds(certificate, sides, paired)
        outputs = _refuted_by(problem)
    else:
        is_other = bool(certificate.notes or defined)
        checked = [check(region, sides, as_written=not is_other) for region in regions]
        findings = [finding for finding, _ in checked]
        fed = [pair for pair in paired.defaults if are_equal_defaults(*pair)] + paired.inputs
        claims = [claim for _, claim in checked if claim is not None]
        equal = EqualValues(sides, claims, [pair for pair in fed if conflict(*pair) is None])
        problem = equal.difference(paired.outputs)
        outputs = PartFinding(Status.UNCHECKED if problem else Status.CHECKED, problem)
    if certificate.verdict not in (ProofVerdict.PROVED, ProofVerdict.BOUNDED):
        reason = f"the checker does not decide whether the models are {certificate.verdict}"
        outputs = PartFinding(Status.UNCHECKED, VERDICT_NOT_CHECKED(reason))
    pairs = zip(sides, domain.interfaces, strict=True)
    sizes = frozenset().union(*(reshaped_sizes(infer(side.model, own)) for side, own in pairs))
    needed = [
        *mat_mul_n_bits.conditions(node for model in models for node in model.graph),
        *conditions_of(regions, max(side.frozen for side in sides)),
        *schema.of_sizes(sizes, domain.shared),
    ]
    bounding = certificate.bounding
    has_bounds = any(region.verdict is ProofVerdict.BOUNDED for region in regions)
    if has_bounds or is_bound:
        needed += schema.of_bounds(bounding.chunk, bounding.accumulate, has_any=has_bounds)
    statements = _refuted_by(next(_overclaims(certificate, sides, paired, needed), None))
    check_float_environment()
    verdict = ProofVerdict.UNDECIDED
    if all(finding.status is Status.CHECKED for finding in (*findings, outputs, statements)):
        verdict = ProofVerdict.BOUNDED if has_bounds else ProofVerdict.PROVED
    return Verification(verdict, tuple(findings), outputs, statements)


def _refuted_by(problem: str | None) -> PartFinding:
    return PartFinding(Status.REFUTED if problem else Status.CHECKED, problem)


def _overclaims(
    certificate: Certificate,
    sides: tuple[Reading, Reading],
    paired: Interface,
    needed: Sequence[Condition],
) -> Iterator[str]:
    """Yield statements of a certificate that its regions and the models do not support."""
    regions = certificate.regions
    verdicts = {region.verdict for region in regions}
    order = ProofVerdict.DIFFERENT, ProofVerdict.UNDECIDED, ProofVerdict.BOUNDED
    worst = next((verdict for verdict in order if verdict in verdicts), ProofVerdict.PROVED)
    if certificate.verdict is not worst:
        yield f"its regions give the verdict {worst}, but it states {certificate.verdict}"
    levels = [region.exactness for region in regions if region.exactness is not None]
    lowest = None if len(levels) < len(regions) else min([*levels, Exactness.BITS])
    if certificate.exactness is not None and (lowest is None or certificate.exactness > lowest):
        yield f"its regions reach the level {lowest}, but it states {certificate.exactness}"
    if certificate.verdict is ProofVerdict.PROVED and certificate.exactness not in _OF_PROOFS:
        yield f"its verdict is proved, but its level is {certificate.exactness}"
    counts = Counter((r.reference_value, r.candidate_value, r.entries) for r in regions)
    for (name, *_), count in counts.items():
        if count > 1:
            yield f"{count} of its regions are about {name!r}, expected one"
    for condition in needed:
        if condition not in certificate.conditions:
            yield f"the condition {str(condition)!r} is missing"
    for note in paired.notes:
        if note not in certificate.notes:
            yield f"the note {note!r} is missing"
    for fact in certificate.facts:
        values = sides[fact.model == "candidate"].named(fact.tensor)
        if values and not any(_agrees(fact, value) for value in values):
            yield f"{fact.tensor!r} of the {fact.model} has another type or shape"


def _agrees(fact: ListedFact, value: ir.Value) -> bool:
    """Return whether a listed type and shape do not contradict the inferred ones."""
    dtype = value.dtype
    text = "string" if dtype is ir.DataType.STRING else dtype and str(dtype.numpy())
    try:
        merged(shape_of(value), fact.shape)
    except EquivalenceError:
        return False
    return text is None or fact.type in (text, None)

"""Read a certificate, and check with the prover what the checker leaves unchecked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from qgraph.bound import Seen
from qgraph.certificate import Certificate, ListedFact, RegionVerdict
from qgraph.comparison.prove import prove
from qgraph.effort import is_over
from qgraph.errors import EquivalenceError, ModelError, plain_message
from qgraph.exactness import Exactness, PartFinding, ProofVerdict, Status, Verification
from qgraph.model import Source
from qgraph.storage.files import sha256
from qgraph.storage.places import MOST_TEXT, bounded
from qgraph.text import json_text
from qgraph.version import READABLE


def read(path: Path, reference: Path, candidate: Path) -> Certificate:
    """Return the certificate in a file.

    Raises ModelError if the file is no certificate, EquivalenceError if it is about other files.
    """
    try:
        document = json.loads(bounded(path, MOST_TEXT).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: cannot be read ({plain_message(error)}), expected a certificate of "
            "'qgraph prove'. Write it with --certificate."
        ) from error
    is_certificate = isinstance(document, dict) and document.get("command") == "prove"
    if not is_certificate or document.get("schema") not in READABLE:
        raise ModelError(
            f"{path}: is not a certificate of schema {' or '.join(map(str, READABLE))}, expected a "
            "file from 'qgraph prove --certificate'. Write it again."
        )
    certificate = Certificate.from_json(document)
    for name, model in (("reference", reference), ("candidate", candidate)):
        stated = getattr(certificate, name)
        if stated.sha256 is None:
            raise ModelError(f"{path}: states no hash of its {name}. Prove the files again.")
        if stated.sha256 != sha256(model):
            raise EquivalenceError(
                f"{path}: names a {name} with the SHA-256 {stated.sha256[:12]}..., but {model} is "
                "another file. Give the models that were proved; save a model in memory before it "
                "is proved."
            )
    return certificate


def replay(
    certificate: Certificate, checked: Verification, reference: Source, candidate: Source
) -> Verification:
    """Return the combined findings of checker and prover on a certificate.

    The prover is run if a part is unchecked and none is refuted. It must find the same for the
    unchecked parts, and at least the verdict and the level of the certificate. What it does not
    find before the time limit stays unchecked.

    Raises ModelError for models that are not usable, UnsupportedError if a function cannot be
    inlined.
    """
    if checked.is_refuted or all(part.status is Status.CHECKED for part in checked.parts):
        return checked
    level = Exactness.BITS if _wants_bits(certificate) else Exactness.VALUES
    found = _replayed(certificate, checked, (reference, candidate), level)
    may_be_of_bits = level is Exactness.VALUES and certificate.exactness is not Exactness.VALUES
    if found.is_refuted and may_be_of_bits:
        # Proofs of equal bits have other regions; no field states the level that was asked for.
        other = _replayed(certificate, checked, (reference, candidate), Exactness.BITS)
        return found if other.is_refuted else other
    return found


def _replayed(
    certificate: Certificate,
    checked: Verification,
    models: tuple[Source, Source],
    level: Exactness,
) -> Verification:
    """Return the combined findings with a proof of a level."""
    anew = prove(
        *models,
        exact=level,
        keep_inputs=certificate.kept_inputs,
        evidence=any(
            r.boxes or r.cases or (r.bound and r.bound.channels) for r in certificate.regions
        ),
        within=certificate.bounding,
    )
    late = is_over()
    regions = tuple(
        _with_prover(region, finding, anew, late=late)
        for region, finding in zip(certificate.regions, checked.regions, strict=True)
    )
    problem, statements = _overclaim(certificate, anew), checked.statements
    if problem:
        reason = f"{_LATE}: {problem}" if late else problem
        statements = PartFinding(Status.UNCHECKED if late else Status.REFUTED, reason)
    outputs = replace(checked.outputs, prover=checked.outputs.status is Status.UNCHECKED)
    open_ = [part for part in regions if part.status is Status.UNCHECKED and not part.prover]
    decided = not open_ and not problem and certificate.verdict is anew.verdict
    if not decided and (late or certificate.verdict is not anew.verdict):
        outputs = checked.outputs
    return Verification(
        anew.verdict if decided else ProofVerdict.UNDECIDED,
        regions,
        outputs,
        statements,
        prover=True,
    )


_LATE = "the prover reached the time limit"


def _wants_bits(certificate: Certificate) -> bool:
    """Return whether equal values count as different, as at level bits."""
    return any(
        region.verdict is ProofVerdict.DIFFERENT and region.exactness is Exactness.VALUES
        for region in certificate.regions
    )


def _with_prover(
    region: RegionVerdict, finding: PartFinding, anew: Certificate, *, late: bool
) -> PartFinding:
    if finding.status is not Status.UNCHECKED or region.verdict is ProofVerdict.UNDECIDED:
        return finding
    names = region.reference_value, region.candidate_value
    others = [r for r in anew.regions if (r.reference_value, r.candidate_value) == names]
    alike = [
        other
        for other in others
        if _stated(other, region) == _stated(region, region) and _covers(other, region)
    ]
    if any(_seen(other) == _seen(region) for other in alike):
        return replace(finding, prover=True)
    if alike:
        return replace(finding, reason=f"{finding.reason}; the prover shows another difference")
    if late:
        return replace(finding, reason=f"{finding.reason}; {_LATE}")
    if others:
        return PartFinding(Status.REFUTED, "the prover finds another result")
    return replace(finding, reason=f"{finding.reason}; the prover has no such region")


def _seen(region: RegionVerdict) -> Seen | None:
    """Return the codes on which the sides of a region were run."""
    return None if region.bound is None else region.bound.seen


def _stated(region: RegionVerdict, like: RegionVerdict) -> dict[str, Any]:
    """Return the fields of a region that the prover must find again."""
    kept = replace(region, boxes=like.boxes and region.boxes, cases=like.cases and region.cases)
    if region.bound is not None:
        kept = replace(kept, bound=replace(region.bound, seen=None))
    stated = dict(json.loads(json_text(kept.to_json()))) | {"reason": None}
    is_open = like.verdict is ProofVerdict.DIFFERENT and not like.counted
    return {name: x for name, x in stated.items() if not (is_open and name in _OPEN)}


def _covers(region: RegionVerdict, like: RegionVerdict) -> bool:
    """Return whether a region has at least the counts of another."""
    counts = dict(region.differing_channels)
    return all((getattr(region, name) or 0) >= (getattr(like, name) or 0) for name in _COUNTS) and (
        all(counts.get(channel, 0) >= count for channel, count in like.differing_channels)
    )


_COUNTS = "differing_inputs", "differing_codes", "zero_sign_inputs", "largest_steps"
_OPEN = frozenset({"method", "counted", "differing_channels", *_COUNTS})
"""Fields of a region that are lower bounds, or not known, if its inputs are not counted."""


def _overclaim(certificate: Certificate, anew: Certificate) -> str | None:
    """Return the claim of a certificate as a whole that exceeds the result of the prover."""
    if certificate.verdict not in (anew.verdict, ProofVerdict.UNDECIDED):
        return f"the prover finds the models {anew.verdict}, not {certificate.verdict}"
    level, known = certificate.exactness, anew.exactness
    if level is not None and (known is None or level > known):
        return f"the prover finds them equal in {known}, not {level}"
    if certificate.verdict is anew.verdict:  # else what is decided only now has conditions
        for text in (*anew.conditions, *anew.notes):
            if text not in (*certificate.conditions, *certificate.notes):
                return f"the condition {text!r} is missing"
    elif certificate.shown_by is None:
        anew = replace(anew, shown_by=None)
    if certificate.shown_by != anew.shown_by:
        return "the prover finds another witness, or none"
    facts = set(map(_key, anew.facts))
    wrong = [fact for fact in certificate.facts if _key(fact) not in facts]
    return f"{wrong[0].tensor!r} has another type or shape" if wrong else None


def _key(fact: ListedFact) -> str:
    return json_text(replace(fact, because="").to_json())

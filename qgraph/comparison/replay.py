"""Reading a certificate file, and running the prover for the parts that its checker leaves open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from qgraph.certificate import Certificate, ListedFact, Region
from qgraph.comparison.prove import prove
from qgraph.errors import EquivalenceError, ModelError
from qgraph.exactness import Exactness, Finding, ProofVerdict, Status, Verification
from qgraph.model import Source
from qgraph.storage.files import sha256
from qgraph.text import json_text
from qgraph.version import SCHEMA


def read(path: Path, reference: Path, candidate: Path) -> Certificate:
    """Return the certificate in a file, which has to be about two model files.

    Raises:
        ModelError: the file is no certificate.
        EquivalenceError: it is about other files.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: cannot be read ({error}), expected a certificate of 'qgraph prove'."
        ) from error
    known = isinstance(document, dict) and document.get("command") == "prove"
    if not known or document.get("schema") != SCHEMA:
        raise ModelError(
            f"{path}: is no certificate of schema {SCHEMA}, expected what 'qgraph prove "
            "--certificate' writes. Write it again."
        )
    certificate = Certificate.from_json(document)
    for name, model in (("reference", reference), ("candidate", candidate)):
        stated = getattr(certificate, name)
        if stated.sha256 is None:
            raise ModelError(f"{path}: states no hash of its {name}. Prove the files anew.")
        if stated.sha256 != sha256(model):
            raise EquivalenceError(
                f"{path}: it is about a {name} of the hash {stated.sha256[:12]}..., but {model} is "
                "another file, expected the same. Name the models that were proved; one that was "
                "in memory has to be saved and proved as a file."
            )
    return certificate


def replay(
    certificate: Certificate, found: Verification, reference: Source, candidate: Source
) -> Verification:
    """Return what checker and prover together say of a certificate.

    The prover is run if a part is unchecked and none is refuted. It has to find what the
    certificate states there, and at least the verdict and the level of the certificate.

    Args:
        certificate: what the file states.
        found: what the checker says of it.
        reference: a path or a model.
        candidate: a path or a model.

    Raises:
        ModelError: a model is not usable.
        UnsupportedError: a function cannot be inlined.
    """
    if found.is_refuted or all(part.status is Status.CHECKED for part in found.parts):
        return found
    anew = prove(
        reference,
        candidate,
        exact=Exactness.BITS if _wants_bits(certificate) else Exactness.VALUES,
        keep_inputs=certificate.kept_inputs,
        evidence=any(region.boxes or region.cases for region in certificate.regions),
    )
    regions = tuple(
        _with_prover(region, finding, anew)
        for region, finding in zip(certificate.regions, found.regions, strict=True)
    )
    problem = _overclaim(certificate, anew)
    outputs = replace(found.outputs, prover=found.outputs.status is Status.UNCHECKED)
    open_ = [part for part in regions if part.status is Status.UNCHECKED and not part.prover]
    decided = not open_ and certificate.verdict is anew.verdict
    return Verification(
        anew.verdict if decided else ProofVerdict.UNDECIDED,
        regions,
        outputs,
        Finding(Status.REFUTED, problem) if problem else found.statements,
        prover=True,
    )


def _wants_bits(certificate: Certificate) -> bool:
    """Return whether equal values were called different, as they are where bits are asked for."""
    return any(
        region.verdict is ProofVerdict.DIFFERENT and region.exactness is Exactness.VALUES
        for region in certificate.regions
    )


def _with_prover(region: Region, finding: Finding, anew: Certificate) -> Finding:
    if finding.status is not Status.UNCHECKED or region.verdict is ProofVerdict.UNDECIDED:
        return finding
    names = region.reference_value, region.candidate_value
    others = [r for r in anew.regions if (r.reference_value, r.candidate_value) == names]
    if any(_stated(region, region) == _stated(other, region) for other in others):
        return replace(finding, prover=True)
    if others:
        return Finding(Status.REFUTED, "the prover finds something else")
    return replace(finding, reason=f"{finding.reason}; the prover has no such region")


def _stated(region: Region, like: Region) -> dict[str, Any]:
    """Return the region without the evidence that another one does not list."""
    kept = replace(region, boxes=like.boxes and region.boxes, cases=like.cases and region.cases)
    return dict(json.loads(json_text(kept.to_json())))


def _overclaim(certificate: Certificate, anew: Certificate) -> str | None:
    """Return what a certificate as a whole claims beyond what the prover finds."""
    if certificate.verdict not in (anew.verdict, ProofVerdict.UNDECIDED):
        return f"the prover finds the models {anew.verdict}, not {certificate.verdict}"
    level, known = certificate.exactness, anew.exactness
    if level is not None and (known is None or level > known):
        return f"the prover finds them equal in {known}, not {level}"
    for text in (*anew.conditions, *anew.notes):
        if text not in (*certificate.conditions, *certificate.notes):
            return f"it leaves out {text!r}"
    if certificate.shown_by != anew.shown_by:
        return "the prover shows a difference by another input, or by none"
    facts = set(map(_key, anew.facts))
    wrong = [fact for fact in certificate.facts if _key(fact) not in facts]
    return f"{wrong[0].tensor!r} has another type or shape" if wrong else None


def _key(fact: ListedFact) -> str:
    return json_text(replace(fact, because="").to_json())

"""Checking certificates in tests: by the checker alone, and with the prover for what it leaves."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import onnx_ir as ir

import qgraph
from qgraph.certificate import Certificate, json_schema
from qgraph.comparison.replay import replay
from qgraph.conditions import texts_of
from qgraph.errors import EquivalenceError
from qgraph.exactness import Verification
from qgraph.text import json_text
from qgraph.verify.verify import verify as check

Model = ir.Model | qgraph.Model


def certificate(ours: Model, theirs: Model) -> dict[str, Any]:
    """What the file would hold."""
    document = dict(json.loads(json_text(qgraph.prove(ours, theirs, evidence=True).to_json())))
    jsonschema.validate(document, json_schema())
    return document


def texts(document: dict[str, Any]) -> list[str]:
    """The texts of the conditions of a certificate."""
    return texts_of(document["conditions"])


def without(document: dict[str, Any], *texts: str) -> dict[str, Any]:
    """A certificate without conditions of these texts."""
    kept = [each for each in document["conditions"] if texts_of([each])[0] not in texts]
    return document | {"conditions": kept}


def checked(document: dict[str, Any], ours: Model, theirs: Model) -> Verification:
    """What the checker alone says."""
    sides = [qgraph.load(model).ir for model in (ours, theirs)]
    return check(Certificate.from_json(document), *sides)


def leaves(document: dict[str, Any], ours: Model, theirs: Model) -> bool:
    """Whether the checker leaves a part to the prover, and refutes none."""
    found = checked(document, ours, theirs)
    return not found.is_refuted and found.counts["unchecked"] > 0 and found.verdict == "undecided"


def verify(document: dict[str, Any], ours: Model, theirs: Model) -> str:
    """The verdict that checker and prover confirm.

    Raises:
        EquivalenceError: a part is refuted.
    """
    return confirmed(document, checked(document, ours, theirs), ours, theirs)


def confirmed(document: dict[str, Any], found: Verification, ours: Model, theirs: Model) -> str:
    """The verdict of the checker, with what the prover says of the parts that it leaves.

    Raises:
        EquivalenceError: a part is refuted.
    """
    found = replay(Certificate.from_json(document), found, ours, theirs)
    for part in found.parts:
        if part.status == "refuted":
            raise EquivalenceError(f"does not hold: {part.reason}")
    return str(found.verdict)

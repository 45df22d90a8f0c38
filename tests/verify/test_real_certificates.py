"""Which share of the regions the checker decides without the prover, over real models.

``python -m tests.verify.test_real_certificates`` prints the figures of each model.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import qgraph
from qgraph import transforms
from qgraph.certificate import Certificate
from qgraph.conditions import BIAS_LAST, SUMMED_ALIKE, SUMS_OF_CODES, WHOLE_SUMS
from qgraph.errors import QGraphError
from qgraph.exactness import Verification
from qgraph.text import json_text
from qgraph.verify.verify import verify
from tests.conftest import SHARED

CHANGES = {
    **{to: transforms.ConvertDialect(to=to) for to in ("qdq", "qonnx", "openvino", "onnx")},
    "folded": transforms.FoldWeights(),
}
LEAST_SHARE = 0.95
"""Of all regions, and of those of certificates about the models as they are written."""

REWRITTEN = (BIAS_LAST, SUMMED_ALIKE, SUMS_OF_CODES, WHOLE_SUMS)
"""Conditions of proofs about models in another form than they are written in."""


def files(models: Path) -> list[Path]:
    """All models, and those from the field."""
    return sorted([*models.glob("*.onnx"), *models.glob("field/*.onnx")])


def verifications(file: Path) -> Iterator[tuple[str, Certificate, Verification]]:
    """The certificates of all changes of a model, and what the checker alone says of them."""
    model = qgraph.load(file)
    for name, change in CHANGES.items():
        changed = model.clone()
        changed.apply(change)
        proof = qgraph.prove(model, changed, evidence=True, hashes=False)
        certificate = Certificate.from_json(json.loads(json_text(proof.to_json())))
        yield name, certificate, verify(certificate, model.ir, changed.ir)


def is_as_written(certificate: Certificate) -> bool:
    """Whether a proof compares the models as they are written."""
    is_normal = any("normal form" in note for note in certificate.notes)
    return not is_normal and set(REWRITTEN).isdisjoint(certificate.conditions)


def count(models: Path, *, show: bool = False) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How many parts are of each status.

    Returns: all regions, those of models as they are written, conclusions about outputs.
    """
    regions: Counter[str] = Counter()
    written: Counter[str] = Counter()
    outputs: Counter[str] = Counter()
    for file in files(models):
        for name, certificate, found in verifications(file):
            regions.update(found.counts)
            if is_as_written(certificate):
                written.update(found.counts)
            outputs[str(found.outputs.status)] += 1
            if show:
                print(file.stem, name, certificate.verdict, found.counts, found.outputs.reason)  # noqa: T201
            assert not found.is_refuted, (file, name, found)
    return regions, written, outputs


@pytest.mark.exhaustive
def test_most_regions_are_decided_from_definitions_alone(models: Path) -> None:
    regions, written, outputs = count(models)
    assert regions["refuted"] == 0
    assert written["checked"] >= LEAST_SHARE * written.total() > 1000
    assert regions["checked"] >= LEAST_SHARE * regions.total()
    assert outputs["checked"] >= 0.8 * outputs.total()


if __name__ == "__main__":
    try:
        print(*count(SHARED / "models", show=True))  # noqa: T201
    except QGraphError as error:
        sys.exit(str(error))

"""Matching of long chains: how much work it is, and which claims there are."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.proof.certify import certify
from qgraph.proof.matching.classes import ValueClasses
from qgraph.proof.matching.match import Kind, Matching
from qgraph.proof.matching.normalise import normalised_models

HEAD = '<ir_version: 10, opset_import: ["": 21]> net (float[N] x) => (float[N] y) '


def chains(count: int) -> tuple[ir.Model, ir.Model]:
    """Return clamps of 0 and 6 between negations, written as Clip and as Max and Min."""
    clips, pairs = [], []
    for i in range(count):
        last, inner = f"{'a' if i else 'x'}{i - 1 if i else ''}", f"n{i}"
        name = "y" if i == count - 1 else f"a{i}"
        clips.append(f"{inner} = Neg ({last}) {name} = Clip ({inner}, l, h)")
        pairs.append(f"{inner} = Neg ({last}) m{i} = Max ({inner}, l) {name} = Min (m{i}, h)")
    numbers = "<float l = {0}, float h = {6}> "
    texts = ["{ " + " ".join(lines) + " }" for lines in (clips, pairs)]
    return ir.from_onnx_text(HEAD + numbers + texts[0]), ir.from_onnx_text(
        HEAD + numbers + texts[1]
    )


def matched(count: int) -> Matching:
    return Matching(*normalised_models(*chains(count), keep_inputs=False))


def test_matching_takes_work_in_proportion_to_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    work = 0
    own = ValueClasses.class_of

    def counted(self, side, value):
        nonlocal work
        work += 1
        return own(self, side, value)

    monkeypatch.setattr(ValueClasses, "class_of", counted)
    few = matched(100), work
    work = 0
    many = matched(400), work
    assert many[1] <= 4.5 * few[1]
    for matching, count in ((few[0], 100), (many[0], 400)):
        assert [claim.kind for claim in matching.claims] == [Kind.REGION] * count


def test_each_region_of_a_chain_begins_at_the_nearest_value_and_may_begin_at_the_input() -> None:
    matching = matched(100)
    for place, claim in enumerate(matching.claims):
        assert claim.entries[0][0].name == f"n{place}"
        assert claim.entries[-1][0].name == "x"


def test_a_long_chain_is_proved() -> None:
    certificate = certify(*chains(300)).certificate
    assert certificate.exactness is Exactness.BITS
    assert len(certificate.regions) == 300

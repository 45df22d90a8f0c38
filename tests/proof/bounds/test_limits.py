"""With a limit, inputs that differ are not counted where a bound answers; all else stays."""

from __future__ import annotations

import re
from typing import Any

import pytest

import qgraph
from qgraph.proof.bounds import regions
from qgraph.text import json_text
from tests.verify.test_tampering import MAKERS


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("exact", ["values", "bits"])
def test_a_certificate_is_the_same_as_if_all_inputs_were_counted(name, exact, monkeypatch):
    ours, theirs = MAKERS[name]()
    options: dict[str, Any] = {"within": "1step", "exact": exact, "evidence": True}
    soon = qgraph.prove(ours, theirs, **options).to_json()
    whole = regions.certify
    counting = {"counts": True}
    monkeypatch.setattr(regions, "certify", lambda *a, **o: whole(*a, **(o | counting)))
    later = qgraph.prove(ours, theirs, **options).to_json()
    assert [r["verdict"] for r in soon["regions"]] == [r["verdict"] for r in later["regions"]]
    # a proof that failed, and is replaced by bounds, needs no condition and no other names
    assert _without_counts(soon.pop("conditions")) <= _without_counts(later.pop("conditions"))
    assert soon.pop("facts") == later.pop("facts") or name == "kernel"
    assert json_text(soon) == json_text(later)


def _without_counts(conditions: list[str]) -> set[str]:
    return {re.sub(r"\d+ regions", "regions", condition) for condition in conditions}

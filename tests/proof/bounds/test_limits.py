"""With a limit, inputs that differ are not counted where a bound answers; all else stays."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.proof.bounds import regions
from qgraph.text import json_text
from tests.verify.test_tampering import MAKERS


@pytest.mark.cases(fast=0, slow=1)
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
    conditions = later.pop("conditions")
    assert all(condition in conditions for condition in soon.pop("conditions"))
    assert soon.pop("facts") == later.pop("facts") or name == "kernel"
    assert json_text(soon) == json_text(later)


def test_a_limit_that_no_bound_answers_is_undecided_by_name():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (int8[3,1,2] x) => (float y)
        <float s = {0.1}, int8 z = {0}, float[1,4,2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8},
         float[1,4,1] r = {0.1, 0.2, 0.3, 0.4}> {
            a = DequantizeLinear (x, s, z)
            y, h, c = LSTM <hidden_size = 1LIMIT> (a, w, r)
        }"""
    models = [ir.from_onnx_text(text.replace("LIMIT", limit)) for limit in ("", ", clip = 1e9")]
    found = qgraph.prove(*models, within="1step")
    assert found.verdict == "undecided"
    assert [str(r.reason).partition(":")[0] for r in found.regions] == ["LSTM has no bound"]

"""Codes on which a certificate says that segments lie apart, which the prover has to find again."""

from __future__ import annotations

import copy
import json
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.text import json_text
from tests.comparison.test_seen import MATMUL, WEIGHTS, conv
from tests.verify.checking import checked, confirmed, leaves

FAKE = """<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>
    net (float[1,4] x) => (float[1,2] y)
    <float low = {-12.8}, float high = {12.7}, float zero = {0}, float top = {5.1},
     float[4,2] w = {1, 2, 3, -4, OTHER, 6, -7, 8}> {
        a = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high)
        m = MatMul (a, w)
        y = org.openvinotoolkit.FakeQuantize <levels = 256> (m, zero, top, zero, top)
    }"""
REAL = FAKE.replace(
    "y = org.openvinotoolkit.FakeQuantize <levels = 256> (m, zero, top, zero, top)", "y = Relu (m)"
)
PAIRS = {
    "sums of codes": (conv(WEIGHTS), conv(WEIGHTS + 3 * (WEIGHTS > 2))),
    "a bias": (conv(WEIGHTS), conv(WEIGHTS, 0.9)),
    **{
        name: tuple(ir.from_onnx_text(text.replace("OTHER", number)) for number in ("5", "5.6"))
        for name, text in (("an input", MATMUL), ("ranges", FAKE), ("an output", REAL))
    },
}


def stated(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The certificate of a pair, and what was seen of its last region."""
    document = qgraph.prove(*PAIRS[name], evidence=True, within="0.1step").to_json()
    document = json.loads(json_text(document))
    (seen,) = [r["bound"]["seen"] for r in document["regions"] if (r["bound"] or {}).get("seen")]
    return document, seen


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("name", PAIRS)
def test_what_was_seen_is_seen_again_and_more_is_not_confirmed(name):
    document, seen = stated(name)
    found = checked(document, *PAIRS[name])
    assert found.counts["unchecked"] == 1
    reason = "from different codes" if name == "an output" else "runs no codes"
    assert reason in str([part.reason for part in found.regions])
    assert confirmed(document, found, *PAIRS[name]) == "bounded"
    for change in (
        {"difference": seen["difference"] + 5},
        {"element": [0, 9, 9, 9]},
        {"starts": []},
    ):
        before = copy.deepcopy(seen)
        seen |= change
        found = checked(document, *PAIRS[name])
        assert confirmed(document, found, *PAIRS[name]) == "undecided", change
        seen |= before


def test_a_bound_that_is_too_small_is_not_checked_whatever_was_seen():
    document, seen = stated("a bias")
    (bound,) = [r["bound"] for r in document["regions"] if (r["bound"] or {}).get("seen") == seen]
    bound |= {"max_steps": bound["max_steps"] - 1}
    assert leaves(document, *PAIRS["a bias"])

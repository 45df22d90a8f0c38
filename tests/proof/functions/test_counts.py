"""The exact counts of differing inputs that two independent implementations agreed on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qgraph.proof.functions.decide import decide
from qgraph.proof.functions.expression import Builder, Expr


def _pair(cones: SimpleNamespace, b: Builder, case: dict[str, Any]) -> tuple[Expr, Expr]:
    x = b.input
    if case["a"].startswith("FakeQuantize"):
        low, high = np.float32(case["il"]), np.float32(case["ih"])
        top = case["levels"] - 1
        reference = cones.fake_quantize_codes(b, x, low, high, case["levels"])
        form = cones.quant_codes if case["b"].startswith("Quant ") else cones.linear_codes
        return reference, form(b, x, np.float32(case["S"]), np.float32(case["Z"]), 0, top)
    s, z = np.float32(case["s"]), np.float32(case["z"])
    half = 2 ** (case["bw"] - 1)
    lo, hi = (-half, half - 1) if case["signed"] else (0, 2 * half - 1)
    if case["a"] == "x/s":
        codes = [b.Round(b.Min(b.Max(y, lo), hi)) for y in (b.Div(x, s), b.Mul(x, 1 / s))]
        return codes[0], codes[1]
    return cones.quant_codes(b, x, s, z, lo, hi), cones.linear_codes(b, x, s, z, lo, hi)


@pytest.mark.slow
def test_all_published_counts_come_out(cones: SimpleNamespace, golden: Path) -> None:
    cases = json.loads((golden / "counts.json").read_text())
    assert len(cases) == 50
    wrong = []
    for case in cases:
        reference, candidate = _pair(cones, Builder(), case)
        finding = decide(reference, candidate)
        if finding.undecided or finding.differing != case["differing_floats"]:
            wrong.append((case, finding.differing, finding.undecided))
    assert not wrong

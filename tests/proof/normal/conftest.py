"""Pairs of models as text, and whether the normal form makes them one."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.proof.functions import enumeration
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.normalise import normalised_models
from qgraph.proof.normal.normalise import normalise

HEADER = '<ir_version: 10, opset_import: ["": {}, "com.microsoft": 1]>'


HERE = Path(__file__).parent


def pairs(name: str) -> dict[str, list[str]]:
    """Return what follows a name in the blocks of a file of pairs."""
    blocks = (HERE / name).read_text("utf-8").split("\n\n")[1:]
    heads = (block.strip().splitlines() for block in blocks)
    return {head.split()[0]: [*head.split()[1:], *models] for head, *models in heads}


def parse(text: str, opset: int = 21) -> ir.Model:
    return ir.from_onnx_text(f"{HEADER.format(opset)} {text}")


def is_one(reference: ir.Model, candidate: ir.Model, level: Exactness = Exactness.VALUES) -> bool:
    """Return whether nothing is left to show of two models in normal form."""
    sides = normalised_models(load(reference).ir, load(candidate).ir, keep_inputs=False)
    form = normalise(sides, level)
    return not Matching(*(sides if form is None else form.sides)).claims


@pytest.fixture(autouse=True)
def few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all inputs would be tried one by one, try some of all magnitudes."""
    starts = enumeration._starts()[::510]
    monkeypatch.setattr(enumeration, "_starts", lambda: starts)

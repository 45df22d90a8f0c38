"""No change of a proved model that changes a value is ever proved."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from qgraph.comparison.prove import prove
from qgraph.errors import QGraphError
from qgraph.proof.functions import enumeration


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", Path(__file__).parent / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mutants = _load()


@pytest.fixture(autouse=True)
def quiet():
    """Zero scales are among the mutants; their warnings are not the point."""
    logger = logging.getLogger("qgraph")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def few_inputs(monkeypatch):
    """Where all inputs would be tried one by one, try one block in 64, of all magnitudes."""
    starts = enumeration._starts()[::128]
    monkeypatch.setattr(enumeration, "_starts", lambda: starts)


@pytest.fixture(params=mutants.BASES, ids=lambda base: base.name.replace(" ", "-"))
def base(request):
    return request.param


def judge(base, description, mutant, oracle):
    """Prove one mutant, hold the verdict to the oracle, and return what came out."""
    try:
        found = prove(base.models()[0], mutant)
    except QGraphError:
        return "unusable"
    differs = oracle.differs(mutant)
    if found.verdict == "proved":
        assert differs is False, f"{base.name}: {description} was proved, but it is different"
        return "proved"
    if found.verdict == "different" and differs is False and base.elementwise:
        # the oracle may miss a few inputs of 2**32; then the witness has to convince
        witnesses = [(r.witness, r.witness_channel or 0) for r in found.regions if r.witness]
        assert any(oracle.shows(mutant, w.input, channel) for w, channel in witnesses), (
            f"{base.name}: {description} was called different, but nothing shows it"
        )
        return "different, missed by the oracle"
    return f"{found.verdict}, oracle {differs}"


def run(base, every: int) -> Counter[str]:
    reference, _ = base.models()
    oracle = mutants.Oracle(base, reference)
    outcomes = Counter[str]()
    for side in (0, 1):
        for number, (text, mutant) in enumerate(mutants.mutants(lambda: base.models()[side])):  # noqa: B023
            if number % every == 0:
                outcomes[judge(base, text, mutant, oracle)] += 1
    return outcomes


@pytest.mark.cases(fast=5)
def test_the_unchanged_pair_is_proved(base):
    reference, candidate = base.models()
    assert prove(reference, candidate).verdict == "proved"
    assert not mutants.Oracle(base, reference).differs(candidate)


@pytest.mark.cases(fast=0, slow=1)
def test_some_mutants_of_each_pair(base):
    outcomes = run(base, 31)
    assert outcomes["different, oracle True"] >= 1


@pytest.mark.cases(fast=0, slow=5)
@pytest.mark.parametrize(
    "every",
    [
        pytest.param(50, marks=pytest.mark.slow, id="a fiftieth"),
        pytest.param(1, marks=pytest.mark.exhaustive, id="all"),
    ],
)
def test_mutants_of_each_pair(base, every):
    outcomes = run(base, every)
    assert outcomes.total() > 30 // every
    assert outcomes["different, oracle True"] > outcomes.total() // 5

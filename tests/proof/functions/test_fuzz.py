"""Random pairs of expressions on small ranges of inputs: the engine against enumeration."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from qgraph.proof.functions.decide import decide


@pytest.fixture(scope="module")
def fuzzing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzzing", Path(__file__).parent / "fuzzing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mismatches(fuzzing: ModuleType, seeds: range) -> tuple[list[object], dict[str, int]]:
    wrong: list[object] = []
    seen = dict.fromkeys(["same", "differing", "zero sign", "undefined", "trivial"], 0)
    for seed in seeds:
        sample = fuzzing.sample(seed)
        if sample is None or sample.reference is sample.candidate:
            seen["trivial"] += 1
            continue
        finding = decide(sample.reference, sample.candidate, domain=sample.domain)
        expected = fuzzing.count(sample)
        if expected is None:
            seen["undefined"] += 1
            if finding.undecided is None:
                wrong.append((seed, "undefined", finding))
            continue
        seen["differing"] += expected[0] > 0
        seen["zero sign"] += expected[1] > 0
        seen["same"] += expected == (0, 0)
        # Enumeration leaves out the infinities, which are checked last.
        is_open = finding.undecided is not None and not finding.undecided.endswith("inf")
        if is_open or (finding.differing, finding.zero_sign) != expected:
            wrong.append((seed, expected, finding))
    return wrong, seen


@pytest.mark.slow
def test_random_pairs_agree_with_enumeration(fuzzing: ModuleType) -> None:
    wrong, seen = _mismatches(fuzzing, range(240))
    assert not wrong, wrong[:3]
    assert min(seen.values()) >= 3


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(240, 1000), marks=pytest.mark.slow, id="760"),
        pytest.param(range(1000, 9000), marks=pytest.mark.exhaustive, id="8000"),
    ],
)
def test_many_random_pairs_agree_with_enumeration(fuzzing: ModuleType, seeds: range) -> None:
    wrong, seen = _mismatches(fuzzing, seeds)
    assert not wrong, wrong[:3]
    assert min(seen.values()) >= 10

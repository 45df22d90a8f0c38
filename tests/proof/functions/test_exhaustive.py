"""The engine against enumeration of all 2**32 inputs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "exhaustive", Path(__file__).parent / "exhaustive.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
exhaustive = importlib.util.module_from_spec(_SPEC)
sys.modules["exhaustive"] = exhaustive  # where dataclasses look up their module
_SPEC.loader.exec_module(exhaustive)


@pytest.mark.parametrize("name", exhaustive.CASES)
def test_published_counts(name: str) -> None:
    case = exhaustive.CASES[name]
    differing, zero_sign = exhaustive.prove(case)
    assert case.differing in (None, differing)
    assert case.zero_sign in (None, zero_sign)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", exhaustive.CASES)
def test_every_input(name: str) -> None:
    case = exhaustive.CASES[name]
    assert exhaustive.prove(case) == exhaustive.enumerate_all(case)

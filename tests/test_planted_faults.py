"""The faults of ``.ci/mutate`` can be planted: their texts occur once, and their tests exist."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_every_fault_can_be_planted():
    script = runpy.run_path(str(ROOT / ".ci" / "mutate"))
    sources = [p.read_text() for folder in script["SOURCES"] for p in (ROOT / folder).rglob("*.py")]
    for fault in script["FAULTS"]:
        assert sum(text.count(fault.text) for text in sources) == 1, fault.text
        assert fault.instead != fault.text
        assert script["files_of"](ROOT, fault.tests)


def test_there_are_faults_of_many_kinds():
    assert len(runpy.run_path(str(ROOT / ".ci" / "mutate"))["FAULTS"]) >= 50

"""Faults of rules are found where they are planted in real models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import qgraph
from qgraph.lint.engine import lint
from qgraph.transforms.deployment.lint_fixes import fix
from tests.lint.faults import FAULTS, places

_MOST_BYTES = 60_000_000


def real_models(folder: Path) -> list[Path]:
    found = sorted([*folder.glob("*.onnx"), *(folder / "field").glob("*.onnx")])
    return [path for path in found if path.stat().st_size < _MOST_BYTES]


@pytest.mark.exhaustive
def test_planted_faults_are_found_at_their_nodes(models: Path) -> None:
    planted: Counter[str] = Counter()
    missed = []
    for path in real_models(models):
        base = qgraph.load(path)
        base.freeze_inputs()
        known = {(finding.rule.id, name) for finding in lint(base) for name in finding.nodes}
        for rule, (_, plant) in FAULTS.items():
            for place in places(base.ir, rule, 2):
                model = base.clone()
                name = plant(model.ir, list(model.ir.graph)[place])
                if (rule, name) in known:
                    continue
                planted[rule] += 1
                findings = [each for each in lint(model) if each.rule.id == rule]  # asks all rules
                if not any(name in finding.nodes for finding in findings):
                    missed.append((rule, path.name, name))
    assert missed == []
    assert sum(planted.values()) >= 456
    assert set(planted) == set(FAULTS)


@pytest.mark.exhaustive
def test_fixes_of_real_models_are_done_once_and_leave_none(models: Path) -> None:
    for path in real_models(models):
        model = qgraph.load(path)
        found = fix(model)
        left = [each for each in found.after if each.fix is not None and each.fix.is_proved]
        assert left == [], path.name
        assert fix(model).passes == [], path.name

"""Faults of rules are found where they are planted in real models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import qgraph
from qgraph.lint.engine import LintFinding, lint
from qgraph.lint.rule import RULES
from qgraph.model import Model
from qgraph.transforms.deployment.lint_fixes import fix
from tests.lint.faults import FAULTS, NO_FAULT, places
from tests.lint.faults.consequences import CONSEQUENCES
from tests.lint.faults.register import batch

_MOST_BYTES = 60_000_000


def real_models(folder: Path) -> list[Path]:
    found = sorted([*folder.glob("*.onnx"), *(folder / "field").glob("*.onnx")])
    return [path for path in found if path.stat().st_size < _MOST_BYTES]


def test_each_rule_has_a_fault_or_a_reason_why_not() -> None:
    assert {*FAULTS, *NO_FAULT} == {rule.id for rule in RULES}
    assert not FAULTS.keys() & NO_FAULT
    assert len(NO_FAULT) <= 3
    assert CONSEQUENCES.keys() <= FAULTS.keys()


Known = dict[tuple[str | None, bool], list[LintFinding]]


def planted(
    base: Model, rule: str, most: int, kept: Known
) -> Iterator[tuple[str, list[LintFinding], list[LintFinding]]]:
    """Yield the name of each node with a planted fault, the findings before it, and with it.

    Args:
        base: the model; it is not changed.
        rule: id of the rule.
        most: number of nodes.
        kept: cache of the findings in the model.
    """
    entry = FAULTS[rule]
    inputs = [batch(base.ir)] if entry.has_data else []
    for place in places(base.ir, rule, most):
        clean = base
        if entry.clean is not None:
            clean = base.clone()
            entry.clean(clean.ir, list(clean.ir.graph)[place])
        model = clean.clone()
        name = entry.plant(model.ir, list(model.ir.graph)[place])
        if name is None:
            continue
        key = entry.target, entry.has_data
        if entry.clean is not None or key not in kept:
            before = list(lint(clean, entry.target, inputs=inputs))
        else:
            before = kept[key]
        if entry.clean is None:
            kept[key] = before
        known = [each for each in before if each.rule.id == rule]
        if not any(is_found(name, each) for each in known):
            yield name, before, list(lint(model, entry.target, inputs=inputs))


def is_found(name: str, finding: LintFinding) -> bool:
    """Return whether a finding names a node; an empty name stands for the model as a whole."""
    return name in finding.nodes if name else True


@pytest.mark.exhaustive
def test_planted_faults_are_found_at_their_nodes(models: Path) -> None:
    count: Counter[str] = Counter()
    missed, others = [], set()
    for path in real_models(models):
        base = qgraph.load(path)
        base.freeze_inputs()
        kept: Known = {}
        for rule in FAULTS:
            for name, before, after in planted(base, rule, 2, kept):
                count[rule] += 1
                if not any(is_found(name, each) for each in after if each.rule.id == rule):
                    missed.append((rule, path.name, name))
                known = {(each.rule.id, each.nodes) for each in before}
                others |= {
                    (rule, each.rule.id)
                    for each in after
                    if each.rule.id != rule and (each.rule.id, each.nodes) not in known
                }
    assert missed == []
    assert set(count) == set(FAULTS)
    assert count.total() >= 1419
    known = {(rule, other) for rule, ids in CONSEQUENCES.items() for other in ids}
    assert not others - known, ", ".join(map(" leads to ".join, sorted(others - known)))


@pytest.mark.exhaustive
def test_fixes_of_real_models_are_done_once_and_leave_none(models: Path) -> None:
    for path in real_models(models):
        model = qgraph.load(path)
        found = fix(model)
        left = [each for each in found.after if each.fix is not None and each.fix.is_proved]
        assert left == [], path.name
        assert fix(model).passes == [], path.name

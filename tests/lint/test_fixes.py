"""Fixes of findings: each removes its finding, keeps the model equal, and is done once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

import qgraph
from qgraph.exactness import ProofVerdict
from qgraph.lint.engine import lint, read_baseline, written_baseline
from qgraph.lint.rule import RULES, LintRule, page_of_rule, whole_model
from qgraph.transforms.deployment.lint_fixes import fix

UNDECIDED = {"QG410"}
"""The example of this rule is not bounded by the prover, so that nothing is done."""
BOTH = {"QG712"}
"""In the example of this rule, both nodes of a pair have a finding."""


@pytest.mark.cases(fast=8, slow=14)
@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.fix is not None], ids=lambda rule: rule.id
)
def test_a_fix_removes_what_its_rule_finds(rule: LintRule) -> None:
    page = page_of_rule(rule)
    model = qgraph.load(ir.from_onnx_text(whole_model(page.before)))
    before = model.clone()
    assert rule.fix is not None
    limits = () if rule.fix.is_proved else "1step"
    found = fix(model, page.target, select=rule.id, within=limits)
    assert len(found.before) == (2 if rule.id in BOTH else 1)
    if rule.id in UNDECIDED:
        assert (len(found.after), found.passes, found.listing) == (1, [], [])
        assert "undecided" in str(found.steps[0].reason)
        return
    assert len(found.after) == 0
    assert found.listing
    if rule.fix.is_proved:
        assert qgraph.prove(before, model).verdict is ProofVerdict.PROVED
    again = fix(model, page.target, select=rule.id, within=limits)
    assert (again.steps, again.listing) == ([], [])


def test_only_what_is_proved_is_done_without_a_limit() -> None:
    rule = RULES.find("QG403")
    model = qgraph.load(ir.from_onnx_text(whole_model(page_of_rule(rule).before)))
    found = fix(model)
    assert not found.passes
    assert "QG403" in {finding.rule.id for finding in found.after}
    bounded = fix(model, within="1step")
    assert [step.name for step in bounded.steps] == ["fold-batch-norm", "quantize-bias"]
    assert [step.exactness for step in bounded.steps] == ["bounded", "bounded"]
    assert not {"QG403", "QG303"} & {finding.rule.id for finding in bounded.after}
    assert fix(model, within="1step").passes == []


def test_a_limit_that_is_too_small_leaves_the_model() -> None:
    rule = RULES.find("QG303")
    model = qgraph.load(ir.from_onnx_text(whole_model(page_of_rule(rule).before)))
    before = model.to_proto().SerializeToString()
    found = fix(model, within="0.000001step")
    assert "bounded" in str(found.steps[0].reason)
    assert model.to_proto().SerializeToString() == before


TWO = """<ir_version: 10, opset_import: ["": 21]> net (float[N,2] x) => (float[N,2] y)
<float s = {0.1}, uint8 z = {0}, KIND[2,2] w = {A}, KIND[2,2] v = {A}, KIND o = {B}> {
    c = QuantizeLinear (x, s, z)
    d = DequantizeLinear (c, s, z)
    [first] e = DequantizeLinear (w, s, o)
    [one] f = MatMul (d, e)
    g = QuantizeLinear (f, s, z)
    h = DequantizeLinear (g, s, z)
    [second] k = DequantizeLinear (v, s, o)
    [two] y = MatMul (h, k)
}"""


@pytest.mark.parametrize(
    ("rule", "kind", "values", "zero", "changed"),
    [
        ("QG407", "int4", "33, 67", "0", {"first"}),  # repack can be limited to operators
        ("QG408", "uint8", "1, 2, 3, 4", "128", {"first", "second"}),
    ],
)
def test_what_is_known_is_left_or_told(rule, kind, values, zero, changed, tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    text = TWO.replace("KIND", kind).replace("{A}", f"{{{values}}}").replace("{B}", f"{{{zero}}}")
    ir.save(ir.from_onnx_text(text), path)
    model = qgraph.load(path)
    report = lint(model, select=rule)
    assert [finding.nodes[0] for finding in report] == ["first", "second"]
    baseline = tmp_path / "known.json"
    baseline.write_text(written_baseline([replace(report, findings=report.findings[1:])], tmp_path))
    found = fix(model, select=rule, known=read_baseline(baseline))
    assert (len(found.before), len(found.after)) == (1, 0)
    (step,) = found.steps
    assert step.sites == len(changed)
    assert step.beyond == tuple(changed - {"first"})
    assert ("without a finding" in str(step)) == (len(changed) > 1)
    left = {finding.nodes[0] for finding in lint(model, select=rule)}
    assert left == {"first", "second"} - changed

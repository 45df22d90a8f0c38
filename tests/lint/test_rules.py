"""Each rule finds its case and not a similar one; code, pages and documentation agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from qgraph.lint.engine import lint
from qgraph.lint.rule import RULES, LintRule, page_of_rule, pages_of, whole_model
from qgraph.reasons import CAUSES
from qgraph.targets.rules import UNMET
from qgraph.transforms import parse_spec
from tests.lint.ids import STABLE

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {
    "QG1": "correctness",
    "QG3": "silent",
    "QG4": "speed",
    "QG5": "size",
    "QG6": "portability",
    "QG7": "hygiene",
    "QG8": "data",
}
EACH = pytest.mark.parametrize("rule", list(RULES), ids=lambda rule: rule.id)
ROWS = 512
SCALED = {"QuantizeLinear", "DequantizeLinear", "Quant", "FloatQuant", "BipolarQuant"}
"""Operators whose second input is a scale."""
EXPORTER = re.compile(
    r"\b(Brevitas|NNCF|PyTorch|ModelOpt|QKeras|Quark|tf2onnx)\b"
    r"|ONNX Runtime(:|'s quantizer| \(`|'s `(quantize_|quant_pre_|MatMulNBitsQuantizer))"
    r"|The exporter has no influence"
)
"""An exporter with its setting; ONNX Runtime counts only as a quantizer, not as a runtime."""
PART = re.compile(r"ONNX Runtime(.*?)(?=Brevitas|NNCF|PyTorch|ModelOpt|QKeras|Quark|tf2onnx|$)")
OUTSIDE = re.compile(r"session\.|[a-z]+-[a-z]")
"""Keys of a session, and passes of qgraph."""
WORD = re.compile(r"[A-Za-z_]\w+")


def found(rule: LintRule, text: str, target: str | None):
    model = ir.from_onnx_text(whole_model(text))
    inputs = []
    if rule.needs_data:
        generator = np.random.default_rng(0)
        for value in model.graph.inputs:
            shape = [size if isinstance(size, int) else ROWS for size in value.shape]
            inputs.append({value.name: generator.standard_normal(shape).astype(np.float32)})
    return lint(model, target, select=rule.id, inputs=inputs)


@EACH
def test_a_rule_finds_its_case_and_not_a_similar_one(rule: LintRule) -> None:
    page = page_of_rule(rule)
    findings = found(rule, page.before, page.target)
    assert {finding.rule for finding in findings} == {rule}
    first = findings[0]
    assert not first.nodes or "here" in first.nodes
    assert first.message
    assert not found(rule, page.after, page.target).findings


@EACH
def test_a_page_says_what_why_and_what_to_do(rule: LintRule) -> None:
    page = page_of_rule(rule)
    assert page.name == rule.name
    finds, why, *figures, do = page.paragraphs[:4] if page.conditions else page.paragraphs[:3]
    assert not finds.startswith("*")
    assert why.startswith("**Why it matters.**")
    assert all(each.startswith("**Measured.**") for each in figures)
    assert do.startswith("**What to do.**")
    assert rule.summary.endswith(".")


def test_each_remedy_names_an_exporter_or_says_that_none_matters() -> None:
    remedies = {rule.id: page_of_rule(rule).remedy for rule in RULES}
    assert [each for each, text in remedies.items() if not EXPORTER.search(text)] == []


def test_the_settings_of_onnx_runtime_exist() -> None:
    """Names that follow ONNX Runtime in a remedy are words of its installed quantizer."""
    root = Path(onnxruntime.__file__).parent
    files = [*(root / "quantization").rglob("*.py"), root / "transformers" / "float16.py"]
    known = {word for file in files for word in WORD.findall(file.read_text("utf-8"))}
    named: dict[str, str] = {}
    for rule in RULES:
        for part in PART.findall(page_of_rule(rule).remedy):
            codes = (code for code in re.findall(r"`([^`]+)`", part) if not OUTSIDE.match(code))
            named |= {word: rule.id for code in codes for word in WORD.findall(code)}
    assert {word: rule for word, rule in named.items() if word not in known} == {}
    assert {"quantize_static", "per_channel", "MatMulNBitsQuantizer"} <= set(named)


def test_ids_are_stable() -> None:
    assert {rule.name: rule.id for rule in RULES} == STABLE
    assert not set(STABLE.values()) & {*CAUSES, *UNMET}


def test_each_family_has_ids_and_pages_of_its_own() -> None:
    for rule in RULES:
        assert FAMILIES[rule.id[:3]] == rule.family
    for family in FAMILIES.values():
        assert set(pages_of(family)) == {rule.id for rule in RULES if rule.family == family}


def test_each_fix_is_a_pass() -> None:
    for rule in RULES:
        if rule.fix is not None:
            assert parse_spec(rule.fix.name)
            assert rule.fix.exactness in ("bits", "values", "near", "bounded")


@pytest.mark.slow
def test_the_documentation_is_that_of_the_pages(tmp_path: Path) -> None:
    page = tmp_path / "rules.md"
    subprocess.run([sys.executable, ROOT / ".ci" / "rules", page], check=True)
    assert (ROOT / "docs" / "rules.md").read_text("utf-8") == page.read_text("utf-8")


def test_pages_name_ids_and_passes_that_exist() -> None:
    from qgraph.transforms.base import TRANSFORMS

    known = {*STABLE.values(), *CAUSES, *UNMET}
    text = (ROOT / "docs" / "rules.md").read_text("utf-8")
    assert set(re.findall(r"QG\d{3}", text)) <= known
    for name in re.findall(r"`([a-z]+(?:-[a-z]+)+)(?:\{[^`]*\})?`", text):
        if name not in STABLE:
            assert name in TRANSFORMS.names(), name


@pytest.mark.parametrize("number", [0, -1, 1e-45, 3e38, np.inf, np.nan], ids=str)
def test_all_rules_can_be_asked_about_scales_of_any_value(number: float) -> None:
    """Each model of a page, with all scales set to a number, which other rules do not expect."""
    asked = 0
    for rule in RULES:
        model = ir.from_onnx_text(whole_model(page_of_rule(rule).before))
        for value in model.graph.initializers.values():
            readers = [use for use in value.uses() if use.idx == 1]
            if value.dtype == ir.DataType.FLOAT and any(u.node.op_type in SCALED for u in readers):
                numbers = np.full(value.shape.numpy(), number, np.float32)
                value.const_value = ir.tensor(numbers, name=value.name)
                asked += 1
        lint(model, "onnxruntime-cpu")
    assert asked > 50

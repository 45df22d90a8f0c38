"""Rules of the linter: functions of the facts about a model that yield findings; their pages.

    @rule("QG701", "double-quantizer", LintLevel.WARNING)
    def double_quantizer(facts: ModelFacts) -> Iterator[Found]:
        '''Two equal quantizers follow each other.'''

Each file of rules is a family. Ids begin with the number of the family: QG1 correctness,
QG3 silent change, QG4 speed, QG5 size, QG6 portability, QG7 hygiene, QG8 data.

A page is a section of ``pages/<family>.md``. Its two models, in ONNX text without the header, are
also tests: the rule finds the node ``here`` in the first, and nothing in the second. ``@N@`` is
replaced by N numbers.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.graph.scopes import node_name
from qgraph.reasons import CAUSES, Cause, cause_of
from qgraph.records import dataclass, field
from qgraph.registry import Registry
from qgraph.targets.rules import UNMET

if TYPE_CHECKING:
    from qgraph.lint.facts import ModelFacts


class LintLevel(Choice):
    """Severity of a finding, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(LintLevel).index(self)


@dataclass(frozen=True)
class LintFix:
    """A pass that fixes the findings of a rule.

    Attributes:
        name: the pass with its options, as for ``qgraph transform -p``.
        exactness: level of equality that it keeps: ``bits``, ``values``, or ``bounded``.
    """

    name: str
    exactness: str

    @property
    def is_proved(self) -> bool:
        """Whether the pass changes no value."""
        return self.exactness in ("bits", "values")


@dataclass(frozen=True)
class Found:
    """One finding of a rule.

    Attributes:
        nodes: the nodes, the most important first; none for the model as a whole.
        message: a sentence about this case.
        figures: numbers about this case, by name.
        severity: severity of this case; None for that of the rule.
        is_fixable: whether the fix of the rule applies here.
    """

    nodes: tuple[ir.Node | str, ...]
    message: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    severity: LintLevel | None = None
    is_fixable: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(n if isinstance(n, str) else node_name(n) for n in self.nodes)


Check: TypeAlias = "Callable[[ModelFacts], Iterator[Found]]"


@dataclass(frozen=True)
class LintRule:
    """A rule.

    Attributes:
        id: stable id; never given to another rule.
        severity: severity of its findings, unless a finding has its own.
        fix: the pass that fixes its findings; None if there is none.
        targets: patterns of targets to which it applies; empty for all models.
        needs_target: whether it is applied only if a target is given.
        needs_data: whether it uses statistics of a run.
    """

    id: str
    name: str
    severity: LintLevel
    summary: str
    check: Check
    fix: LintFix | None = None
    targets: tuple[str, ...] = ()
    needs_target: bool = False
    needs_data: bool = False

    @property
    def family(self) -> str:
        """The family: the name of the rule's module."""
        return self.check.__module__.rpartition(".")[2]


RULES: Registry[LintRule] = Registry("rule", "qgraph.lint", "rules")
"""All rules by id."""


def rule(
    rule_id: str,
    name: str,
    severity: LintLevel,
    *,
    fix: LintFix | None = None,
    targets: tuple[str, ...] = (),
    needs_target: bool = False,
    needs_data: bool = False,
) -> Callable[[Check], Check]:
    """Return a decorator that registers a function as a rule; its docstring is the summary."""

    def register(check: Check) -> Check:
        summary = (check.__doc__ or "").strip().partition("\n")[0]
        registered = LintRule(
            rule_id, name, severity, summary, check, fix, targets, needs_target, needs_data
        )
        RULES.add(rule_id)(registered)
        return check

    return register


HEADER = (
    '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2, '
    '"org.openvinotoolkit": 1, "com.microsoft": 1]> g '
)
"""Header of the models of pages, unless they state their own versions."""

_REPEATED = re.compile(r"@(\d+)@")
_REMEDY = "**What to do.** "
_FIGURES = "**Measured.** "
CONDITIONS = (
    "on an AMD EPYC (x86-64 with AVX-512, VNNI and bfloat16), those of QG325 to QG329 and QG621 on "
    "an Intel Xeon that also has AMX, with ONNX Runtime 1.32.0, OpenVINO 2026.4.1 (in float32 "
    "unless stated otherwise), onnx 1.23.2 and NumPy 2.4.6. Times are "
    "processor times of one thread: medians of 15 rounds, in which both models run in turn. "
    "Processors without VNNI run other kernels: times differ there, and sums of products may "
    "saturate (QG312). In a checkout, {command} measures the figures again."
)
COMMAND = "python -m tests.lint.measured"
_SECTION = re.compile(r"^## (QG\d+) (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_MODEL = re.compile(r"^```onnx (before|after)([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class RulePage:
    """The page of a rule.

    Attributes:
        id, name: id and name of the rule.
        text: Markdown, without the models.
        before, after: models in ONNX text, with and without a finding.
        options: words after ``before``: ``target=NAME``.
    """

    id: str
    name: str
    text: str
    before: str
    after: str
    options: tuple[str, ...] = ()

    @property
    def target(self) -> str | None:
        """The target that the models are linted for."""
        return next((o.partition("=")[2] for o in self.options if o.startswith("target=")), None)

    @property
    def meaning(self) -> str:
        """The finding, and why it matters."""
        return " ".join(p for p in self.paragraphs if not p.startswith(_REMEDY)).replace("**", "")

    @property
    def conditions(self) -> str | None:
        """The source of its figures; None if it has none."""
        has = any(each.startswith(_FIGURES) for each in self.paragraphs)
        text = CONDITIONS.format(command=f"{COMMAND} {self.id}")
        return f"Figures were measured {text}" if has else None

    @property
    def remedy(self) -> str:
        """What to do."""
        return next((p.removeprefix(_REMEDY) for p in self.paragraphs if p.startswith(_REMEDY)), "")

    @property
    def paragraphs(self) -> list[str]:
        """The text as a list of paragraphs."""
        return [" ".join(each.split()) for each in self.text.split("\n\n") if each.strip()]


def whole_model(text: str) -> str:
    """Return a model of a page with its header, and ``@N@`` replaced by N numbers from 0 to 7."""
    text = _REPEATED.sub(lambda match: ", ".join(str(i % 8) for i in range(int(match[1]))), text)
    return text if text.startswith("<ir_version") else HEADER + text


def causes_of_rules() -> dict[str, Cause]:
    """Return all rules by id, in the form of causes of refusals."""
    pages = ((rule, page_of_rule(rule)) for rule in RULES)
    return {r.id: Cause(r.id, r.name, page.meaning, page.remedy) for r, page in pages}


def known_causes() -> dict[str, Cause]:
    """Return all reasons, conditions of kernels and rules, by id and in the order of ids."""
    causes = CAUSES | UNMET | causes_of_rules()
    return {name: causes[name] for name in sorted(causes)}


def known_cause(name: str) -> Cause:
    """Return the cause with an id, or of the rule with a name; OptionError if there is none."""
    ids = {rule.name: rule.id for rule in RULES}
    return cause_of(ids.get(name.lower(), name), known_causes())


def explained(rule: LintRule) -> Iterator[str]:
    """Yield the page of a rule in lines for a terminal; models are indented."""
    page = page_of_rule(rule)
    yield f"{rule.id} {rule.name} ({rule.family}, {rule.severity})"
    for paragraph in page.paragraphs:
        yield ""
        yield paragraph.replace("**", "").replace("`", "")
    if page.conditions is not None:
        yield from ("", page.conditions)
    for title, model in (("Before", page.before), ("After", page.after)):
        if not model:
            continue
        yield ""
        yield f"{title}:"
        yield from (f"    {line}" for line in model.splitlines())
    yield ""
    yield f"{fix_of(rule)} {SILENCE.format(id=rule.id)}"


SILENCE = (
    'To silence it: --ignore {id}, ignore = ["{id}"] in [tool.qgraph.lint] of pyproject.toml, or '
    "--baseline."
)


def fix_of(rule: LintRule) -> str:
    """Return a sentence about what ``--fix`` does about the findings of a rule."""
    if rule.fix is None:
        return "--fix does not change it."
    how = "equal" if rule.fix.is_proved else rule.fix.exactness
    return f"--fix applies {rule.fix.name} ({how})."


@functools.cache
def pages_of(family: str) -> dict[str, RulePage]:
    """Return the pages of a family by id."""
    text = files("qgraph.lint").joinpath(f"pages/{family}.md").read_text("utf-8")
    pages = {}
    for rule_id, name, body in _SECTION.findall(text):
        models = {heading: (model, options) for heading, options, model in _MODEL.findall(body)}
        plain = _MODEL.sub("", body).strip()
        before, options = models.get("before", ("", ""))
        after, _ = models.get("after", ("", ""))
        pages[rule_id] = RulePage(
            rule_id, name, plain, before.strip(), after.strip(), tuple(options.split())
        )
    return pages


def page_of_rule(rule: LintRule) -> RulePage:
    """Return the page of a rule; for a plugin's rule, the docstring of its function."""
    if not rule.check.__module__.startswith("qgraph.lint."):
        return RulePage(rule.id, rule.name, inspect.getdoc(rule.check) or rule.summary, "", "")
    return pages_of(rule.family)[rule.id]

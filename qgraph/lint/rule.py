"""A rule of the linter: a function of the facts about a model that yields findings.

    @rule("QG701", "double-quantizer", LintLevel.WARNING)
    def double_quantizer(facts: ModelFacts) -> Iterator[Found]:
        '''Two equal quantizers follow each other.'''

Each file of rules is a family. Ids begin with the number of the family: QG1 correctness,
QG3 silent change, QG4 speed, QG5 size, QG6 portability, QG7 hygiene, QG8 data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.graph.scopes import node_name
from qgraph.registry import Registry

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

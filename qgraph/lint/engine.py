"""Apply rules to a model, and collect their findings, without those that a file lists as known."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from qgraph.certificate import Identity
from qgraph.errors import ModelError, OptionError, QGraphError, meant, require, shown, unexpected
from qgraph.lint.data import Batch, observe
from qgraph.lint.facts import ModelFacts
from qgraph.lint.rule import RULES, Found, LintFix, LintLevel, LintRule, page_of_rule
from qgraph.model import Source, load
from qgraph.records import field, guarded, replace
from qgraph.targets.profile import Profile
from qgraph.targets.reader import profile_of
from qgraph.text import Displayed, Fields, counted, fields_json, json_text
from qgraph.version import head

Ids = str | Iterable[str]
"""Ids of rules, prefixes of ids such as ``QG4``, or names of rules."""


@guarded(frozen=True, repr=False)
class LintFinding(Fields):
    """One finding of a rule in a model.

    Attributes:
        nodes: names of the nodes, the most important first; none for the model as a whole.
        message: a sentence about this case.
        figures: numbers about this case, by name.
        fix: the pass that removes it; None if there is none.
    """

    rule: LintRule
    nodes: tuple[str, ...]
    message: str
    severity: LintLevel
    figures: Mapping[str, Any] = field(default_factory=dict)
    fix: LintFix | None = None

    def __repr__(self) -> str:
        place = repr(self.nodes[0]) if self.nodes else "the model"
        return f"<{self.severity} {self.rule.id} {self.rule.name}, {place}: {self.message}>"

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report."""
        fix = self.fix
        return {
            "id": self.rule.id,
            "rule": self.rule.name,
            **fields_json(self, "severity", "nodes", "message", "figures"),
            "fix": None if fix is None else {"pass": fix.name, "exactness": fix.exactness},
        }


@guarded(frozen=True, repr=False)
class LintReport(Displayed):
    """The findings in one model; it is also the sequence of them.

    Attributes:
        model: the file and its hash.
        findings: the worst first, then by rule.
        target: name or path of the profile; None for none.
        known: findings that a baseline lists; these are not in ``findings``.
    """

    model: Identity
    findings: tuple[LintFinding, ...]
    target: str | None = None
    known: int = 0

    @property
    def summary(self) -> str:
        """Number of findings by severity."""
        count = Counter(finding.severity for finding in self.findings)
        return ", ".join(counted(count[level], level) for level in LintLevel)

    def __iter__(self) -> Iterator[LintFinding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: int) -> LintFinding:
        return self.findings[index]

    @property
    def worst(self) -> LintLevel | None:
        """The worst severity; None without findings."""
        return min((f.severity for f in self.findings), key=lambda s: s.rank, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON report."""
        return report_of([self], self.target)

    def entry(self) -> dict[str, Any]:
        """Return the entry of the model in a JSON report about several."""
        return fields_json(self.model, "path", "sha256") | fields_json(self, "findings", "known")


def lint(
    source: Source,
    target: str | os.PathLike[str] | Profile | None = None,
    *,
    select: Ids = (),
    ignore: Ids = (),
    inputs: Sequence[Batch] = (),
) -> LintReport:
    """Return the findings of the rules in a model.

    Args:
        source: a path, an ``onnx.ModelProto``, an ``onnx_ir.Model`` or a ``Model``; not changed.
        target: name or path of a profile; without one, rules about a target's kernels are not
            applied.
        select: the rules to apply: ids, prefixes of ids, or names. All by default.
        ignore: rules to skip.
        inputs: arrays by input name, for each batch; the model is run on them for the rules about
            data.

    Raises:
        ModelError: the source is no usable model.
        OptionError: there is no such target or rule.
    """
    model = load(source)
    rules = chosen_rules(select, ignore)
    profile = None if target is None else profile_of(target)
    identity = model.identity()  # reading quantizers may state types in the model
    facts = ModelFacts(model.ir, profile)
    if inputs and any(each.needs_data for each in rules):
        facts.observation = observe(facts, inputs)
    name = None if target is None else str(target)
    return LintReport(identity, tuple(findings_of(facts, rules)), name)


def findings_of(facts: ModelFacts, rules: Iterable[LintRule]) -> list[LintFinding]:
    """Return the findings of rules in a model, the worst first."""
    with np.errstate(all="ignore"):  # scales may be zero, infinite or no numbers: rules say so
        return findings_in_order(found for each in rules for found in _findings(each, facts))


def _findings(asked: LintRule, facts: ModelFacts) -> Iterator[LintFinding]:
    if not is_asked(asked, facts.target, has_data=facts.observation is not None):
        return
    for finding in _of_rule(asked, facts):
        yield LintFinding(
            asked,
            finding.names,
            finding.message,
            finding.severity or asked.severity,
            finding.figures,
            asked.fix if finding.is_fixable else None,
        )


def _of_rule(asked: LintRule, facts: ModelFacts) -> Iterator[Found]:
    """Yield the findings of a rule; an error in a rule of a plugin names the rule."""
    try:
        yield from asked.check(facts)
    except Exception as error:
        module = asked.check.__module__
        if isinstance(error, QGraphError) or module.startswith("qgraph."):
            raise
        raise QGraphError(
            f"Rule {asked.id} of the plugin {module} failed ({unexpected(error)}), expected what "
            f"it finds. Correct the plugin, or leave the rule out with --ignore {asked.id}."
        ) from error


def is_asked(asked: LintRule, target: Profile | None, *, has_data: bool) -> bool:
    """Return whether a rule applies to a target, and to a model that is run or not."""
    if (asked.needs_target and target is None) or (asked.needs_data and not has_data):
        return False
    if not asked.targets or target is None:
        return True
    return any(fnmatchcase(target.name, pattern) for pattern in asked.targets)


def findings_in_order(findings: Iterable[LintFinding]) -> list[LintFinding]:
    """Return findings, the worst first, then by id; findings of one rule keep their order."""
    return sorted(findings, key=lambda each: (each.severity.rank, each.rule.id))


def chosen_rules(select: Ids = (), ignore: Ids = ()) -> list[LintRule]:
    """Return the rules that are selected and not ignored, by id.

    Raises:
        OptionError: an entry names no rule.
    """
    rules = list(RULES)
    wanted, unwanted = _chosen(select, rules), _chosen(ignore, rules)
    return [r for r in rules if (r.id in wanted or not wanted) and r.id not in unwanted]


def _chosen(ids: Ids, rules: Sequence[LintRule]) -> set[str]:
    entries = []
    require(ids, Iterable, "a list of rules", "ids, the beginning of ids, names or families")
    for listed in [ids] if isinstance(ids, str) else ids:
        require(listed, str, "a rule", "an id, the beginning of ids, a name or a family")
        entries += listed.split(",")
    chosen: set[str] = set()
    for entry in filter(None, map(str.strip, entries)):
        matching = {
            each.id
            for each in rules
            if each.id.startswith(entry.upper()) or entry.casefold() in (each.name, each.family)
        }
        if not matching or entry.upper() == "Q":
            rule_names = [text for each in rules for text in (each.id, each.name)]
            raise OptionError(
                f"There is no rule {shown(entry)}, expected an id such as QG112, the beginning of "
                f"ids such as QG4, a name or a family.{meant(entry, rule_names)} 'qgraph explain' "
                "lists all rules."
            )
        chosen |= matching
    return chosen


def report_of(
    models: Sequence[LintReport], target: str | None = None, failed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON report about some models, and the errors of models that could not be read."""
    findings = [finding for model in models for finding in model.findings]
    count = Counter(str(finding.severity) for finding in findings)
    rules = {finding.rule.id: finding.rule for finding in findings}
    return {
        **head("lint"),
        "target": target,
        "models": [model.entry() for model in models],
        "failed": [{"path": path, "error": error} for path, error in (failed or {}).items()],
        "rules": [
            {
                "id": each.id,
                "name": each.name,
                "family": each.family,
                "severity": str(each.severity),
                "summary": each.summary,
                "help": page_of_rule(each).remedy,
            }
            for _, each in sorted(rules.items())
        ],
        "summary": {str(level): count[str(level)] for level in LintLevel}
        | {"models": len(models), "known": sum(model.known for model in models)},
    }


__all__ = ["Found", "LintFinding", "LintReport", "lint", "report_of"]


_Key = tuple[str, str, tuple[str, ...]]


@guarded(frozen=True)
class LintBaseline:
    """Known findings: number of findings of each rule and node, by path of the model.

    Attributes:
        findings: number of findings by path, id and nodes.
        folder: the folder that paths are relative to.
    """

    findings: Mapping[_Key, int]
    folder: Path = Path()

    def without(self, result: LintReport) -> LintReport:
        """Return the findings in a model that are not known."""
        left = Counter(self.findings)
        kept: list[LintFinding] = []
        for finding in result.findings:
            key = _key(result, finding, self.folder)
            if left[key] > 0:
                left[key] -= 1
            else:
                kept.append(finding)
        return replace(result, findings=tuple(kept), known=len(result.findings) - len(kept))


def written_baseline(results: Iterable[LintReport], folder: Path) -> str:
    """Return the text of a file in a folder, with all findings in some models."""
    count = Counter(_key(each, finding, folder) for each in results for finding in each.findings)
    entries = [
        {"path": path, "id": rule_id, "nodes": list(nodes), "count": number}
        for (path, rule_id, nodes), number in sorted(count.items())
    ]
    return json_text({**head("lint-baseline"), "findings": entries})


def read_baseline(path: Path) -> LintBaseline:
    """Return the known findings of a file.

    Raises:
        ModelError: it cannot be read, or is no such file.
    """
    if not path.is_file():
        raise ModelError(
            f"{path}: there is no such file, expected a baseline. Write it with 'qgraph lint "
            "--write-baseline'."
        )
    try:
        document = json.loads(path.read_text("utf-8"))
        entries: Sequence[Mapping[str, Any]] = document["findings"]
        counts = {
            (str(e["path"]), str(e["id"]), tuple(map(str, e["nodes"]))): int(e["count"])
            for e in entries
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"the field {error} is missing" if isinstance(error, KeyError) else error
        raise ModelError(
            f"{path}: is no baseline ({what}), expected a file that 'qgraph lint "
            "--write-baseline' wrote. Write it again."
        ) from error
    return LintBaseline(counts, path.parent)


def _key(result: LintReport, finding: LintFinding, folder: Path) -> _Key:
    path = "" if result.model.path is None else _relative(result.model.path, folder)
    return path, finding.rule.id, finding.nodes


def _relative(path: str, folder: Path) -> str:
    """Return a path as seen from a folder, so that it is the same wherever a command runs."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(path).absolute().as_posix()  # on another drive

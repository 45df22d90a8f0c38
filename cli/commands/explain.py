"""``qgraph explain``: describe the id of a rule, a refusal or an undecided reason."""

from __future__ import annotations

from collections.abc import Iterator

import click

from qgraph.cli import completion, options
from qgraph.cli.output import show, show_paragraph
from qgraph.cli.tables import show_table
from qgraph.reasons import CAUSES, Cause, cause_of
from qgraph.reporting.view import Row, Table
from qgraph.targets.unmet import UNMET


@click.command(name="explain")
@click.argument("reason_id", metavar="[ID]", required=False, shell_complete=completion.ids)
@options.talk_options
def command(reason_id: str | None) -> None:
    """Explain the id of a rule or of a reason, or list all ids.

    Each refused site in a report, each undecided region in a certificate and each finding of lint
    has an id. QG001 to QG050 are refusals, QG051 to QG070 undecided comparisons, QG071 to QG099
    parts of certificates that are not checked. QG201 to QG299 are conditions of kernels that a
    layer does not meet. All others are rules of 'qgraph lint'; the name of a rule, such as
    bias-scale, is also accepted.
    """
    from qgraph.lint.rule import RULES, LintRule
    from qgraph.lint.rule_pages import explained

    rules = {rule.id: rule for rule in RULES}
    by_name = {rule.name: rule.id for rule in RULES}
    reasons = CAUSES | UNMET
    if reason_id is None:
        rows: list[Row] = [[c.id, c.name, _first(c.meaning)] for c in reasons.values()]
        rows += [[each.id, each.name, each.summary.rstrip(".")] for each in rules.values()]
        rows.sort(key=lambda row: str(row[0]))
        show_table(Table("reasons", ["id", "name", "meaning"], rows))
        return
    causes: dict[str, Cause | LintRule] = {**reasons, **rules}
    entry = cause_of(by_name.get(reason_id.lower(), reason_id), causes)
    for line in explained(entry) if isinstance(entry, LintRule) else _of_cause(entry):
        if line.startswith(" "):
            show(line)  # a model, whose lines stay whole
        else:
            show_paragraph(line)


def _of_cause(cause: Cause) -> Iterator[str]:
    yield f"{cause.id} {cause.name}"
    yield ""
    yield cause.meaning
    yield f"What to do: {cause.remedy}"


def _first(text: str) -> str:
    return text.split(". ")[0].split(": ")[0].rstrip(".")

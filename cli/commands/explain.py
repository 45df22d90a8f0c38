"""``qgraph explain``: describe the id of a rule, a refusal or an undecided reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.documents import advise, show_document
from qgraph.cli.output import Talk, show, show_paragraph
from qgraph.reporting.view import Cell, Row, Section, Table


@click.command(name="explain")
@click.argument("reason_id", metavar="[ID]", required=False, shell_complete=options.offering("ids"))
@options.table_options()
@options.talk_options
@click.pass_obj
def command(talk: Talk, reason_id: str | None) -> None:
    """Explain the id of a rule or of a reason, or list all ids.

    Each refused site in a report, each undecided region in a certificate and each finding of lint
    has an id. QG000 to QG050 are refusals, QG051 to QG070 undecided comparisons, QG071 to QG099
    parts of certificates that are not checked. QG201 to QG299 are conditions of kernels that a
    layer does not meet. All others are rules of 'qgraph lint'; the name of a rule, such as
    bias-scale, is also accepted.
    """
    from qgraph.lint.rule import RULES, explained, known_cause, known_causes

    if reason_id is None:
        document = {"ids": [cause.to_json() for cause in known_causes().values()]}
        show_document(talk, document, lambda shown: _sections(shown["ids"]))
        return
    cause = known_cause(reason_id)
    if talk.form != "table":
        show_document(talk, cause.to_json(), lambda shown: _sections([shown]))
        return
    rule = next((rule for rule in RULES if rule.id == cause.id), None)
    lines = [f"{cause.id} {cause.name}", "", cause.meaning, f"What to do: {cause.remedy}"]
    for line in lines if rule is None else explained(rule):
        if line.startswith(" "):
            show(line)  # a model, whose lines stay whole
        else:
            show_paragraph(line)
    advise(talk, cause.to_json() | {"is_rule": rule is not None})


def _sections(causes: list[Mapping[str, Any]]) -> list[Section]:
    """Return the table of causes; terminals show only the first sentence of each meaning."""
    rows: list[Row] = [
        [c["id"], c["name"], Cell(_first(c["meaning"]), full=c["meaning"])] for c in causes
    ]
    return [Section("Reasons", tables=[Table("reasons", ["id", "name", "meaning"], rows)])]


def _first(text: str) -> str:
    return text.split(". ")[0].split(": ")[0].rstrip(".")

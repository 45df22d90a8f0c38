"""``qgraph explain``: what the id of a refusal or of an undecided reason means."""

from __future__ import annotations

import click

from qgraph.cli import options
from qgraph.cli.output import show, show_paragraph, show_table
from qgraph.reasons import CAUSES, cause_of
from qgraph.reporting.view import Row, Table
from qgraph.targets.unmet import UNMET


@click.command(name="explain")
@click.argument("reason_id", metavar="[ID]", required=False)
@options.talk_options
def command(reason_id: str | None) -> None:
    """Explain the id of a reason, such as QG001, or list all ids.

    Reports give an id to each refused site, and certificates to each undecided region: see
    reason_id. Ids up to QG050 are refusals, those from QG051 on are undecided comparisons. Those
    from QG201 on are conditions of kernels that a layer does not meet.
    """
    known = CAUSES | UNMET
    if reason_id is None:
        rows: list[Row] = [
            [cause.id, cause.name, _first(cause.meaning)] for cause in known.values()
        ]
        show_table(Table("reasons", ["id", "name", "meaning"], rows))
        return
    cause = cause_of(reason_id, known)
    show_paragraph(f"{cause.id} {cause.name}")
    show()
    show_paragraph(cause.meaning)
    show_paragraph(f"What to do: {cause.remedy}")


def _first(text: str) -> str:
    return text.split(". ")[0].split(": ")[0].rstrip(".")

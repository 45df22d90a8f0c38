"""``qgraph passes``: all passes and their options."""

from __future__ import annotations

import click

from qgraph.cli import options
from qgraph.cli.output import show, show_paragraph, show_table
from qgraph.exactness import Exactness
from qgraph.reporting.view import Row, Table


@click.command(name="passes")
@click.argument("name", required=False)
@options.talk_options
def command(name: str | None) -> None:
    """List all passes, or describe the options of the pass NAME."""
    from qgraph.transforms import TRANSFORMS, describe

    if name is None:
        known = [describe(cls) for cls in TRANSFORMS]
        listed: list[Row] = [[p.name, _kept(p.preserves), p.summary] for p in known]
        show_table(Table("passes", ["pass", "keeps", "what it does"], listed))
        return
    info = describe(TRANSFORMS.find(name))
    show_paragraph(f"{info.name}: {info.summary}")
    if info.preserves is Exactness.DIFFERENT:
        show_paragraph("Changes what a model computes; the report has the exact extent.")
    else:
        show_paragraph(f"Keeps models equal in {info.preserves}, unless an option says otherwise.")
    show()
    rows: list[Row] = [
        [o.name, o.kind, "required" if o.default is None else o.default, o.help]
        for o in info.options
    ]
    if rows:
        show_table(Table("options", ["option", "value", "default", "meaning"], rows))
    else:
        show("It has no options.")


def _kept(level: Exactness) -> str:
    return "-" if level is Exactness.DIFFERENT else str(level)

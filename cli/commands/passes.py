"""``qgraph passes``: list all passes and their options."""

from __future__ import annotations

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.output import Talk


@click.command(name="passes")
@click.argument("name", required=False, shell_complete=options.offering("passes"))
@options.table_options()
@options.talk_options
@click.pass_obj
def command(talk: Talk, name: str | None) -> None:
    """List all passes, or describe the options of the pass NAME."""
    from qgraph.reporting.rewrite_view import pass_sections, passes_section
    from qgraph.transforms import TRANSFORMS, describe

    if name is None:
        document = {"passes": [describe(cls).to_json() for cls in TRANSFORMS]}
        show_document(talk, document, lambda shown: [passes_section(shown["passes"])])
    else:
        show_document(talk, describe(TRANSFORMS.find(name)).to_json(), pass_sections)

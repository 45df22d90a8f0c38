"""``qgraph info``: show what a model contains."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.output import Talk
from qgraph.cli.several import several_models


@click.command(name="info")
@several_models
@options.table_options()
@options.talk_options
@click.pass_obj
def command(talk: Talk, model: Path) -> None:
    """Show what MODEL contains, and which runtimes can load it.

    The last table is computed from the known rules of each runtime; the model is not run. "yes"
    means that no known rule of the runtime rejects the model. -v prints all remarks.
    """
    from qgraph.inventory.overview import overview
    from qgraph.model import load
    from qgraph.reporting.model_view import info_sections

    document = {"path": str(model), **overview(load(model).ir).to_json()}
    show_document(talk, document, info_sections, (model,))

"""``qgraph info``: what a model contains."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.output import Talk, show, show_sections
from qgraph.cli.several import several_models


@click.command(name="info")
@several_models
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.talk_options
@click.pass_obj
def command(talk: Talk, model: Path, as_json: bool) -> None:
    """Show what MODEL contains, and which runtimes can load it.

    The last table follows from the known rules of each runtime; the model is not run. "yes" means
    that no known rule of the runtime rejects the model. -v prints all remarks.
    """
    from qgraph.inventory.overview import overview
    from qgraph.model import load
    from qgraph.reporting.model_view import info_sections
    from qgraph.text import json_text

    document = {"path": str(model), **overview(load(model).ir).to_json()}
    if as_json:
        show(json_text(document).rstrip())
    else:
        show_sections(talk, info_sections(document))

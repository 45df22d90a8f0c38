"""``qgraph targets``: show profiles of runtimes and chips."""

from __future__ import annotations

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.output import Talk


@click.command(name="targets")
@click.argument("name", required=False, shell_complete=options.offering("targets"))
@options.table_options()
@options.talk_options
@click.pass_obj
def command(talk: Talk, name: str | None) -> None:
    """List the profiles of targets, or show the profile NAME.

    NAME is a listed name, or the path of a profile that you wrote, such as ./mychip.toml.
    Each fact is shown with its sources and their dates.
    """
    from qgraph.reporting.model_view import target_sections, targets_section
    from qgraph.targets.reader import profile_of, profiles

    if name is None:
        document = {"targets": [profile.to_json() for profile in profiles()]}
        show_document(talk, document, lambda shown: [targets_section(shown["targets"])])
    else:
        show_document(talk, profile_of(name).to_json(), target_sections, (name,))

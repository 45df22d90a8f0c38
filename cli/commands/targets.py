"""``qgraph targets``: what is known of runtimes and chips."""

from __future__ import annotations

import click

from qgraph.cli import completion, options
from qgraph.cli.output import Talk, show, show_sections


@click.command(name="targets")
@click.argument("name", required=False, shell_complete=completion.targets)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.talk_options
@click.pass_obj
def command(talk: Talk, name: str | None, as_json: bool) -> None:
    """List the profiles of targets, or show the profile NAME.

    NAME is one of the listed names, or the path of a profile of your own, such as ./mychip.toml.
    Each fact is shown with its sources and their dates.
    """
    from qgraph.reporting.target_view import target_sections, targets_section
    from qgraph.targets.reader import profile_of, profiles
    from qgraph.text import json_text

    if name is None:
        listed = [profile.to_json() for profile in profiles()]
        document = {"targets": listed}
        sections = [targets_section(listed)]
    else:
        document = profile_of(name).to_json()
        sections = list(target_sections(document))
    if as_json:
        show(json_text(document).rstrip())
    else:
        show_sections(talk, sections)

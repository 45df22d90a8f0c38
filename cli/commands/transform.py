"""``qgraph transform``: apply passes in a given order."""

from __future__ import annotations

import click

from qgraph.cli import completion, options, rewriting
from qgraph.cli.files import Views, view_options
from qgraph.cli.output import Talk


@click.command(name="transform", epilog=rewriting.EPILOG)
@rewriting.rewrite_options
@view_options("html", "sarif", "markdown")
@options.repeated(
    *("-p", "--pass", "specs"),
    metavar="SPEC",
    text="Pass to apply, such as 'convert{to=qdq,exact=bits}'; repeat for others.",
    shell_complete=completion.passes,
    required=True,
)
@options.talk_options
@click.pass_obj
def command(
    talk: Talk, files: rewriting.RewriteFiles, views: Views, specs: tuple[str, ...]
) -> None:
    """Apply passes to MODEL in the order given.

    'qgraph passes' lists all passes, and 'qgraph passes NAME' the options of one.
    """
    from qgraph.transforms import parse_spec

    rewriting.run(talk, "transform", files, [parse_spec(spec) for spec in specs], views)

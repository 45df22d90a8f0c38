"""``qgraph diff``: compare the quantizers of two models.

Differences are printed as stable text, coloured on terminals.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.documents import advise, show_document
from qgraph.cli.output import Talk, console, is_colourful, show
from qgraph.text import printable

if TYPE_CHECKING:
    from qgraph.inventory.differences import ModelDifferences

_STYLES = {"!": "yellow", "+": "green", "-": "red"}
"""Style of a line by its first character."""


def show_differences(talk: Talk, differences: ModelDifferences, *, is_brief: bool) -> None:
    """Print the differences without wrapping lines.

    With ``is_brief``, equal quantizers are only counted.
    """
    for note in differences.notes:
        talk.note(note)
    lines = differences.to_text(is_brief=is_brief).splitlines()
    if not is_colourful(sys.stdout):
        for line in lines:
            show(line)
        return
    from rich.text import Text

    screen = console()
    for line in lines[:-1]:
        screen.print(Text(printable(line), style=_STYLES.get(line[:1], "")), soft_wrap=True)
    screen.print(Text(lines[-1], style="bold green" if differences.is_same else "bold red"))


@click.command(name="diff")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@options.table_options()
@options.keep_inputs_option
@options.talk_options
@click.pass_obj
def command(talk: Talk, reference: Path, candidate: Path, keep_inputs: bool) -> int:
    """Compare the quantizers of two models.

    For each pair of quantizers, the format, bits, granularity of the scale, scales (by digest),
    zero point and rounding are compared. Dialects and names are ignored. Lines begin with ! for a
    change, and with - or + for a quantizer that only one model has; -q prints only these lines.

    Exit status: 0 the same, 1 different.
    """
    from qgraph.inventory.differences import diff
    from qgraph.model import load
    from qgraph.reporting.model_view import diff_sections

    differences = diff(load(reference).ir, load(candidate).ir, keep_inputs=keep_inputs)
    if talk.form == "table":
        show_differences(talk, differences, is_brief=talk.quiet)
        advise(talk, differences.to_json(), (reference, candidate))
    else:
        show_document(talk, differences.to_json(), diff_sections, (reference, candidate))
    return int(not differences.is_same)

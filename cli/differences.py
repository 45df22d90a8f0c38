"""How the differences of quantizers are shown: a stable text, coloured on terminals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from qgraph.cli.output import Talk, console, is_colourful, show
from qgraph.markup import printable

if TYPE_CHECKING:
    from qgraph.inventory.differences import Differences

_STYLES = {"!": "yellow", "+": "green", "-": "red"}
"""Of lines, by the mark that they begin with."""


def show_differences(talk: Talk, found: Differences, *, is_brief: bool) -> None:
    """Print the differences; lines are not wrapped, whatever the width.

    With ``is_brief``, what is the same is counted only.
    """
    for note in found.notes:
        talk.note(note)
    lines = found.to_text(is_brief=is_brief).splitlines()
    if not is_colourful(sys.stdout):
        for line in lines:
            show(line)
        return
    from rich.text import Text

    screen = console()
    for line in lines[:-1]:
        screen.print(Text(printable(line), style=_STYLES.get(line[:1], "")), soft_wrap=True)
    screen.print(Text(lines[-1], style="bold green" if found.is_same else "bold red"))

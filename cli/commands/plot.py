"""``qgraph plot``: draw a quantizer."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.documents import advise
from qgraph.cli.files import planned
from qgraph.cli.output import ProgressBar, Talk, show_paragraph

_FORMATS = (".svg", ".png")


@click.command(name="plot")
@options.model_argument
@click.option(
    "--node",
    required=True,
    metavar="NAME",
    shell_complete=options.offering("nodes"),
    help="Name of a node of the quantizer, such as 'qgraph info' lists.",
)
@options.file_option(
    "-o",
    "--output",
    "out",
    text="Picture to write, such as scale.svg.",
    metavar="FILE.svg|png",
    required=True,
)
@options.file_option(
    "--compare",
    text="Also draw the quantizer at the same position of this model, and the differences.",
    metavar="OTHER",
)
@options.number_option(
    "--channel", text="Index of the channel to draw [the one that differs most, else 0].", least=0
)
@options.talk_options
@click.pass_obj
def command(
    talk: Talk, model: Path, node: str, out: Path, compare: Path | None, channel: int | None
) -> None:
    """Draw the output and the error of a quantizer over its input.

    Thresholds are exact: they are computed from the operators' definitions, not sampled. With
    --compare, inputs on which the quantizers differ are marked and counted, and one of them is
    shown with its neighbouring floats. Needs qgraph[report].
    """
    from qgraph.inventory.pictures import plot_data
    from qgraph.model import load
    from qgraph.reporting.drawing import plot, require_drawing

    with planned([out], models=(model, compare)) as outputs:
        suffix = out.suffix.lower()
        if suffix not in _FORMATS:
            raise click.UsageError(f"{out} is neither .svg nor .png. Choose one of these.")
        require_drawing("a plot")
        with ProgressBar(talk) as bar:
            bar.tell("drawing", 0, 0)
            other = None if compare is None else load(compare).ir
            data = plot_data(load(model).ir, node, compare=other, channel=channel)
            picture = plot(data, format=suffix[1:])
        with outputs.open(out) as file:
            file.write(picture)
        show_paragraph(f"wrote {out}")
    advise(talk, {}, (model,) if compare is None else (model, compare))

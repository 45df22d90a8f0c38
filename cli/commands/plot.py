"""``qgraph plot``: a quantizer as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.output import Talk, show_paragraph
from qgraph.cli.progress import ProgressBar
from qgraph.cli.targets import planned

_FORMATS = (".svg", ".png")


@click.command(name="plot")
@options.model_argument
@click.option("--node", required=True, metavar="NAME", help="A node of the quantizer.")
@click.option(
    "-o",
    "--output",
    "out",
    type=options.file_path,
    required=True,
    metavar="FILE.svg|png",
    help="The picture to write.",
)
@click.option(
    "--compare",
    type=options.file_path,
    metavar="OTHER",
    help="Draw what is in its place in another model too, and where they differ.",
)
@click.option(
    "--channel",
    type=click.IntRange(min=0),
    metavar="N",
    help="Which element of its parameters [the one that differs most, or 0].",
)
@options.talk_options
@click.pass_obj
def command(
    talk: Talk, model: Path, node: str, out: Path, compare: Path | None, channel: int | None
) -> None:
    """Draw a quantizer of MODEL: output and error over its input.

    Nothing is sampled: thresholds are where the operators' definitions put them. With --compare the
    inputs on which the two differ are marked and counted, and one place is enlarged to single
    floats. Needs qgraph[report].
    """
    from qgraph.files import replacing
    from qgraph.reporting.plot import plot

    with planned([out], models=(model, compare)) as outputs:
        kind = out.suffix.lower()
        if kind not in _FORMATS:
            raise click.UsageError(f"{out} is neither .svg nor .png. Choose one of these.")
        with ProgressBar(talk) as bar:
            bar.tell("drawing", 0, 0)
            picture = plot(model, node, compare=compare, channel=channel, format=kind[1:])
        with replacing(out, outputs) as file:
            file.write(picture)
        show_paragraph(f"wrote {out}")

"""``qgraph fold``: constant quantizers as packed codes."""

from __future__ import annotations

import click

from qgraph.cli import options, rewriting
from qgraph.cli.output import Talk
from qgraph.exactness import Exactness


@click.command(name="fold", epilog=options.REWRITE_EPILOG)
@options.rewrite_options
@options.exact_option
@options.opset_option
@options.talk_options
@click.pass_obj
def command(talk: Talk, files: options.Rewrite, exact: str, opset: int | None) -> None:
    """Store constant quantizers of MODEL as packed codes.

    Their float values leave the model; a DequantizeLinear gives them back.
    """
    from qgraph.transforms import FoldWeights

    rewriting.run(talk, "fold", files, [FoldWeights(exact=Exactness(exact), opset=opset)])

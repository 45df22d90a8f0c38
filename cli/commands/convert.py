"""``qgraph convert``: every quantizer in another dialect."""

from __future__ import annotations

import click

from qgraph.cli import options, rewriting
from qgraph.cli.output import Talk
from qgraph.exactness import Exactness


@click.command(name="convert", epilog=options.REWRITE_EPILOG)
@options.rewrite_options
@click.option(
    "--to",
    required=True,
    metavar="DIALECT",
    help="Target: qdq, qonnx, openvino, or onnx (plain float operators).",
)
@options.exact_option
@options.opset_option
@options.talk_options
@click.pass_obj
def command(talk: Talk, files: options.Rewrite, to: str, exact: str, opset: int | None) -> None:
    """Respell every quantizer of MODEL in another dialect.

    With --to qdq constant quantizers become packed codes. What would fall below --exact is left as
    it was, and reported.
    """
    from qgraph.transforms import ConvertDialect

    step = ConvertDialect(to=to, exact=Exactness(exact), opset=opset)
    rewriting.run(talk, "convert", files, [step])

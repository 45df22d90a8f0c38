"""``qgraph convert``: convert all quantizers to another dialect."""

from __future__ import annotations

import click

from qgraph.cli import options
from qgraph.cli.commands.transform import EPILOG, RewriteFiles, rewrite_options, run
from qgraph.cli.files import Views, view_options
from qgraph.cli.output import Talk
from qgraph.exactness import Exactness


@click.command(name="convert", epilog=EPILOG)
@rewrite_options
@view_options("html", "sarif", "markdown")
@click.option(
    "--to",
    required=True,
    metavar="DIALECT",
    shell_complete=options.offering("dialects"),
    help="Target: qdq, qonnx, openvino, or onnx (standard float operators).",
)
@options.exact_option
@options.opset_option
@options.word_option(
    "--fake-quantize",
    ["reference", "plugin"],
    "Arithmetic of FakeQuantize: its definition, or that of OpenVINO's CPU plugin.",
    "reference",
)
@click.option(
    "--values",
    default="*",
    metavar="PATTERNS",
    help="Names of the results of quantizers to convert, with * and ?, joined by |; ! before a "
    "pattern excludes them [all].",
)
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    files: RewriteFiles,
    views: Views,
    to: str,
    exact: str,
    opset: int | None,
    fake_quantize: str,
    values: str,
) -> None:
    """Convert all quantizers in MODEL to another dialect.

    With --to qdq, constant quantizers become packed codes. A quantizer that cannot be converted at
    the level given by --exact is left unchanged and listed with the reason.
    """
    from qgraph.ops.definitions.fake_quantize import Arithmetic
    from qgraph.transforms import ConvertDialect

    meaning = Arithmetic(fake_quantize)
    step = ConvertDialect(
        to=to, exact=Exactness(exact), opset=opset, fake_quantize=meaning, values=values
    )
    run(talk, "convert", files, [step], views)

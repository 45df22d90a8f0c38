"""``qgraph fold``: store constant quantizers as packed codes."""

from __future__ import annotations

import click

from qgraph.cli import options
from qgraph.cli.commands.transform import EPILOG, RewriteFiles, rewrite_options, run
from qgraph.cli.files import Views, view_options
from qgraph.cli.output import Talk
from qgraph.exactness import Exactness


@click.command(name="fold", epilog=EPILOG)
@rewrite_options
@view_options("html", "sarif", "markdown")
@options.exact_option
@options.opset_option
@options.word_option(
    "--scale-type",
    ["float32", "smallest"],
    "Type of scales; smallest: E8M0, FP8, float16 or bfloat16 if no scale changes.",
    "float32",
)
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    files: RewriteFiles,
    views: Views,
    exact: str,
    opset: int | None,
    scale_type: str,
) -> None:
    """Store the quantized weights of MODEL as packed codes.

    The float weights are replaced by codes and a DequantizeLinear. Large weights in data files are
    read and written in pieces. Each decoded value is compared with the quantized value while OUT is
    written.
    """
    from qgraph.quantizers.dialects.parts import Scales
    from qgraph.transforms import FoldWeights

    step = FoldWeights(exact=Exactness(exact), opset=opset, scale_type=Scales(scale_type))
    run(talk, "fold", files, [step], views)

"""``qgraph diff``: the quantizers of two models side by side."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.differences import show_differences
from qgraph.cli.output import Talk, show


@click.command(name="diff")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.keep_inputs_option
@options.talk_options
@click.pass_obj
def command(talk: Talk, reference: Path, candidate: Path, as_json: bool, keep_inputs: bool) -> int:
    """Compare the quantizers of two models.

    Each quantizer of REFERENCE stands beside its counterpart in CANDIDATE: format, bits, reach of a
    scale, scales by digest, zero point, rounding. Dialects do not matter, nor do names. Lines begin
    with ! for a change, - and + for quantizers of one model only; -q leaves out the others.

    Exit status: 0 the same, 1 different.
    """
    from qgraph.files import json_text
    from qgraph.inventory.differences import diff

    found = diff(reference, candidate, keep_inputs=keep_inputs)
    if as_json:
        show(json_text(found.to_json()).rstrip())
    else:
        show_differences(talk, found, is_brief=talk.quiet)
    return int(not found.is_same)

"""``qgraph reduce``: cut two models down to the part that still differs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.documents import advise
from qgraph.cli.files import planned, protect_models
from qgraph.cli.inputs import InputOptions, input_options, probes_option
from qgraph.cli.output import ProgressBar, Talk, show_paragraph
from qgraph.effort import is_over
from qgraph.text import amount, counted

if TYPE_CHECKING:
    from qgraph.comparison.reduce import Reduction


@click.command(name="reduce")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@options.file_option(
    "-o",
    "--output",
    "folder",
    text="Folder for both parts and their inputs.",
    metavar="FOLDER",
    required=True,
)
@input_options
@probes_option
@options.backend_option
@options.timeout_option
@options.talk_options
@click.pass_obj
def command(
    talk: Talk, reference: Path, candidate: Path, folder: Path, inputs: InputOptions, backend: str
) -> int:
    """Cut two models down to the nodes where they begin to differ.

    REFERENCE and CANDIDATE run on the same inputs, as in qgraph check. The nodes that compute the
    first differing tensor from equal tensors are written to reference.onnx and candidate.onnx in
    FOLDER, and one sample on which this tensor differs to inputs.npz.

    Exit status: 0 written, 4 no difference on these inputs, or none before --timeout is reached. If
    it is reached later, the parts may be larger than necessary.
    """
    from qgraph.comparison.reduce import CANDIDATE, INPUTS, REFERENCE, reduce
    from qgraph.model import load

    arrays_read = (inputs.bundle, *inputs.files.values())
    with planned((), files=arrays_read) as outputs:
        protect_models(outputs, (reference, candidate))
        for name in (REFERENCE, CANDIDATE, INPUTS):
            outputs.expect_free(folder / name)
        with ProgressBar(talk) as bar:
            bar.tell(f"reading {reference.name}", 0, 0)
            first, second = load(reference), load(candidate)
            feeds = inputs.feeds(talk, first)
            bar.tell("looking for the first difference", 0, 0)
            reduction = reduce(first, second, inputs.checked(feeds), backend=backend)
            if is_over():
                talk.note("the time limit was reached, so the parts may be larger than necessary")
            files = reduction.save(folder, outputs)
        _show(reduction, files, backend)
    advise(talk, {}, files[:2])
    return 0


def _show(reduction: Reduction, files: Sequence[Path], backend: str) -> None:
    operator = f", made by {reduction.op} {reduction.node!r}," if reduction.op else ""
    show_paragraph(
        f"tensor {reduction.tensor!r}{operator} differs in {reduction.compared.mismatches} of "
        f"{reduction.compared.elements} values, by up to {amount(reduction.compared.max_abs)}"
    )
    for name, nodes, before in zip(
        ("reference", "candidate"), reduction.nodes, reduction.nodes_before, strict=True
    ):
        show_paragraph(f"{name}: {counted(nodes, 'node')} of {before}")
    replay = ["qgraph", "check", *map(str, files[:2]), "--inputs", str(files[2])]
    replay += [] if backend == "auto" else ["--backend", backend]
    show_paragraph(f"replay: {shlex.join(replay)}")

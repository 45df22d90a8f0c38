"""``qgraph run``: the outputs of a model."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.output import Talk
from qgraph.cli.progress import ProgressBar


@click.command(name="run")
@options.model_argument
@options.input_options
@click.option(
    "-o",
    "--output",
    "out",
    type=options.file_path,
    metavar="FILE",
    help="Write the outputs (.npz).",
)
@options.backend_option
@click.option(
    "--tap", "taps", metavar="TENSOR", multiple=True, help="A tensor to show besides the outputs."
)
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    model: Path,
    inputs: options.Inputs,
    out: Path | None,
    backend: str,
    taps: tuple[str, ...],
) -> None:
    """Run MODEL and show its outputs, or write them to a file.

    Inputs come from files, or are random. Several random batches are run one after the other, and
    their outputs joined along the first axis.
    """
    from qgraph import load
    from qgraph.cli import arrays
    from qgraph.equivalence.inputs import make_inputs
    from qgraph.executor import prepare

    options.refuse_overwriting(out, model, inputs.bundle, *inputs.files.values())
    with ProgressBar(talk) as bar:
        bar.tell(f"reading {model.name}", 0, 0)
        loaded = load(model)
        given = arrays.feeds(talk, inputs, loaded)
        executor = prepare(loaded.ir, backend)
        total = inputs.random or 1
        runs = []
        for number in range(total):
            bar.tell(f"running {model.name}", number, total)
            batch = given
            if batch is None:
                shapes = inputs.shapes
                batch = make_inputs(loaded, seed=inputs.seed, number=number, shapes=shapes)
            runs.append(executor.run(batch, taps=taps))
        results = arrays.joined(runs)
        if out is not None:
            arrays.save(out, results)
    if out is None:
        arrays.show_all(results)
    else:
        talk.note(f"wrote {out}")

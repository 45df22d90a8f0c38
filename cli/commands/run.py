"""``qgraph run``: compute the outputs of a model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.documents import advise, show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.inputs import InputOptions, input_options
from qgraph.cli.output import ProgressBar, Talk


@click.command(name="run")
@options.model_argument
@input_options
@options.file_option("-o", "--output", "out", text="Write the outputs (.npz).")
@options.backend_option
@options.repeated(
    *("--tap", "taps"),
    metavar="TENSOR",
    text="Tensor to show with the outputs; repeat for others.",
    shell_complete=options.offering("tensors"),
)
@options.flag("--tap-all", text="Show all inner tensors; the default backend is then numpy.")
@options.flag("--stats", text="Show statistics of the quantizers: used codes, clipping rate.")
@options.table_options()
@view_options("html", "markdown")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    model: Path,
    inputs: InputOptions,
    out: Path | None,
    backend: str,
    taps: tuple[str, ...],
    tap_all: bool,
    stats: bool,
    views: Views,
) -> None:
    """Run MODEL and show its outputs, or write them to a file.

    Inputs are read from files, or random. Arrays with more rows than the batch size of MODEL are
    run in batches, and the outputs are joined along the first axis. Outputs and taps are written
    while they are computed, so they need not fit in memory.
    """
    from qgraph.execution.executor import Backend
    from qgraph.execution.prepare import prepare, run_batches
    from qgraph.inventory.statistics import Statistics
    from qgraph.model import load
    from qgraph.quantizers.standardize import standardize
    from qgraph.reporting.model_view import run_sections
    from qgraph.storage.archive import archive
    from qgraph.version import head

    read = (inputs.bundle, *inputs.files.values())
    views.check()
    with planned([out, *views.paths], models=[model], files=read) as outputs:
        with ProgressBar(talk) as bar, ExitStack() as stack:
            bar.tell(f"reading {model.name}", 0, 0)
            loaded = load(model)
            feeds = inputs.feeds(talk, loaded)
            if feeds is None and inputs.batch is not None:
                raise click.UsageError(
                    "--batch applies to arrays from files only. Set the size of random batches by "
                    "--shape."
                )
            batches = inputs.batches(loaded, feeds)
            total = len(batches)
            if tap_all and backend == Backend.AUTO:
                backend = Backend.NUMPY
            executor = prepare(loaded.ir, backend, standardize=standardize)
            shown = list(dict.fromkeys([*taps, *(executor.computed if tap_all else ())]))
            names = list(dict.fromkeys([*(str(value.name) for value in loaded.outputs), *shown]))
            statistics = Statistics(loaded.ir, names, quantizers=stats)
            sink = (
                None
                if out is None
                else stack.enter_context(archive(out, outputs, batched=total > 1))
            )

            def receive(name: str, value: Any) -> None:
                statistics.add(name, value)
                if sink is not None and name in names:
                    sink.add(name, value)

            run_batches(
                executor,
                batches,
                receive,
                taps=list(dict.fromkeys([*shown, *statistics.taps])),
                progress=lambda done: bar.tell(_what(model, done, total), done, total),
            )
        settings = {"model": str(model), "batches": total}
        document = {**head("run"), **settings, **statistics.to_json()}
        if views.are_wanted:
            views.write(document, None, outputs)
        if out is None or stats or talk.form != "table":
            show_document(talk, document, run_sections, (model,))
        else:
            advise(talk, document, (model,))
    if out is not None:
        talk.note(f"wrote {out}")


def _what(model: Path, done: int, total: int) -> str:
    return f"running {model.name}" + (f", batch {done + 1} of {total}" if total > 1 else "")

"""``qgraph why``: find the quantizers that cost accuracy."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.bound import Bounding
from qgraph.cli import options
from qgraph.cli.files import Views, deliver, planned, view_options
from qgraph.cli.inputs import InputOptions, bounding_options, input_options
from qgraph.cli.output import UNDECIDED, ProgressBar, Talk
from qgraph.cli.process import find_modules


@click.command(name="why")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@input_options
@options.labels_option
@options.metric_option
@options.backend_option
@bounding_options(question=False)
@options.table_options()
@options.report_option
@options.timeout_option
@view_options("html", "markdown")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    reference: Path,
    candidate: Path,
    inputs: InputOptions,
    labels: str | None,
    metric: str,
    backend: str,
    request: Bounding,
    views: Views,
) -> int:
    """Show which quantizers of CANDIDATE cost accuracy, worst first.

    REFERENCE is the float network, or a model with other quantizers. Each single quantizer of
    CANDIDATE is replaced by the part of REFERENCE in its place, and the reverse. Its layer is also
    run on the values of REFERENCE, which separates its own error from errors in its data.

    Without --labels, a row counts as correct if its largest output has the same index as in
    REFERENCE.

    Exit status: 0 success; 4 if --timeout is reached. The result, if any, then covers the batches
    that were run; --batch N makes batches smaller.
    """
    from qgraph.comparison.why.why import why
    from qgraph.model import load

    views.check()
    find_modules([metric] if ":" in metric else [])
    read = (inputs.bundle, *inputs.files.values(), inputs.labels_file(labels))
    models = (reference, candidate)
    with planned(views.paths, models=models, files=read) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell(f"reading {reference.name}", 0, 0)
            first, second = load(reference), load(candidate)
            feeds = inputs.feeds(talk, first, besides=labels)
            with inputs.labelled(labels) as right:
                causes = why(
                    first,
                    second,
                    inputs.checked(feeds),
                    labels=right,
                    metric=metric,
                    backend=backend,
                    within=request if request.limits else None,
                    progress=lambda done, total: bar.tell("exchanging quantizers", done, total),
                )
        deliver(talk, causes.to_json(), outputs, views, models)
    return UNDECIDED if causes.batches < causes.batches_in_all else 0

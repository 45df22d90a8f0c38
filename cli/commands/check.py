"""``qgraph check``: compare two models on data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click

from qgraph.bound import Bounding
from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.inputs import InputOptions, bounding_options, input_options, probes_option
from qgraph.cli.output import ProgressBar, Talk
from qgraph.cli.process import find_modules
from qgraph.cli.several import pairs_of_models

_BATCHES = 4
"""Number of batches in which codes of activations are counted for pictures."""

Limits = Sequence[tuple[str | None, float]]


@click.command(name="check")
@pairs_of_models
@input_options
@probes_option
@options.limit_option("--atol", "Maximum absolute difference.")
@options.limit_option("--rtol", "Maximum difference relative to REFERENCE.")
@options.limit_option("--max-steps", "Maximum difference in quantization steps.")
@options.limit_option("--max-ulp", "Maximum difference in units in the last place.")
@options.limit_option("--min-sqnr", "Minimum signal-to-noise ratio in dB.")
@options.limit_option("--min-top1", "Minimum share of rows whose largest value has the same index.")
@options.labels_option
@options.metric_option
@click.option(
    "--max-drop",
    type=float,
    metavar="NUMBER",
    help="Maximum loss of the metric; values may differ if there is no other tolerance.",
)
@options.backend_option
@options.flag(
    "--runtimes", text="Separate changes of the rewrite from changes by runtimes and their options."
)
@options.flag(
    "--tensors", text="Compare the tensors that both models have, even if no output differs."
)
@bounding_options(question=False)
@options.report_option
@options.table_options()
@options.timeout_option
@options.file_option(
    "--witness",
    text="Write the first batch of inputs on which outputs differ or a bound is violated (.npz).",
)
@view_options("html", "sarif", "markdown", "junit")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    reference: Path,
    candidate: Path,
    inputs: InputOptions,
    atol: Limits,
    rtol: Limits,
    max_steps: Limits,
    max_ulp: Limits,
    min_sqnr: Limits,
    min_top1: Limits,
    labels: str | None,
    metric: str,
    max_drop: float | None,
    backend: str,
    runtimes: bool,
    tensors: bool,
    request: Bounding,
    witness: Path | None,
    views: Views,
) -> int:
    """Run two models on the same inputs and compare their outputs.

    REFERENCE and CANDIDATE may be folders: models of the same name are compared. Options that name
    a file, other than --report and --inputs, then name a folder with a file for each pair.

    Without a tolerance, all values must be equal. A tolerance is a number for all outputs, or
    NAME:NUMBER for one output. If an output differs, the tensors that both models have are
    compared, and the first one that differs is named.

    With --within, bounds of all segments are computed as by 'qgraph prove', and compared with the
    results of the segments on the inputs. The limit then applies to the codes and values of each
    segment, given equal codes at its start. Outputs may differ if each segment can be compared with
    its bound, and there is no other tolerance.

    Exit status: 0 equal, or within bounds and limits; 1 different, or a bound is violated; 4 if
    --timeout is reached before a difference is found.
    """
    from qgraph.comparison.check import check
    from qgraph.comparison.tolerance import Scoring, Tolerances
    from qgraph.model import load
    from qgraph.reporting.pages import page_of
    from qgraph.storage.archive import write_arrays

    views.check()
    find_modules([metric] if ":" in metric else [])
    if max_drop is not None and labels is None:
        raise click.UsageError("--max-drop needs --labels, to score the models by. Add it.")
    read = (inputs.bundle, *inputs.files.values(), inputs.labels_file(labels))
    targets = (witness, *views.paths)
    with planned(targets, models=(reference, candidate), files=read) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell(f"reading {reference.name}", 0, 0)
            first, second = load(reference), load(candidate)
            names = [str(value.name) for value in first.outputs]
            feeds = inputs.feeds(talk, first, besides=labels)
            bar.tell("comparing", 0, 0)
            with inputs.labelled(labels) as right:
                result = check(
                    first,
                    second,
                    inputs.checked(feeds),
                    backend=backend,
                    tolerances=Tolerances(
                        atol=_limits(atol, names) or 0.0,
                        rtol=_limits(rtol, names) or 0.0,
                        max_steps=_limits(max_steps, names),
                        max_ulp=_limits(max_ulp, names),
                        min_sqnr=_limits(min_sqnr, names),
                        min_top1=_limits(min_top1, names),
                        within=request if request.limits else None,
                    ),
                    scoring=Scoring(right, metric, max_drop),
                    runtimes=runtimes,
                    tensors=tensors,
                )
            document = result.to_json()
            number = _BATCHES if views.are_wanted else 0
            if number:
                bar.tell("drawing", 0, 0)
            batches = islice(inputs.batches(first, feeds), number)
            views.write(document, (first, second), outputs, list(batches))
        show_document(talk, document, page_of, (reference, candidate), inputs.words)
        if witness is not None and result.example is None:
            talk.note(f"no difference was found; {witness} was not written")
        elif witness is not None and result.example is not None:
            write_arrays(witness, result.example, outputs)
            talk.note(f"wrote {witness}")
    return int(result.verdict != "equal")


def _limits(stated: Limits, names: Sequence[str]) -> dict[str, float] | None:
    """Return the tolerance of each output, or None; one set by name overrides the one for all."""
    limits: dict[str, float] = {}
    for name, number in stated:
        if name is None:
            limits = dict.fromkeys(names, number) | limits
    limits |= {name: number for name, number in stated if name is not None}
    return limits or None

"""``qgraph check``: whether two models compute the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.comparisons import show_check
from qgraph.cli.output import Talk
from qgraph.cli.progress import ProgressBar
from qgraph.cli.targets import planned
from qgraph.cli.views import Views, some_batches, view_options

if TYPE_CHECKING:
    from qgraph.equivalence.report import CheckReport
    from qgraph.outputs.outputs import Outputs

Limits = Sequence[tuple[str | None, float]]


@click.command(name="check")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@options.input_options
@options.sample_options
@options.limit_option("--atol", "Largest absolute difference.")
@options.limit_option("--rtol", "Largest difference relative to the reference.")
@options.limit_option("--max-steps", "Largest difference in quantization steps.")
@options.limit_option("--max-ulp", "Largest difference in units in the last place.")
@options.limit_option("--min-sqnr", "Smallest ratio of signal to error in dB.")
@options.limit_option("--min-top1", "Smallest share of rows with the same largest value.")
@click.option(
    "--labels",
    metavar="FILE|NAME",
    help="The right answers for the rows of the inputs: a file (.npy), or a name in --inputs.",
)
@click.option(
    "--metric",
    metavar="NAME",
    default="top1",
    show_default=True,
    help="How good outputs are by the labels: top1, or module:function of (outputs, labels).",
)
@click.option(
    "--max-drop",
    type=float,
    metavar="NUMBER",
    help="How much lower the metric of the candidate may be; alone, values may differ.",
)
@options.backend_option
@click.option(
    "--runtimes",
    is_flag=True,
    help="Also tell what the rewrite changes from what runtimes change, and by which option.",
)
@click.option(
    "--tensors",
    is_flag=True,
    help="Compare the tensors of both models even if no output differs.",
)
@click.option("--report", type=options.file_path, metavar="FILE", help="Write a JSON report.")
@click.option("--junit", type=options.file_path, metavar="FILE", help="Write a JUnit report (XML).")
@click.option("--markdown", type=options.file_path, metavar="FILE", help="Write a Markdown report.")
@click.option(
    "--witness",
    type=options.file_path,
    metavar="FILE",
    help="Write the first batch of inputs with a difference (.npz).",
)
@view_options("html", "sarif")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    reference: Path,
    candidate: Path,
    inputs: options.Inputs,
    samples: options.Samples,
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
    report: Path | None,
    junit: Path | None,
    markdown: Path | None,
    witness: Path | None,
    views: Views,
) -> int:
    """Compare all outputs of two models.

    REFERENCE and CANDIDATE run on the same inputs. Without a tolerance every value has to be equal;
    a tolerance is a number for all outputs, or NAME:NUMBER for one. Where an output differs, the
    tensors that both models have are compared, and the first that differs is named.

    Exit status: 0 equal, 1 different.
    """
    from qgraph import check, load
    from qgraph.cli import arrays
    from qgraph.files import json_text, write_text

    views.check()
    if ":" in metric and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as Python itself does for a script
    targets = (report, junit, markdown, witness, *views.paths)
    read = (inputs.bundle, *inputs.files.values(), arrays.labels_file(labels, inputs))
    with planned(targets, models=(reference, candidate), files=read) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell(f"reading {reference.name}", 0, 0)
            first, second = load(reference), load(candidate)
            names = [str(value.name) for value in first.outputs]
            given = arrays.feeds(talk, inputs, first, besides=labels)
            bar.tell("comparing", 0, 0)
            found = check(
                first,
                second,
                given,
                random=inputs.random,
                seed=inputs.seed,
                shapes=inputs.shapes,
                batch=samples.batch,
                probes=samples.probes,
                backend=backend,
                atol=_limits(atol, names) or 0.0,
                rtol=_limits(rtol, names) or 0.0,
                max_steps=_limits(max_steps, names),
                max_ulp=_limits(max_ulp, names),
                min_sqnr=_limits(min_sqnr, names),
                min_top1=_limits(min_top1, names),
                labels=None if labels is None else arrays.labels(labels, inputs),
                metric=metric,
                max_drop=max_drop,
                runtimes=runtimes,
                tensors=tensors,
            )
            if views.are_wanted:
                bar.tell("drawing", 0, 0)
                batches = some_batches(first, given, inputs, samples.batch)
                views.write(found.to_json(), (first, second), outputs, batches)
        if report is not None:
            write_text(report, json_text(found.to_json()), outputs)
        if junit is not None:
            write_text(junit, found.to_junit(), outputs)
        if markdown is not None:
            write_text(markdown, found.to_markdown(), outputs)
        for note in found.notes:
            talk.note(note)
        show_check(talk, found)
        if witness is not None:
            _save_witness(talk, found, witness, outputs)
    return int(found.verdict != "equal")


def _save_witness(talk: Talk, found: CheckReport, path: Path, outputs: Outputs) -> None:
    from qgraph.tensors.archive import archive

    if found.example is None:
        talk.note(f"no input showed a difference, {path} was not written")
        return
    with archive(path, outputs) as content:
        for name, array in found.example.items():
            content.add(name, array)
    talk.note(f"wrote {path}")


def _limits(given: Limits, names: Sequence[str]) -> dict[str, float] | None:
    """Return the limit of each output, that of its name before that of all; None if none is set."""
    limits: dict[str, float] = {}
    for name, number in given:
        if name is None:
            limits = dict.fromkeys(names, number) | limits
    limits |= {name: number for name, number in given if name is not None}
    return limits or None

"""``qgraph check``: whether two models compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.output import Cell, Column, Talk, number_text, show_paragraph, show_table
from qgraph.cli.progress import ProgressBar

if TYPE_CHECKING:
    from qgraph.equivalence.report import CheckReport

Limits = Sequence[tuple[str | None, float]]


@click.command(name="check")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@options.input_options
@options.limit_option("--atol", "Largest absolute difference.")
@options.limit_option("--rtol", "Largest difference relative to the reference.")
@options.limit_option("--max-steps", "Largest difference in quantization steps.")
@options.limit_option("--min-sqnr", "Smallest ratio of signal to error in dB.")
@options.backend_option
@click.option("--report", type=options.file_path, metavar="FILE", help="Write a JSON report.")
@click.option("--junit", type=options.file_path, metavar="FILE", help="Write a JUnit report (XML).")
@click.option("--markdown", type=options.file_path, metavar="FILE", help="Write a Markdown report.")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    reference: Path,
    candidate: Path,
    inputs: options.Inputs,
    atol: Limits,
    rtol: Limits,
    max_steps: Limits,
    min_sqnr: Limits,
    backend: str,
    report: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> int:
    """Compare all outputs of two models.

    REFERENCE and CANDIDATE run on the same inputs. Without a tolerance every value has to be equal;
    a tolerance is a number for all outputs, or NAME:NUMBER for one.

    Exit status: 0 equal, 1 different.
    """
    from qgraph import check, load
    from qgraph.cli.arrays import feeds
    from qgraph.files import json_text, write_text

    sources = (reference, candidate, inputs.bundle, *inputs.files.values())
    for path in (report, junit, markdown):
        options.refuse_overwriting(path, *sources)
    with ProgressBar(talk) as bar:
        bar.tell(f"reading {reference.name}", 0, 0)
        first, second = load(reference), load(candidate)
        names = [str(value.name) for value in first.outputs]
        bar.tell("comparing", 0, 0)
        found = check(
            first,
            second,
            feeds(talk, inputs, first),
            random=inputs.random or 1,
            seed=inputs.seed,
            shapes=inputs.shapes,
            backend=backend,
            atol=_limits(atol, names) or 0.0,
            rtol=_limits(rtol, names) or 0.0,
            max_steps=_limits(max_steps, names),
            min_sqnr=_limits(min_sqnr, names),
        )
    for path, text in (
        (report, json_text(found.to_json())),
        (junit, found.to_junit()),
        (markdown, found.to_markdown()),
    ):
        if path is not None:
            write_text(path, text)
    for note in found.notes:
        talk.note(note)
    _show(found)
    return int(found.verdict != "equal")


def _limits(given: Limits, names: Sequence[str]) -> dict[str, float] | None:
    """Return the limit of each output, that of its name before that of all; None if none is set."""
    limits: dict[str, float] = {}
    for name, number in given:
        if name is None:
            limits = dict.fromkeys(names, number) | limits
    limits |= {name: number for name, number in given if name is not None}
    return limits or None


def _show(found: CheckReport) -> None:
    columns = [
        Column("output", cut=True),
        Column("values", right=True),
        Column("differ", right=True),
        Column("max abs", right=True),
        Column("max ulp", right=True, spare=True),
        Column("max steps", right=True),
        Column("SQNR dB", right=True),
        Column("cosine", right=True, spare=True),
    ]
    rows: list[list[Cell | str]] = []
    for output in found.outputs:
        style = "red" if output.name in found.failed else "green" if output.equal else "yellow"
        rows.append(
            [
                Cell(output.name, style),
                str(output.elements),
                str(output.mismatches),
                number_text(output.max_abs),
                str(output.max_ulp),
                number_text(output.max_steps),
                number_text(output.sqnr_db),
                number_text(output.cosine),
            ]
        )
    show_table(columns, rows)
    for name, reason in found.failed.items():
        show_paragraph(f"{name}: {reason}", "red")
    first = found.first_divergence
    if first is not None:
        by = "" if first.max_abs is None else f" by up to {number_text(first.max_abs)}"
        show_paragraph(
            f"the first tensor that differs is {first.reference!r}{by}, which {first.op} "
            f"{first.node!r} produces in the reference"
        )
    if found.failed:
        show_paragraph("different", "bold red")
    elif all(output.equal for output in found.outputs):
        show_paragraph("equal: every value is the same", "bold green")
    else:
        show_paragraph("equal within the tolerance", "bold green")

"""``qgraph transform``: apply passes in a given order; what convert and fold share with it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.output import ProgressBar, Talk, show_paragraph
from qgraph.cli.several import output_folder, several_models
from qgraph.records import dataclass
from qgraph.reporting.view import Tone
from qgraph.text import counted
from qgraph.version import head

if TYPE_CHECKING:
    from qgraph.transforms.base import Transform

EPILOG = (
    "If the command fails, neither OUT nor the report is written. Quantizers that are left "
    "unchanged "
    "are listed with the reason; the exit status is still 0. If --timeout is reached, it is 4."
)


@dataclass(frozen=True)
class RewriteFiles:
    """Files and options of convert, fold and transform.

    Attributes:
        out: the file to write; None to replace the model.
        report: where the JSON report goes.
        keep_inputs, prove: see :func:`qgraph.transforms.rewrite`.
        in_place, shard_bytes, size_threshold, safetensors: see :class:`qgraph.transforms.Writing`.
    """

    model: Path
    out: Path | None
    report: Path | None
    keep_inputs: bool
    prove: bool
    in_place: bool
    shard_bytes: int | None
    size_threshold: int | None
    safetensors: bool

    def __post_init__(self) -> None:
        if self.out is None and not self.in_place:
            raise click.UsageError(
                "-o OUT, the model to write, is missing. Add it, or --in-place to replace MODEL."
            )


rewrite_options = options.gathered(
    "files",
    RewriteFiles,
    several_models,
    output_folder,
    options.output_option,
    options.report_option,
    options.timeout_option,
    options.table_options(),
    options.flag("--in-place", text="Replace MODEL."),
    options.keep_inputs_option,
    options.flag(
        "--prove",
        text="Write OUT only if it is proved equal for every input; otherwise exit with 1 or 4.",
    ),
    click.option(
        "--shard-size",
        "shard_bytes",
        type=options.byte_size,
        metavar="SIZE",
        help="Maximum size of a data file for weights, such as 2GB [no limit].",
    ),
    click.option(
        "--external-threshold",
        "size_threshold",
        type=options.byte_size,
        metavar="SIZE",
        help="Move weights of at least SIZE to data files [1KB, if data files are written].",
    ),
    options.flag("--safetensors", text="Write the data files as safetensors files."),
)


def run(
    talk: Talk, command: str, files: RewriteFiles, steps: Sequence[Transform], views: Views
) -> None:
    """Apply passes to a model file and show the report."""
    from qgraph.reporting.pages import page_of
    from qgraph.text import json_text
    from qgraph.transforms import Writing, rewrite

    views.check()
    out = files.out or files.model
    is_printed = files.report == options.STDOUT
    others = [*views.paths, options.STDOUT] if is_printed else views.paths
    with _report_file(talk, files, views) as written, planned(others) as outputs:
        with ProgressBar(talk) as bar:
            report = rewrite(
                files.model,
                out,
                *steps,
                report=written,
                command=command,
                keep_inputs=files.keep_inputs,
                prove=files.prove,
                writing=Writing(
                    in_place=files.in_place,
                    external_data=None if files.size_threshold is None else True,
                    shard_bytes=files.shard_bytes,
                    safetensors=files.safetensors,
                    size_threshold=files.size_threshold,
                    progress=bar.tell_bytes,
                    outputs=outputs,
                ),
            )
            document = head(command) | report.to_json()
            if written is not None:
                document = json.loads(outputs.written(written).read_text("utf-8"))
            if views.are_wanted:
                bar.tell("drawing", 0, 0)
                views.write(document, (files.model, outputs.written(out)), outputs)
        if is_printed:
            outputs.write_text(options.STDOUT, json_text(document))
        if talk.quiet:
            if refused := report.count("refused"):
                talk.warn(f"{counted(refused, 'quantizer')} left unchanged; the report says why")
            return
        models = (out,) if files.prove else (files.model, out)
        show_document(talk, document, page_of, models)
        if talk.form == "table" and files.prove:
            show_paragraph("proved equal for every input", Tone.GOOD)
        if talk.form == "table":
            show_paragraph(f"wrote {out}")


@contextmanager
def _report_file(talk: Talk, files: RewriteFiles, views: Views) -> Iterator[Path | None]:
    """Yield the file of the JSON report: the user's, or a temporary one for the views."""
    is_file = files.report not in (None, options.STDOUT)
    if is_file or not (files.report or views.are_wanted or talk.form == "json"):
        yield files.report
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "report.json")


@click.command(name="transform", epilog=EPILOG)
@rewrite_options
@view_options("html", "sarif", "markdown")
@options.repeated(
    *("-p", "--pass", "specs"),
    metavar="SPEC",
    text="Pass to apply, such as 'convert{to=qdq,exact=bits}'; repeat for others.",
    shell_complete=options.offering("passes"),
    required=True,
)
@options.talk_options
@click.pass_obj
def command(talk: Talk, files: RewriteFiles, views: Views, specs: tuple[str, ...]) -> None:
    """Apply passes to MODEL in the order given.

    'qgraph passes' lists all passes, and 'qgraph passes NAME' the options of one.
    """
    from qgraph.transforms import parse_spec

    run(talk, "transform", files, [parse_spec(spec) for spec in specs], views)

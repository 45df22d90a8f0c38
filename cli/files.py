"""Output files of a command: checked and locked before its work, and written together."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.output import Talk, flush_results
from qgraph.records import dataclass, replace
from qgraph.storage.outputs import HOLDS_WEIGHTS, Outputs, StrPath

if TYPE_CHECKING:
    from qgraph.model import Source


class _Results(Outputs):
    """Outputs of a command; ``printed`` is the text of the one that is the standard output."""

    printed = ""

    def write_text(self, path: StrPath, text: str) -> None:
        """Write an output, or keep the text for the standard output."""
        if path == options.STDOUT:
            self.printed = text
        else:
            super().write_text(path, text)


@contextmanager
def planned(
    targets: Iterable[Path | None],
    *,
    models: Iterable[Path | None] = (),
    files: Iterable[Path | None] = (),
) -> Iterator[Outputs]:
    """Yield the outputs of a command; they appear together when the block ends without an error.

    The text for the terminal is flushed first, so no file is written if the standard output fails.
    If a report goes to the standard output, everything else goes to stderr.

    Args:
        targets: files to write; None for those that are not wanted.
        models: model files that the command reads; their data files are guarded too.
        files: other files that it reads.

    Raises:
        OptionError: an output would replace one of these, or another output.
        QGraphError: an output cannot be written, or another process is writing it.
    """
    named = [target for target in targets if target is not None]
    wanted = [target for target in named if target != options.STDOUT]
    if len(named) - len(wanted) > 1:
        raise click.UsageError(
            "- is the standard output, which can show one report only. Name a file."
        )
    is_printed = len(named) > len(wanted)
    if is_printed and click.get_current_context().ensure_object(Talk).form == "json":
        raise click.UsageError(
            "- is the standard output, which can show one report only, and --json prints one too. "
            "Omit one of them, or name a file."
        )
    with _Results() as outputs:
        outputs.protect(files)
        if wanted:
            protect_models(outputs, models)
        for target in wanted:
            outputs.reserve(target)
        with redirect_stdout(sys.stderr) if is_printed else nullcontext():
            yield outputs
        sys.stdout.write(outputs.printed)
        flush_results()


def protect_models(outputs: Outputs, models: Iterable[Path | None]) -> None:
    """Keep outputs away from model files and their data files."""
    from qgraph.storage.reading import files_of

    for model in models:
        if model is not None:
            own, *data = files_of(model)
            outputs.protect([own])
            outputs.protect(data, HOLDS_WEIGHTS)


@dataclass(frozen=True)
class Views:
    """Files that show a report: the report itself as JSON, a page, a log of findings and others."""

    report: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """The files to write."""
        named = (self.report, self.html, self.sarif, self.markdown, self.junit)
        return [path for path in named if path is not None]

    @property
    def are_wanted(self) -> bool:
        """Whether there is a file to write besides the JSON report."""
        return bool(replace(self, report=None).paths)

    def check(self) -> None:
        """Raise if the files cannot be rendered, before any work is done.

        Raises:
            OptionError: the libraries that draw are not installed.
        """
        if self.html is not None:
            from qgraph.reporting.drawing import require_drawing

            require_drawing("--html")

    def write(
        self,
        document: Mapping[str, Any],
        models: tuple[Source, Source] | None,
        outputs: Outputs,
        batches: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the files.

        Args:
            document: the JSON report, with the files that it is about.
            models: reference and candidate, or input and output, whose steps and codes are drawn;
                None for a missing one.
            outputs: with which the files appear.
            batches: inputs of the first model.
        """
        if self.report is not None:
            from qgraph.text import json_text

            outputs.write_text(self.report, json_text(dict(document)))
        if self.sarif is not None:
            from qgraph.reporting.findings import sarif_log

            outputs.write_text(self.sarif, sarif_log(document))
        if self.markdown is not None:
            from qgraph.reporting.pages import markdown_report

            outputs.write_text(self.markdown, markdown_report(document))
        if self.junit is not None:
            from qgraph.reporting.findings import junit_report

            outputs.write_text(self.junit, junit_report(document))
        if self.html is not None:
            from qgraph.inventory.pictures import illustrated
            from qgraph.model import load
            from qgraph.reporting.pages import html_page

            whole = document
            if models is not None:
                reference, candidate = (load(model).ir for model in models)
                whole = illustrated(document, reference, candidate, batches)
            outputs.write_text(self.html, html_page(whole))


_HELP = {
    "html": "Write a page with tables and pictures (needs qgraph[report]).",
    "sarif": "Write the findings as SARIF 2.1.0.",
    "markdown": "Write a Markdown report.",
    "junit": "Write a JUnit report (XML).",
}


def deliver(
    talk: Talk,
    document: dict[str, Any],
    outputs: Outputs,
    views: Views,
    models: Sequence[Path] = (),
) -> None:
    """Write a report and its views, and print it with advice about the given ``models``."""
    from qgraph.reporting.pages import page_of

    views.write(document, None, outputs)
    show_document(talk, document, page_of, models)


def view_options(*kinds: str) -> options.Decorator:
    """Return a decorator that adds options such as ``--html``; the command gets them as ``views``.

    A ``--report`` of the command becomes one of them. ``kinds`` are fields of :class:`Views`.
    """
    files = [
        click.option(f"--{view}", type=options.report_path, metavar="FILE", help=_HELP[view])
        for view in kinds
    ]
    return options.gathered("views", Views, *files)

"""``qgraph report``: a JSON report in another form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.output import Talk, show_paragraph
from qgraph.cli.progress import ProgressBar
from qgraph.cli.targets import planned, protect_models
from qgraph.cli.views import Views, view_options
from qgraph.errors import QGraphError


@click.command(name="report")
@click.argument("report", type=options.file_path)
@view_options("html", "sarif", "markdown", "junit")
@options.talk_options
@click.pass_obj
def command(talk: Talk, report: Path, views: Views) -> None:
    """Show a JSON report as a page, or in another form.

    REPORT is what --report of check, convert, fold or transform or --certificate of prove wrote;
    JUnit has room for check and prove only.
    Steps and codes are drawn as long as the models are where it says, and are the same files.
    """
    if not views.are_wanted:
        raise click.UsageError(
            "There is nothing to write. Add --html, --sarif, --markdown or --junit."
        )
    views.check()
    with planned(views.paths, files=[report]) as outputs:
        document = _read(report)
        try:
            models = _models(document)
            protect_models(outputs, models or ())
            if models is None and views.html is not None:
                talk.note("the models are not there any more: steps and codes are not drawn")
            with ProgressBar(talk) as bar:
                bar.tell("drawing", 0, 0)
                views.write(document, models, outputs)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise QGraphError(
                f"{report}: is no report as qgraph writes it ({type(error).__name__}: {error}). "
                "Make it anew with --report, or with --certificate of 'qgraph prove'."
            ) from error
        for path in views.paths:
            show_paragraph(f"wrote {path}")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise QGraphError(
            f"{path}: cannot be read ({error}), expected a JSON report. Make it with --report, or "
            "with --certificate of 'qgraph prove'."
        ) from error
    if not isinstance(document, dict) or "command" not in document:
        raise QGraphError(
            f"{path}: is no report of qgraph, which would name its command. Make it with --report, "
            "or with --certificate of 'qgraph prove'."
        )
    return document


def _models(document: Mapping[str, Any]) -> tuple[Path, Path] | None:
    """Return the files that a report is about, if they are still the same."""
    from qgraph.storage.files import sha256

    files = [document.get(role) for role in ("reference", "candidate", "input", "output")]
    found = []
    for file in files:
        if not isinstance(file, Mapping) or not file.get("path"):
            continue
        path = Path(file["path"])
        if path.is_file() and sha256(path) == file.get("sha256"):
            found.append(path)
    return (found[0], found[1]) if len(found) == 2 else None

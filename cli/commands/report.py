"""``qgraph report``: convert a JSON report to another form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.documents import advise
from qgraph.cli.files import Views, planned, protect_models, view_options
from qgraph.cli.output import ProgressBar, Talk, show_paragraph
from qgraph.errors import QGraphError, plain_message
from qgraph.version import READABLE

_OF_SEVERAL = ("convert", "deploy", "fold", "transform")
"""Commands that write a list of reports for several models."""


@click.command(name="report")
@click.argument("source", metavar="REPORT", type=options.file_path)
@view_options("html", "sarif", "markdown", "junit")
@options.talk_options
@click.pass_obj
def command(talk: Talk, source: Path, views: Views) -> None:
    """Convert a JSON report to HTML, SARIF, Markdown or JUnit.

    REPORT is a file that --report of another command wrote, or --certificate of prove. JUnit is for
    check, lint and prove only. Steps and codes are drawn if the model files named in REPORT have
    not changed.
    """
    if not views.are_wanted:
        raise click.UsageError(
            "There is nothing to write. Add --html, --sarif, --markdown or --junit."
        )
    views.check()
    with planned(views.paths, files=[source]) as outputs:
        document = _read(source)
        try:
            named = _named(document)
            protect_models(outputs, [path for path, _ in named])
            models = _unchanged(named)
            if models is None and views.html is not None:
                talk.note(
                    "the model files are missing or have changed: steps and codes are not drawn"
                )
            with ProgressBar(talk) as bar:
                bar.tell("drawing", 0, 0)
                views.write(document, models, outputs)
            advise(talk, document, [path for path, _ in named])
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise QGraphError(
                f"{source}: is not a valid report of qgraph ({type(error).__name__}: {error}). "
                f"Write it again with --report, or with --certificate of 'qgraph prove'."
            ) from error
        for path in views.paths:
            if path != options.STDOUT:
                show_paragraph(f"wrote {path}")


def _read(path: Path) -> dict[str, Any]:
    from qgraph.storage.places import MOST_TEXT, bounded

    try:
        document = json.loads(bounded(path, MOST_TEXT).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise QGraphError(
            f"{path}: cannot be read ({plain_message(error)}), expected a JSON report. "
            "Write it with --report, or with --certificate of 'qgraph prove'."
        ) from error
    if not isinstance(document, dict) or "command" not in document:
        raise QGraphError(
            f"{path}: is not a report of qgraph: the field 'command' is missing. Write a report "
            f"with --report, or with --certificate of 'qgraph prove'."
        )
    if document["command"] in _OF_SEVERAL and "models" in document:
        raise QGraphError(
            f"{path}: is a list of reports, expected one report. Write one entry of its field "
            "'models' to a separate file."
        )
    schema = document.get("schema", READABLE[0])
    if schema not in READABLE:
        raise QGraphError(
            f"{path}: is a report of schema {schema!r}, expected one of "
            f"{', '.join(map(str, READABLE))}. Read it with the version of qgraph that wrote it, "
            f"{document.get('qgraph', 'unknown')}, or make it anew."
        )
    return document


def _named(document: Mapping[str, Any]) -> list[tuple[Path, object]]:
    models = [document.get(role) for role in ("reference", "candidate", "input", "output")]
    return [
        (Path(model["path"]), model.get("sha256"))
        for model in models
        if isinstance(model, Mapping) and model.get("path")
    ]


def _unchanged(named: Sequence[tuple[Path, object]]) -> tuple[Path, Path] | None:
    """Return the two models of a report, if their files have not changed."""
    from qgraph.storage.files import sha256

    same = [path for path, digest in named if path.is_file() and sha256(path) == digest]
    return (same[0], same[1]) if len(same) == 2 else None

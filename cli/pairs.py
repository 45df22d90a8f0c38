"""Commands that compare the models of two folders pair by pair; see :mod:`qgraph.cli.tasks`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.files import planned
from qgraph.cli.found import found_models
from qgraph.cli.output import Talk, show
from qgraph.cli.several import jobs_option
from qgraph.cli.tasks import (
    Arguments,
    Task,
    document_of,
    gravest,
    handled,
    new_folders,
    summarise,
)
from qgraph.errors import ModelError
from qgraph.text import counted, json_text

_SUFFIXES: Mapping[str, str] = {
    "certificate": ".json",
    "html": ".html",
    "junit": ".xml",
    "markdown": ".md",
    "sarif": ".sarif",
    "verify": ".json",
    "witness": ".npz",
}
"""Options that name a folder if the models are folders, and the suffix of the files in it."""


def pairs_of_models(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add REFERENCE and CANDIDATE; for two folders, call the command once for each pair of files.

    Apply the decorator directly below ``click.command``, above all others. With several pairs,
    ``--report`` and ``--json`` write one list of their reports.
    """

    @click.argument("reference", type=options.file_path)
    @click.argument("candidate", type=options.file_path)
    @jobs_option
    @functools.wraps(function)
    def command(reference: Path, candidate: Path, jobs: int, **others: Any) -> Any:
        for path in (reference, candidate):
            if not path.exists():
                raise ModelError(
                    f"{path}: there is no such file, expected a model, or a folder of models. "
                    "Correct the path."
                )
        if not (reference.is_dir() and candidate.is_dir()):
            return function(reference=reference, candidate=candidate, **others)
        context = click.get_current_context()
        name, talk = str(context.command.name), context.ensure_object(Talk)
        return _compare(name, talk, (reference, candidate), others, jobs)

    return command


def _compare(
    name: str, talk: Talk, folders: tuple[Path, Path], arguments: Arguments, jobs: int
) -> int:
    """Compare the models with equal paths in two folders, and return the exit status."""
    for option in _SUFFIXES:
        if arguments.get(option) == options.STDOUT:
            raise click.UsageError(
                f"--{option} - prints one report, but there are several. Name a folder for them."
            )
    pairs = _pairs(*folders, talk)
    report = arguments.get("report")
    folders_named = [arguments[option] for option in _SUFFIXES if arguments.get(option)]
    parents = {folder / place.parent for folder in folders_named for place in pairs}
    files = [path for pair in pairs.values() for path in pair if path.exists()]
    with (
        tempfile.TemporaryDirectory() as scratch,
        new_folders(parents),
        planned([report], files=files) as outputs,
    ):
        tasks = []
        for number, (place, (reference, candidate)) in enumerate(pairs.items()):
            own = dict(arguments) | {"reference": reference, "candidate": candidate, "jobs": 1}
            for option in _SUFFIXES:
                if own.get(option) is not None:
                    own[option] = (own[option] / place).with_suffix(_SUFFIXES[option])
            if report is not None:
                own["report"] = Path(scratch, f"{number}.json")
            subject = replace(talk, subject=str(candidate))
            title = f"{reference} and {candidate}" if talk.form == "table" else ""
            tasks.append(Task(name, candidate, own, subject, title))
        results = handled(tasks, jobs)
        document = document_of(name, results)
        if report is not None:
            outputs.write_text(report, json_text(document))
        if talk.form == "json":
            show(json_text(document).rstrip())
        summarise(results, talk, "pair")
    return gravest(result.status for result in results)


def _pairs(reference: Path, candidate: Path, talk: Talk) -> dict[Path, tuple[Path, Path]]:
    """Return the files of each model of both folders, by their path relative to the folder.

    Raises:
        ModelError: a model has no counterpart, or a folder contains no models.
    """
    ours, theirs = (
        {model.place: model.path for model in found_models([folder], talk, without=other)}
        for folder, other in ((reference, candidate), (candidate, reference))
    )
    for folder, other, missing in (
        (candidate, reference, ours.keys() - theirs),
        (reference, candidate, theirs.keys() - ours),
    ):
        if missing:
            raise ModelError(
                f"{folder / min(missing)}: is missing, expected a counterpart of each model in "
                f"{other}; {counted(len(missing), 'model')} without one. Add it, or compare files."
            )
    return {place: (path, theirs[place]) for place, path in ours.items()}

"""Commands that accept several models, as files and folders; see :mod:`qgraph.cli.tasks`."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.files import planned
from qgraph.cli.found import FoundModel, found_models
from qgraph.cli.output import Talk, show
from qgraph.cli.tasks import (
    Arguments,
    Task,
    document_of,
    gravest,
    handled,
    new_folders,
    summarise,
)
from qgraph.errors import OptionError
from qgraph.storage.places import key_of
from qgraph.text import json_text

_OF_ONE = ("out", "certificate", "html", "markdown", "sarif")
"""Options that name a file for one model."""
_WITHOUT_OUTPUT = ("in_place", "dry_run", "explain")
"""Options with which a command needs no output for the model."""


jobs_option = options.number_option(
    "--jobs", text="Number of processes for several models.", default=1
)


def several_models(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add MODEL..., ``--output-dir`` and ``--jobs``; the command is called once for each ``model``.

    Apply the decorator directly below ``click.command``, above all others. With several models,
    ``--report`` and ``--json`` write one list of their reports. A command without the argument
    ``out`` writes no model, and has no ``--output-dir``.
    """

    @options.models_argument
    @jobs_option
    @functools.wraps(function)
    def command(
        models: tuple[Path, ...], jobs: int, output_dir: Path | None = None, **others: Any
    ) -> Any:
        is_one = others.get("out") is not None or not models[0].is_dir()
        if len(models) == 1 and output_dir is None and is_one:
            return function(model=models[0], **others)
        context = click.get_current_context()
        run = _Run(str(context.command.name), context.ensure_object(Talk), output_dir, others)
        return run.all(models, jobs)

    return command


output_folder = options.file_option(
    "--output-dir",
    text="Folder for the results of several models; they keep their names.",
    metavar="DIR",
)


@dataclass(frozen=True)
class _Run:
    """A command for several models.

    Attributes:
        name: of the command.
        talk: its messages.
        folder: for the results; None if they replace the models, or there are none.
        arguments: the other arguments of the command.
    """

    name: str
    talk: Talk
    folder: Path | None
    arguments: Arguments

    def all(self, named: Sequence[Path], jobs: int) -> int:
        """Handle all models, and return the exit status."""
        self._check()
        models = found_models(named, self.talk, without=self.folder)
        places = self._places(models)
        report = self.arguments.get("report")
        with (
            tempfile.TemporaryDirectory() as scratch,
            new_folders({target.parent for target in places if target is not None}),
            planned(
                [report], files=[model.path for model in models if os.path.exists(model.path)]
            ) as outputs,
        ):
            if report is not None and key_of(report) in {key_of(p) for p in places if p}:
                raise OptionError(f"{report}: is also the result of a model. Name another file.")
            tasks: list[Task] = []
            for model, target in zip(models, places, strict=True):
                arguments = dict(self.arguments) | {"models": (model.path,), "jobs": 1}
                if "out" in arguments:
                    arguments["out"] = target
                if report is not None:
                    arguments["report"] = Path(scratch, f"{len(tasks)}.json")
                talk = replace(self.talk, subject=str(model.path))
                # A command without OUT shows the name itself, and with -q the others show nothing.
                is_titled = "out" in arguments and not talk.quiet and talk.form == "table"
                title = str(model.path) if is_titled else ""
                tasks.append(Task(self.name, model.path, arguments, talk, title))
            results = handled(tasks, jobs)
            document = document_of(self.name, results)
            if report is not None:
                outputs.write_text(report, json_text(document))
            if self.talk.form == "json":
                show(json_text(document).rstrip())
            summarise(results, self.talk)
        return gravest(result.status for result in results)

    def _check(self) -> None:
        """Raise if options do not allow several models, before any work is done."""
        for option in _OF_ONE:
            if self.arguments.get(option) is not None:
                name = "-o" if option == "out" else f"--{option}"
                raise click.UsageError(
                    f"{name} names a file for one model, but there are several models, or there is "
                    "--output-dir. Use --output-dir for models, and --report for all reports."
                )
        if self.folder is not None and self.arguments.get("in_place"):
            raise click.UsageError("--output-dir and --in-place exclude each other. Use one.")
        needs = "out" in self.arguments and not any(map(self.arguments.get, _WITHOUT_OUTPUT))
        if needs and self.folder is None:
            raise click.UsageError(
                "There are several models, and --output-dir, the folder for the results, is "
                "missing. Add it."
            )
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise OptionError(
                f"{self.folder}: is a file, expected a folder for the results. Name a folder."
            )

    def _places(self, models: Sequence[FoundModel]) -> list[Path | None]:
        """Return the output path of each model.

        Raises:
            OptionError: two results would have one name, or one would replace an input.
        """
        if "out" not in self.arguments:
            return [None] * len(models)
        folder = self.folder
        places = [m.path if folder is None else folder / m.place for m in models]
        keys: dict[object, FoundModel] = {}
        for model, target in zip(models, places, strict=True):
            # Some file systems make one file of names that differ in case only.
            key = key_of(target) if folder is None else str(model.place).casefold()
            other = keys.setdefault(key, model)
            if other is not model:
                raise OptionError(
                    f"{other.path} and {model.path}: their results would both be {target}. Name "
                    "the folder that both are in, or convert them one after the other."
                )
        present = [] if folder is None else [target for target in places if target.exists()]
        if present:
            from qgraph.storage.reading import files_of

            read = {key_of(file) for model in models for file in files_of(model.path)}
            for target in present:
                if key_of(target) in read:
                    raise OptionError(
                        f"{target}: is read by this command, so a result cannot replace it. Name "
                        "another folder with --output-dir."
                    )
        return [*places]

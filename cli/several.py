"""Commands that accept several models, or two folders of models that are compared in pairs.

:mod:`qgraph.cli.tasks` handles each model or pair.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qgraph.cli import options
from qgraph.cli.files import planned
from qgraph.cli.output import Talk
from qgraph.cli.tuning import without_collector
from qgraph.errors import ModelError, OptionError
from qgraph.records import dataclass, replace
from qgraph.storage.places import key_of
from qgraph.text import counted

if TYPE_CHECKING:
    from qgraph.cli.tasks import Arguments, Task

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
            with without_collector():
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

    Results go to ``folder``; None if they replace the models, or there are none.
    """

    name: str
    talk: Talk
    folder: Path | None
    arguments: Arguments

    def all(self, named: Sequence[Path], jobs: int) -> int:
        """Handle all models, and return the exit status."""
        from qgraph.cli.tasks import Task, handle_all, new_folders

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
            return handle_all(tasks, jobs, self.talk, report, outputs, "model")

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
        """Return the output path of each model."""
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


_FOLDERS_OF: Mapping[str, str] = {
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
    from qgraph.cli.tasks import Task, handle_all, new_folders

    for option in _FOLDERS_OF:
        if arguments.get(option) == options.STDOUT:
            raise click.UsageError(
                f"--{option} - prints one report, but there are several. Name a folder for them."
            )
    pairs = _pairs(*folders, talk)
    report = arguments.get("report")
    folders_named = [arguments[option] for option in _FOLDERS_OF if arguments.get(option)]
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
            for option in _FOLDERS_OF:
                if own.get(option) is not None:
                    own[option] = (own[option] / place).with_suffix(_FOLDERS_OF[option])
            if report is not None:
                own["report"] = Path(scratch, f"{number}.json")
            subject = replace(talk, subject=str(candidate))
            title = f"{reference} and {candidate}" if talk.form == "table" else ""
            tasks.append(Task(name, candidate, own, subject, title))
        return handle_all(tasks, jobs, talk, report, outputs, "pair")


def _pairs(reference: Path, candidate: Path, talk: Talk) -> dict[Path, tuple[Path, Path]]:
    """Return the files of each model of both folders, by their path relative to the folder."""
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


_SUFFIX = ".onnx"


@dataclass(frozen=True)
class FoundModel:
    """A model that the user named, or that lies in a folder that the user named.

    ``place`` is its path relative to the named folder, and in the folder for results.
    """

    path: Path
    place: Path


def found_models(
    named: Sequence[Path], talk: Talk, *, without: Path | None = None
) -> list[FoundModel]:
    """Return the files among ``named``, and all files ``*.onnx`` in the folders, in sorted order.

    Files need not exist. Hidden folders, the folder ``without`` and links to folders are not
    searched; links are reported.

    Raises:
        ModelError: a folder holds no model, or cannot be read.
    """
    models = []
    left_out = None if without is None else key_of(without)
    for path in named:
        if not path.is_dir():
            models.append(FoundModel(path, Path(path.name)))
            continue
        files = []
        for folder, inner, names in os.walk(path, onerror=_unreadable):
            for link in sorted(name for name in inner if os.path.islink(Path(folder, name))):
                talk.note(f"{Path(folder, link)}: is a link to a folder, and is not searched")
            inner[:] = [
                name
                for name in inner
                if not name.startswith(".") and key_of(Path(folder, name)) != left_out
            ]
            files += [Path(folder, name) for name in names if name.endswith(_SUFFIX)]
        if not files:
            raise ModelError(
                f"{path}: is a folder without models, expected files *{_SUFFIX}. Name another "
                "folder, or the files themselves."
            )
        models += [FoundModel(file, file.relative_to(path)) for file in sorted(files)]
    return models


def _unreadable(error: OSError) -> None:
    raise ModelError(
        f"{error.filename}: cannot be read ({error.strerror}), expected a folder with models. "
        "Correct the permissions, or name the files themselves."
    ) from error

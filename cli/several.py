"""Commands that take several models: files and folders, in one process or in some.

Each model is handled by the command as if it were the only one. One that fails does not stop the
others; it is named at the end, with its status.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from qgraph.cli import options
from qgraph.cli.failures import DIFFERENT, UNDECIDED, UNUSABLE, USAGE, print_failure
from qgraph.cli.files import planned
from qgraph.cli.found import FoundModel, found_models
from qgraph.cli.output import Talk, show, show_paragraph
from qgraph.cli.process import SIGNALLED, Interrupted, interruptible, tune
from qgraph.errors import OptionError, QGraphError
from qgraph.reporting.view import Tone
from qgraph.storage.places import key_of
from qgraph.text import counted, json_text
from qgraph.version import head

Arguments = Mapping[str, Any]
"""Arguments of a command by name."""

_GRAVEST = (USAGE, UNUSABLE, DIFFERENT, UNDECIDED)
"""Statuses of models; the first of them that occurs is the status of the command."""
_OF_ONE = ("out", "certificate", "html", "markdown", "sarif")
"""Options that name a file for one model."""
_WITHOUT_OUTPUT = ("in_place", "dry_run", "explain")
"""Options of commands that then need no place for a model."""


def several_models(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add MODEL..., ``--output-dir`` and ``--jobs``; the command gets one ``model`` at a time.

    The decorator comes before all others, behind ``click.command`` only. ``--report`` of several
    models is one file with a list of their reports, and so is what ``--json`` prints. A command
    without the argument ``out`` writes no model, and has no ``--output-dir``.
    """

    @click.argument("models", type=options.file_path, nargs=-1, required=True, metavar="MODEL...")
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        show_default=True,
        help="Processes that share several models.",
    )
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


def gravest(statuses: Iterable[int]) -> int:
    """Return the status of a command from those of its models."""
    seen = set(statuses)
    return next((status for status in _GRAVEST if status in seen), max(seen, default=0))


output_folder = click.option(
    "--output-dir",
    type=options.file_path,
    metavar="DIR",
    help="Folder for the results of several models, which keep their names.",
)


@dataclass(frozen=True)
class _Task:
    """One model, and the arguments with which the command handles it."""

    name: str
    model: Path
    arguments: Arguments
    talk: Talk

    @property
    def has_title(self) -> bool:
        """Whether the name of the model is to be shown; a command without OUT shows it itself."""
        return "out" in self.arguments and not self.talk.quiet and self.talk.form == "table"


@dataclass(frozen=True)
class _Result:
    """What became of a model.

    Attributes:
        model: its file.
        status: the exit status of the command for it.
        message: why it failed.
        document: its report, if one is wanted.
        out, err: what was printed, if that is not printed yet.
    """

    model: Path
    status: int
    message: str = ""
    document: Any = None
    out: str = ""
    err: str = ""

    @property
    def entry(self) -> dict[str, Any]:
        """What the list of reports says of it."""
        if self.document is not None:
            return dict(self.document)
        return {"path": str(self.model), "status": self.status, "error": self.message}


@dataclass(frozen=True)
class _Run:
    """A command for several models.

    Attributes:
        name: of the command.
        talk: its messages.
        folder: for the results; None if they replace the models, or there are none.
        arguments: what the user gave besides.
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
            _folders({target.parent for target in places if target is not None}),
            planned(
                [report], files=[model.path for model in models if os.path.exists(model.path)]
            ) as outputs,
        ):
            if report is not None and key_of(report) in {key_of(p) for p in places if p}:
                raise OptionError(f"{report}: is the result of a model too. Name another file.")
            tasks: list[_Task] = []
            for model, target in zip(models, places, strict=True):
                arguments = dict(self.arguments) | {"models": (model.path,), "jobs": 1}
                if "out" in arguments:
                    arguments["out"] = target
                if report is not None:
                    arguments["report"] = Path(scratch, f"{len(tasks)}.json")
                talk = replace(self.talk, subject=str(model.path))
                tasks.append(_Task(self.name, model.path, arguments, talk))
            results = list(self._shown(_results(tasks, jobs)))
            failed = [result for result in results if result.status]
            document = head(self.name) | {
                "models": [result.entry for result in results],
                "summary": {"models": len(results), "failed": len(failed)},
            }
            if report is not None:
                outputs.write_text(report, json_text(document))
            if self._is_json:
                show(json_text(document).rstrip())
            self._summarise(results, failed)
        return gravest(result.status for result in failed)

    @property
    def _is_json(self) -> bool:
        return self.talk.form == "json"

    def _check(self) -> None:
        """Raise if options do not fit several models, before anything is done."""
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
                "There are several models and no --output-dir, the folder for the results. Add it."
            )
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise OptionError(
                f"{self.folder}: is a file, expected a folder for the results. Name a folder."
            )

    def _places(self, models: Sequence[FoundModel]) -> list[Path | None]:
        """Return where the result of each model goes.

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
                        f"{target}: is read by this command, expected a place of its own. Name "
                        "another folder with --output-dir."
                    )
        return [*places]

    def _shown(self, results: Iterator[_Result]) -> Iterator[_Result]:
        for result in results:
            sys.stdout.write(result.out)
            sys.stderr.write(result.err)
            yield result

    def _summarise(self, results: Sequence[_Result], failed: Sequence[_Result]) -> None:
        good = len(results) - len(failed)
        text = f"{counted(len(results), 'model')}: {good} good, {len(failed)} failed"
        lines = [
            f"{result.model}: status {result.status}: "
            + result.message.removeprefix(f"{result.model}: ")
            for result in failed
        ]
        if self.talk.form != "table":
            for line in (text, *lines):
                self.talk.note(line)
            return
        show_paragraph(text, Tone.BAD if failed else Tone.GOOD, is_bold=True)
        for line in lines:
            show_paragraph(line)


@contextlib.contextmanager
def _folders(wanted: set[Path]) -> Iterator[None]:
    """Create folders, and remove those of them that are empty after the block."""
    created: list[Path] = []
    try:
        for folder in sorted(wanted):
            for each in reversed([folder, *folder.parents]):
                if not each.exists():
                    each.mkdir()
                    created.append(each)
        yield
    except FileExistsError as error:
        raise QGraphError(
            f"{error.filename}: is a file, expected a folder for results. Name another folder."
        ) from error
    finally:
        for folder in reversed(created):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _results(tasks: Sequence[_Task], jobs: int) -> Iterator[_Result]:
    """Yield the result of each task, in order."""
    jobs = min(jobs, len(tasks))
    if jobs == 1:
        for task in tasks:
            if task.has_title:
                show_paragraph(str(task.model), is_bold=True)
            yield _handled(task)
            # What a model leaves behind has references to itself.
            gc.collect(1)
        return
    left = list(tasks)
    while left:
        try:
            for result in _in_processes(left, jobs):
                yield result
                del left[0]
        except BrokenProcessPool:
            # Which of the tasks at work ended its process shows when each of them is alone.
            if jobs == 1:
                message = "its process ended before it had a result. Run it alone to see why."
                left[0].talk.error(f"{left[0].model}: {message}")
                yield _Result(left[0].model, UNUSABLE, message)
                del left[0]
            jobs = 1


def _in_processes(tasks: Sequence[_Task], jobs: int) -> Iterator[_Result]:
    """Yield the result of each task, in order, from processes that do nothing else.

    Raises:
        BrokenProcessPool: one of them has ended.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=tune) as pool:
        futures = [pool.submit(_handled_apart, task) for task in tasks]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _handled_apart(task: _Task) -> _Result:
    """Handle a model in a process of a pool, and return what it prints."""
    out, err = io.StringIO(), io.StringIO()
    result = _Result(task.model, UNUSABLE)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), interruptible():
            options.load_modules(task.talk.plugins)
            if task.has_title:
                show(str(task.model))
            with task.talk.listening():
                result = _handled(task)
    except Interrupted as signal:
        return replace(result, status=SIGNALLED + signal.number, message=f"{signal.name}")
    gc.collect(1)
    return replace(result, out=out.getvalue(), err=err.getvalue())


def _handled(task: _Task) -> _Result:
    """Run the command for one model."""
    command: click.Command = importlib.import_module(f"qgraph.cli.commands.{task.name}").command
    report, as_json = task.arguments.get("report"), task.talk.form == "json"
    printed = io.StringIO()
    try:
        with (
            click.Context(command, info_name=task.name, obj=task.talk) as context,
            contextlib.redirect_stdout(printed if as_json else sys.stdout),
        ):
            status = int(context.invoke(command, **task.arguments) or 0)
    except BrokenPipeError:
        raise
    except Exception as error:
        failure = print_failure(error, task.talk)
        return _Result(task.model, failure.status, failure.message)
    document = json.loads(printed.getvalue()) if as_json else None
    if report is not None and report.exists():
        document = json.loads(report.read_text("utf-8"))
    return _Result(task.model, status, document=document)

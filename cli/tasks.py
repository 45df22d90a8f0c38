"""Run a command on several models, or pairs of models, in one process or several.

The command handles each model as if it were the only one. A model that fails does not stop the
others; it is listed at the end, with its status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qgraph.cli.output import (
    DIFFERENT,
    UNDECIDED,
    UNUSABLE,
    USAGE,
    Talk,
    print_failure,
    show,
    show_paragraph,
)
from qgraph.cli.process import SIGNALLED, Interrupted, interruptible, load_modules
from qgraph.cli.tuning import tune
from qgraph.errors import QGraphError
from qgraph.records import dataclass, replace
from qgraph.reporting.view import Tone
from qgraph.text import counted, json_text
from qgraph.version import head

if TYPE_CHECKING:
    from qgraph.storage.outputs import Outputs

Arguments = Mapping[str, Any]
"""Arguments of a command by name."""

_GRAVEST = (USAGE, UNUSABLE, DIFFERENT, UNDECIDED)
"""Statuses by gravity; the first one that occurs among the models is the status of the command."""
_VERDICTS = {DIFFERENT: "different", UNDECIDED: "undecided"}
"""Meaning of the statuses of pairs that were compared without an error."""


@dataclass(frozen=True)
class Task:
    """One call of a command, for one model or pair (then ``model`` is the candidate).

    The ``title``, if not empty, is printed first.
    """

    name: str
    model: Path
    arguments: Arguments
    talk: Talk
    title: str = ""

    def handle(self) -> TaskResult:
        """Run the command for the model."""
        command: click.Command = importlib.import_module(f"qgraph.cli.commands.{self.name}").command
        report, as_json = self.arguments.get("report"), self.talk.form == "json"
        printed = io.StringIO()
        try:
            with (
                click.Context(command, info_name=self.name, obj=self.talk) as context,
                contextlib.redirect_stdout(printed if as_json else sys.stdout),
            ):
                status = int(context.invoke(command, **self.arguments) or 0)
        except BrokenPipeError:
            raise
        except Exception as error:
            failure = print_failure(error, self.talk)
            return TaskResult(self.model, failure.status, failure.message)
        document = json.loads(printed.getvalue()) if as_json else None
        if report is not None and report.exists():
            document = json.loads(report.read_text("utf-8"))
        return TaskResult(self.model, status, document=document)


@dataclass(frozen=True)
class TaskResult:
    """Result for a model or a pair: why it failed, and its report, if one is wanted.

    ``out`` and ``err`` are output of the command that is not printed yet.
    """

    model: Path
    status: int
    message: str = ""
    document: Any = None
    out: str = ""
    err: str = ""

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in the list of reports."""
        if self.document is not None:
            return dict(self.document)
        return {"path": str(self.model), "status": self.status, "error": self.message}

    @property
    def described(self) -> tuple[str, str, str]:
        """The model, its status, and its verdict; stderr has the message of a failure."""
        return str(self.model), f"status {self.status}", _VERDICTS.get(self.status, "")


def gravest(statuses: Iterable[int]) -> int:
    """Return the status of the command from the statuses of its models."""
    seen = set(statuses)
    return next((status for status in _GRAVEST if status in seen), max(seen, default=0))


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except OSError as error:
        raise QGraphError(
            f"{folder}: cannot be made ({error.strerror}), expected a folder for results. Name "
            "another folder, or change the permissions."
        ) from error


@contextlib.contextmanager
def new_folders(wanted: set[Path]) -> Iterator[None]:
    """Create folders, and remove those of them that are empty after the block."""
    created: list[Path] = []
    try:
        for folder in sorted(wanted):
            for each in reversed([folder, *folder.parents]):
                if not each.exists():
                    _make(each)
                    created.append(each)
        yield
    finally:
        for folder in reversed(created):
            with contextlib.suppress(OSError):
                folder.rmdir()


def handle_all(
    tasks: Sequence[Task], jobs: int, talk: Talk, report: Path | None, outputs: Outputs, what: str
) -> int:
    """Handle tasks in ``jobs`` processes, print all results, and return the exit status.

    ``--report`` and ``--json`` write one list of all reports. ``what`` is the noun for a task, such
    as ``model``.
    """
    results = list(results_of(tasks, jobs))
    failed = [result for result in results if result.status]
    document = head(tasks[0].name) | {
        "models": [result.entry for result in results],
        "summary": {"models": len(results), "failed": len(failed)},
    }
    if report is not None:
        outputs.write_text(report, json_text(document))
    if talk.form == "json":
        show(json_text(document).rstrip())
    _summarise(results, failed, talk, what)
    return gravest(result.status for result in results)


def _summarise(
    results: Sequence[TaskResult], failed: Sequence[TaskResult], talk: Talk, what: str
) -> None:
    good = len(results) - len(failed)
    text = f"{counted(len(results), what)}: {good} good, {len(failed)} failed"
    lines = [": ".join(filter(None, result.described)) for result in failed]
    if talk.form != "table":
        for line in (text, *lines):
            talk.note(line)
        return
    show_paragraph(text, Tone.BAD if failed else Tone.GOOD, is_bold=True)
    for line in lines:
        show_paragraph(line)


def results_of(tasks: Sequence[Task], jobs: int) -> Iterator[TaskResult]:
    """Handle tasks in ``jobs`` processes, print their output, and yield their results, in order."""
    jobs = min(jobs, len(tasks))
    if jobs == 1:
        for task in tasks:
            if task.title:
                show_paragraph(task.title, is_bold=True)
            yield task.handle()
            # What a model leaves behind has references to itself.
            gc.collect(1)
        return
    # Processes are imported only where they are used.
    from concurrent.futures.process import BrokenProcessPool

    left = list(tasks)
    while left:
        try:
            for result in _in_processes(left, jobs):
                sys.stdout.write(result.out)
                sys.stderr.write(result.err)
                yield result
                del left[0]
        except BrokenProcessPool:
            # Which of the tasks at work ended its process shows when each of them is alone.
            if jobs == 1:
                message = "its process ended before it had a result. Run it alone to see why."
                left[0].talk.error(f"{left[0].model}: {message}")
                yield TaskResult(left[0].model, UNUSABLE, message)
                del left[0]
            jobs = 1


def _in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[TaskResult]:
    """Yield the result of each task, in order, from worker processes."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

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


def _handled_apart(task: Task) -> TaskResult:
    """Handle a model in a process of a pool, and return what it prints."""
    out, err = io.StringIO(), io.StringIO()
    result = TaskResult(task.model, UNUSABLE)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), interruptible():
            load_modules(task.talk.plugins)
            if task.title:
                show(task.title)
            with task.talk.listening():
                result = task.handle()
    except Interrupted as signal:
        return replace(result, status=SIGNALLED + signal.number, message=f"{signal.name}")
    gc.collect(1)
    return replace(result, out=out.getvalue(), err=err.getvalue())

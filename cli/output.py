"""Output of commands: results on stdout, messages, errors and progress on stderr."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

import click

from qgraph.effort import watched
from qgraph.errors import EquivalenceError, OptionError, QGraphError, UndecidedError, unexpected
from qgraph.records import dataclass, field, replace
from qgraph.reporting.view import Tone
from qgraph.text import printable, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


_ESCAPES = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[2m"}

STYLES = {Tone.GOOD: "green", Tone.BAD: "red", Tone.OPEN: "yellow", Tone.PLAIN: ""}

_LIBRARIES = ("onnx_ir",)
"""Libraries whose logs are shown like those of qgraph, but only with ``-v``."""


@dataclass
class Talk:
    """Messages on stderr, filtered by verbosity.

    Attributes:
        verbosity: how often ``-v`` was given.
        quiet: print only results and errors (``-q``).
        debug: whether errors show tracebacks.
        plugins: modules that are imported before the command runs.
        form: format of the result: table, json, csv, or another format of the command.
        wide: whether tables are printed at full width.
        timeout: seconds after which proofs and comparisons end undecided; None for no limit.
        subject: the model of the result, if the command has several models.
    """

    verbosity: int = 0
    quiet: bool = False
    debug: bool = False
    plugins: tuple[str, ...] = ()
    form: str = "table"
    wide: bool = False
    timeout: float | None = None
    subject: str = ""
    _told: set[str] = field(default_factory=set, repr=False)

    def note(self, text: str) -> None:
        """Print a message that is not part of the result."""
        if not self.quiet:
            _say("note", text)

    def warn(self, text: str) -> None:
        """Print a warning; ``-q`` does not hide it."""
        _say("warning", text)

    def error(self, text: str, *more: str) -> None:
        """Print an error."""
        _say("error", text)
        for line in more:
            _say("note", line)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Send the log of the library to stderr, at the current verbosity."""
        handler = logging.StreamHandler()
        handler.setFormatter(_Formatter())
        handler.addFilter(self._wanted)
        logger = logging.getLogger("qgraph")
        level = logger.level
        for name in ("qgraph", *_LIBRARIES):
            logging.getLogger(name).addHandler(handler)
        logger.setLevel(logging.DEBUG)
        with warnings.catch_warnings():
            # Warnings of libraries name their source lines, which say nothing to users.
            warnings.showwarning = lambda message, kind, *_: logger.debug(
                "%s: %s", kind.__name__, message
            )
            try:
                yield
            finally:
                for name in ("qgraph", *_LIBRARIES):
                    logging.getLogger(name).removeHandler(handler)
                logger.setLevel(level)

    def _wanted(self, record: logging.LogRecord) -> bool:
        lowest = logging.ERROR if self.quiet else logging.WARNING - 10 * self.verbosity
        text = record.getMessage()
        if record.name.split(".")[0] in _LIBRARIES:
            lowest += 10  # what matters to users is an error of qgraph
        # A node that runs again, or in a second model, logs the same message again.
        if record.levelno < lowest or text in self._told:
            return False
        self._told.add(text)
        return True


class _Formatter(logging.Formatter):
    """Formats a log record like other messages."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the level in lower case and the message."""
        return printable(f"{record.levelname.lower()}: {record.getMessage()}")


def show(text: str = "") -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{printable(text)}\n")


def flush_results() -> None:
    """Flush all lines of the result, so that no later write error is possible.

    Raises:
        QGraphError: they cannot be written.
    """
    sys.stdout.flush()


def show_paragraph(text: str, tone: Tone = Tone.PLAIN, *, is_bold: bool = False) -> None:
    """Print text, wrapped at the width of a terminal."""
    if not sys.stdout.isatty():
        show(text)
        return
    from rich.text import Text

    style = f"{'bold ' if is_bold else ''}{STYLES[tone]}".strip()
    console().print(Text(printable(text), style=style))


def console() -> Console:
    """Return a console for stdout without markup, emoji codes and highlighting."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def is_colourful(stream: TextIO) -> bool:
    """Return whether output is coloured: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _say(level: str, text: str) -> None:
    line = printable(text if level == "note" else f"{level}: {text}")
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    if is_colourful(sys.stderr):
        line = f"{_ESCAPES[level]}{line}\x1b[0m"
    sys.stderr.write(f"{line}\n")


DIFFERENT, USAGE, UNUSABLE, UNDECIDED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 130, 141
"""Exit codes; the last two are those of a process ended by SIGINT or SIGPIPE."""


@dataclass(frozen=True)
class Failure:
    """Why a command ends without success: exit status, what is wrong and what to do, remarks."""

    status: int
    message: str
    notes: tuple[str, ...] = ()


def print_failure(error: Exception, talk: Talk) -> Failure:
    """Print an error, and return it with its exit status; of several models, it names the model."""
    if talk.debug:
        traceback.print_exc()
    failure = _failure(error)
    if talk.subject not in failure.message:
        failure = replace(failure, message=f"{talk.subject}: {failure.message}")
    talk.error(failure.message, *failure.notes)
    return failure


def _failure(error: Exception) -> Failure:
    if isinstance(error, click.ClickException):
        return Failure(USAGE, error.format_message())
    if isinstance(error, QGraphError):
        status = USAGE if isinstance(error, OptionError) else UNUSABLE
        if isinstance(error, EquivalenceError):
            status = UNDECIDED if isinstance(error, UndecidedError) else DIFFERENT
        return Failure(status, str(error), tuple(getattr(error, "__notes__", ())))
    if isinstance(error, MemoryError):
        message = "there is not enough memory for this. Use smaller inputs, or a machine with more."
    elif isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        message = f"{what}. Correct this and run the command again."
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            message = (
                f"{tempfile.gettempdir()}: a temporary file cannot be written ({error.strerror}). "
                "Free some space, or set TMPDIR to another folder."
            )
    else:
        message = (
            f"{_models(error)} could not be handled ({unexpected(error)}). If onnx.checker "
            "accepts "
            "it, this is a bug in qgraph; please report it with the model and the traceback that "
            "--debug shows."
        )
    return Failure(UNUSABLE, message)


def _models(error: Exception) -> str:
    """Return the paths of the command's models, from the arguments of its function."""
    trace = error.__traceback__
    while trace is not None:
        variables = trace.tb_frame.f_locals
        paths = map(variables.get, ("model", "reference", "candidate", "path"))
        names = [str(path) for path in paths if isinstance(path, Path)]
        if names:
            return " or ".join(dict.fromkeys(names))
        trace = trace.tb_next
    return "the input"


_DELAY_SECONDS = 0.7


class ProgressBar:
    """Shows the current step, its progress, its elapsed time and its remaining time.

    Progress that long computations report is shown too, and they stop at the time limit of the
    command.

    Nothing is shown or imported if the work ends soon, if stderr is not a terminal, or with ``-q``.
    """

    def __init__(self, talk: Talk) -> None:
        self._timer: Timer | None = None
        if sys.stderr.isatty() and not talk.quiet:
            self._timer = Timer(_DELAY_SECONDS, self._start)
            self._timer.daemon = True
        self._lock = Lock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._state = ("", 0, 0, "")
        self._began = time.monotonic()
        self._timeout = talk.timeout
        self._watched = ExitStack()

    def __enter__(self) -> Self:
        self._watched.enter_context(watched(self.tell, self._timeout))
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watched.close()
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._bar is not None:
                self._bar.stop()

    def tell(self, what: str, done: int, total: int) -> None:
        """Show the current step and how many of its parts are done; total 0 if unknown."""
        self._show(printable(what), done, total, self._left(what, done, total))

    def tell_bytes(self, what: str, done: int, total: int) -> None:
        """Show the current step, its bytes, speed and remaining time."""
        left = self._left(what, done, total)
        text = f"{size(done)} of {size(total)}" if total else ""
        if left:
            rate = done / (time.monotonic() - self._began)
            text += f", {size(int(rate))}/s, {left}"
        self._show(printable(what), done, total, text)

    def _left(self, what: str, done: int, total: int) -> str:
        """Return the remaining time of a step, from its average speed; empty if not known."""
        now = time.monotonic()
        if not done or printable(what) != self._state[0]:
            self._began = now
        if not (done and total and now > self._began):
            return ""
        left = int((total - done) * (now - self._began) / done)
        return f"{left // 60}:{left % 60:02d} left"

    def _show(self, what: str, done: int, total: int, amount: str) -> None:
        self._state = (what, done, total, amount)
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, description=what, completed=done, total=total or None, amount=amount
            )

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
        )
        with self._lock:
            if self._timer is None:
                return
            bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            what, done, total, amount = self._state
            self._task = bar.add_task(what, completed=done, total=total or None, amount=amount)
            self._bar = bar
            bar.start()

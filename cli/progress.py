"""A progress bar on stderr, for work that takes long enough to ask what is going on.

The files that a command writes: guarded and locked before any work is done for them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

from qgraph.cli.output import Talk, flush_results
from qgraph.reporting.view import size
from qgraph.storage.outputs import HOLDS_WEIGHTS, Outputs
from qgraph.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DELAY_SECONDS = 0.7


class ProgressBar:
    """Shows what is being done, how much of it is done, and since when.

    Nothing is shown, and nothing imported for it, when the work is done soon, when stderr is no
    terminal, or when the user wants quiet.
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

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._bar is not None:
                self._bar.stop()

    def tell(self, what: str, done: int, total: int) -> None:
        """Show what is being done, and how many parts of it are; total 0 if that is not known."""
        self._show(printable(what), done, total, "")

    def tell_bytes(self, what: str, done: int, total: int) -> None:
        """Show what is being done, how many bytes of it are, how fast, and how long it will take.

        The rate and the time left count from the first of the bytes.
        """
        now = time.monotonic()
        if not done:
            self._began = now
        rate = done / (now - self._began) if done and now > self._began else 0.0
        text = f"{size(done)} of {size(total)}" if total else ""
        if rate and total:
            left = int((total - done) / rate)
            text += f", {size(int(rate))}/s, {left // 60}:{left % 60:02d} left"
        self._show(printable(what), done, total, text)

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


@contextmanager
def planned(
    targets: Iterable[Path | None],
    *,
    models: Iterable[Path | None] = (),
    files: Iterable[Path | None] = (),
) -> Iterator[Outputs]:
    """Give the outputs of a command, which appear together when the block ends without an error.

    What the command shows is written before that, so that a full disk behind the standard output
    leaves no file.

    Args:
        targets: files to write; None for those that are not wanted.
        models: model files that the command reads; their data files are guarded too.
        files: other files that it reads.

    Raises:
        OptionError: an output would replace one of these, or another output.
        QGraphError: an output cannot be written, or another process is writing it.
    """
    wanted = [target for target in targets if target is not None]
    with Outputs() as outputs:
        outputs.protect(files)
        if wanted:
            protect_models(outputs, models)
        for target in wanted:
            outputs.reserve(target)
        yield outputs
        flush_results()


def protect_models(outputs: Outputs, models: Iterable[Path | None]) -> None:
    """Keep outputs away from model files and their data files."""
    from qgraph.storage.reading import files_of

    for model in models:
        if model is not None:
            own, *data = files_of(model)
            outputs.protect([own])
            outputs.protect(data, HOLDS_WEIGHTS)

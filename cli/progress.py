"""A progress bar on stderr, for work that takes long enough to ask what is going on."""

from __future__ import annotations

import sys
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

from qgraph.cli.output import Talk, printable

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
        self._state = ("", 0, 0)

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
        self._state = (printable(what), done, total)
        if self._bar is not None and self._task is not None:
            text = self._state[0]
            self._bar.update(self._task, description=text, completed=done, total=total or None)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
        )
        with self._lock:
            if self._timer is None:
                return
            bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            what, done, total = self._state
            self._task = bar.add_task(what, completed=done, total=total or None)
            self._bar = bar
            bar.start()

"""Progress bar: the current step of a command, its progress, and the remaining time."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

from qgraph.cli.output import Talk
from qgraph.effort import watched
from qgraph.text import printable, size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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

"""A progress bar on stderr, for work that takes long enough to ask what is going on."""

from __future__ import annotations

import sys
import time
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

from qgraph.cli.output import Talk, bytes_text
from qgraph.markup import printable

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
        text = f"{bytes_text(done)} of {bytes_text(total)}" if total else ""
        if rate and total:
            left = int((total - done) / rate)
            text += f", {bytes_text(int(rate))}/s, {left // 60}:{left % 60:02d} left"
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

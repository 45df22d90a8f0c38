"""What is shown: tables and text on stdout, talk and progress on stderr, colours on terminals."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from qgraph.reporting.view import Cell, Column, Page, Section, Table, Tone
from qgraph.text import one_line, printable, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_ESCAPES = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[2m"}

_LEAST_CUT = 20
"""Texts are not cut shorter than this."""

_COARSE = str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*##")
"""Marks of bars for encodings that lack the fine ones."""

_STYLES = {Tone.GOOD: "green", Tone.BAD: "red", Tone.OPEN: "yellow", Tone.PLAIN: ""}

_LIBRARIES = ("onnx_ir",)
"""Libraries whose logs are shown like those of qgraph, but only if more output is wanted."""


@dataclass
class Talk:
    """Messages on stderr, filtered by verbosity.

    Attributes:
        verbosity: how often ``-v`` was given.
        quiet: whether only errors are wanted.
        debug: whether errors show tracebacks.
        plugins: modules that are imported before the command runs.
    """

    verbosity: int = 0
    quiet: bool = False
    debug: bool = False
    plugins: tuple[str, ...] = ()
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


def show_page(talk: Talk, page: Page) -> None:
    """Print a report; with ``-q`` only its verdict.

    Remarks go to stderr. Tables that are long are gathered, and others left out, unless the user
    wants more.
    """
    if not talk.quiet:
        if show_sections(talk, page.sections):
            show()
        show_paragraph("; ".join(f"{fact.name} {fact.value}" for fact in page.facts))
    show_paragraph(f"{page.verdict.upper()}: {page.sentence}", page.tone, is_bold=True)
    for line in () if talk.quiet else page.closing:
        show_paragraph(line)


def show_sections(talk: Talk, sections: Iterable[Section]) -> bool:
    """Print sections, a blank line between them; return whether there was anything to print."""
    is_first = True
    for section in sections:
        tables = section.tables if talk.verbosity or not section.detail else ()
        if (section.text or tables) and not section.is_drawn_only:
            if not is_first:
                show()
            is_first = False
            for text in section.text:
                show_paragraph(text)
            for table in tables:
                show_table(table, every=talk.verbosity > 0)
        if not section.is_drawn_only:
            for point in section.points:
                talk.note(point)
    return not is_first


def show_table(table: Table, *, every: bool = True) -> None:
    """Print a table, fitted to the terminal, or at full width if stdout is not a terminal.

    Columns that say nothing are left out.

    Args:
        table: the table.
        every: print all rows. Otherwise those of a long table that differ in names only are one
            row, and if these are many the first ones are printed.
    """
    hidden = 0
    if table.folded and not every:
        table = table.gathered()
        hidden = max(len(table.rows) - (table.most or 0), 0)
        table.rows = table.rows[: table.most]
    rows = [[Cell(_in_line(cell.text), cell.tone) for cell in row] for row in table.rows]
    columns, kept = table.columns, table.shown
    if sys.stdout.isatty():
        _show_fitted(columns, rows, kept)
    else:
        _show_plain([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    if hidden:
        show(f"and {hidden} more; -v shows all")


def _in_line(text: str) -> str:
    """Return text in one line, with coarse marks of bars if stdout cannot show the fine ones."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = text.translate(_COARSE)
    return one_line(text)


def _show_fitted(columns: Sequence[Column], rows: Sequence[list[Cell]], kept: list[int]) -> None:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    screen = console()
    widths = _fitted(columns, rows, kept, screen.width)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for index, width in widths.items():
        column = columns[index]
        grid.add_column(
            column.name,
            justify="right" if column.number else "left",
            no_wrap=column.code,
            overflow="ellipsis" if column.code else "fold",
            max_width=width if column.code else None,
        )
        if column.code:
            short = shortened([row[index].text for row in rows], width)
            for row, text in zip(rows, short, strict=True):
                row[index] = Cell(text, row[index].tone)
    for row in rows:
        grid.add_row(*(Text(row[i].text, style=_STYLES[row[i].tone]) for i in widths))
    screen.print(grid)


def show_paragraph(text: str, tone: Tone = Tone.PLAIN, *, is_bold: bool = False) -> None:
    """Print text, wrapped at the width of a terminal."""
    if not sys.stdout.isatty():
        show(text)
        return
    from rich.text import Text

    style = f"{'bold ' if is_bold else ''}{_STYLES[tone]}".strip()
    console().print(Text(printable(text), style=style))


def console() -> Console:
    """Return a console for stdout without markup, emoji codes and highlighting."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def is_colourful(stream: TextIO) -> bool:
    """Return whether colours are wanted: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _say(kind: str, text: str) -> None:
    line = printable(text if kind == "note" else f"{kind}: {text}")
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    if is_colourful(sys.stderr):
        line = f"{_ESCAPES[kind]}{line}\x1b[0m"
    sys.stderr.write(f"{line}\n")


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Return texts shortened to ``width`` characters; different texts stay different if possible.

    Names of one model begin and end alike. A name that is too long keeps its end; where ends are
    alike, what all the long ones end with is left out, and what comes before is kept.
    """
    long = {text for text in texts if len(text) > width}
    cut = {text: f"…{text[1 - width :]}" for text in long}
    if len(set(cut.values())) < len(long):
        some, *others = long
        tail = 0
        while all(other.endswith(some[-tail - 1 :]) for other in others):
            tail += 1
        tail -= max(some[len(some) - tail :].find("/"), 0)  # parts of a path stay whole
        kept = {text: text[: len(text) - tail] for text in long}
        cut = {
            text: f"{front}…" if len(front) < width else f"…{front[3 - width - 1 :]}…"
            for text, front in kept.items()
        }
    return [cut.get(text, text) for text in texts]


def _fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], kept: list[int], room: int
) -> dict[int, int]:
    """Return the columns to show and their widths; columns are three characters apart.

    If there is too little room, texts that may be shortened are shortened, then optional columns
    are removed; whatever is still too wide is wrapped.
    """
    widths = {
        index: max(len(text) for text in (columns[index].name, *(row[index].text for row in rows)))
        for index in kept
    }

    def excess() -> int:
        # Some versions of rich put a blank at the end of each line.
        return sum(widths.values()) + 3 * (len(widths) - 1) + 1 - room

    whole = dict(widths)
    for index in kept:
        if columns[index].code:
            widths[index] = min(widths[index], _LEAST_CUT)
    for index in reversed(kept):
        if columns[index].spare and excess() > 0:
            del widths[index]
    while excess() < 0 and (cut := [index for index in widths if widths[index] < whole[index]]):
        widths[min(cut, key=lambda index: widths[index])] += 1
    return widths


def _show_plain(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    lines = [[column.name for column in columns]]
    lines += [[cell.text for cell in row] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    for line in lines:
        parts = [
            text.rjust(width) if column.number else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ]
        show("  ".join(parts).rstrip())


_DELAY_SECONDS = 0.7


class ProgressBar:
    """Shows the current step, its progress, and the time since its start.

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
        """Show the current step and how many of its parts are done; total 0 if unknown."""
        self._show(printable(what), done, total, "")

    def tell_bytes(self, what: str, done: int, total: int) -> None:
        """Show the current step, its bytes, and speed and time left since the first of them."""
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

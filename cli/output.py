"""What is shown: tables and text on stdout, talk on stderr, colours on terminals only."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from qgraph.markup import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

_ESCAPES = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[2m"}
_RESET = "\x1b[0m"

_LEAST_CUT = 20
"""Texts are not cut shorter than this."""


@dataclass(frozen=True)
class Cell:
    """Text in a table with a style of rich, such as ``red`` or ``dim``."""

    text: str
    style: str = ""


Rows = Sequence[Sequence[Cell | str]]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        right: whether it is aligned to the right, as numbers are.
        cut: whether its texts are cut rather than wrapped where there is little room.
        spare: whether it may be left out where there is little room.
    """

    name: str
    right: bool = False
    cut: bool = False
    spare: bool = False


@dataclass
class Talk:
    """How much is said on stderr.

    Attributes:
        verbosity: how often ``-v`` was given.
        quiet: whether only errors are wanted.
        debug: whether errors show tracebacks.
    """

    verbosity: int = 0
    quiet: bool = False
    debug: bool = False
    _told: set[str] = field(default_factory=set, repr=False)

    def note(self, text: str) -> None:
        """Tell something that is not the result."""
        if not self.quiet:
            _say("note", text)

    def warn(self, text: str) -> None:
        """Tell what the user should know even if nothing else is wanted."""
        _say("warning", text)

    def error(self, text: str, *more: str) -> None:
        """Tell what went wrong."""
        _say("error", text)
        for line in more:
            _say("note", line)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Send what the library logs to stderr, as far as the options of this moment allow."""
        handler = logging.StreamHandler()
        handler.setFormatter(_Formatter())
        handler.addFilter(self._wanted)
        logger = logging.getLogger("qgraph")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def _wanted(self, record: logging.LogRecord) -> bool:
        lowest = logging.ERROR if self.quiet else logging.WARNING - 10 * self.verbosity
        text = record.getMessage()
        # A node that is run again, or in a second model, says the same again.
        if record.levelno < lowest or text in self._told:
            return False
        self._told.add(text)
        return True


class _Formatter(logging.Formatter):
    """Writes a record as everything else that is told."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the level in lower case and the message."""
        return printable(f"{record.levelname.lower()}: {record.getMessage()}")


def show(text: str = "") -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{printable(text)}\n")


def flush_results() -> None:
    """Hand over all lines of the result; afterwards nothing of them can fail.

    Raises:
        QGraphError: they cannot be written.
    """
    sys.stdout.flush()


def show_table(columns: Sequence[Column], rows: Rows) -> None:
    """Print a table: fitted to a terminal, or else with as much room as the texts need.

    Columns that say nothing are left out.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(one_line(cell.text), cell.style) for cell in row] for row in cells]
    kept = [place for place in range(len(columns)) if any(row[place].text for row in cells)]
    if not sys.stdout.isatty():
        _show_plain([columns[place] for place in kept], [[row[i] for i in kept] for row in cells])
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console()
    widths = _fitted(columns, cells, kept, screen.width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for place, width in widths.items():
        column = columns[place]
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=column.cut,
            overflow="ellipsis" if column.cut else "fold",
            max_width=width if column.cut else None,
        )
        if column.cut:
            short = shortened([row[place].text for row in cells], width)
            for row, text in zip(cells, short, strict=True):
                row[place] = Cell(text, row[place].style)
    for row in cells:
        table.add_row(*(Text(row[place].text, style=row[place].style) for place in widths))
    screen.print(table)


def show_paragraph(text: str, style: str = "", *, indent: int = 0) -> None:
    """Print text, wrapped at the width of a terminal."""
    if not sys.stdout.isatty():
        show(" " * indent + text)
        return
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text(printable(text), style=style), (0, 0, 0, indent)))


def console() -> Console:
    """Return a console for stdout that changes nothing of what it is given."""
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
        line = f"{_ESCAPES[kind]}{line}{_RESET}"
    sys.stderr.write(f"{line}\n")


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Return texts of at most so many characters, which differ where the texts do if they can.

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
    """Return the columns that are shown and their widths; columns are three characters apart.

    Where there is too little room, texts that may be cut are, then spare columns go; whatever is
    still too wide is wrapped.
    """
    widths = {
        place: max(len(text) for text in (columns[place].name, *(row[place].text for row in rows)))
        for place in kept
    }

    def excess() -> int:
        # Some versions of rich put a blank at the end of each line.
        return sum(widths.values()) + 3 * (len(widths) - 1) + 1 - room

    whole = dict(widths)
    for place in kept:
        if columns[place].cut:
            widths[place] = min(widths[place], _LEAST_CUT)
    for place in reversed(kept):
        if columns[place].spare and excess() > 0:
            del widths[place]
    while excess() < 0 and (cut := [place for place in widths if widths[place] < whole[place]]):
        widths[min(cut, key=lambda place: widths[place])] += 1
    return widths


def _show_plain(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    lines = [[column.name for column in columns]]
    lines += [[cell.text for cell in row] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    for line in lines:
        parts = [
            text.rjust(width) if column.right else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ]
        show("  ".join(parts).rstrip())


def count(number: int, noun: str) -> str:
    """Return ``1 site`` or ``2 sites``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def bytes_text(number: int) -> str:
    """Return a number of bytes as people read it: ``118 KiB``."""
    amount, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1000 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def number_text(number: float | None, digits: int = 6) -> str:
    """Return a number with so many digits; a dash where there is none."""
    return "-" if number is None else f"{number:.{digits}g}"


def percent_text(share: float) -> str:
    """Return a share of 1 in percent; a tiny one is not shown as none."""
    if 0 < share < 0.0001:
        return "<0.01%"
    return f"{share:.2%}"


def bar_marks() -> str:
    """Return marks of growing height, as fine as the encoding of stdout allows; the first is 0."""
    fine = " ▁▂▃▄▅▆▇█"
    try:
        fine.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return " .:-=+*#"
    return fine

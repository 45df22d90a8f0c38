"""Print results of commands as tables, JSON or CSV.

Tables are fitted to a terminal, and whole in a pipe.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from qgraph.cli.output import STYLES, Talk, console, flush_results, show, show_paragraph
from qgraph.reporting.pages import next_step
from qgraph.reporting.view import Cell, Column, Page, Section, Table
from qgraph.text import NONE, json_text, one_line

View = Callable[[Mapping[str, Any]], Page | Iterable[Section]]


def show_document(
    talk: Talk,
    document: Mapping[str, Any],
    view: View,
    models: Sequence[object] = (),
    inputs: Sequence[str] = (),
) -> None:
    """Print the result of a command, a JSON document, in the format of ``talk``.

    Args:
        talk: output options.
        document: the result.
        view: turns the document into a page or its sections.
        models: files that the command was given, for the advice on what to do next.
        inputs: options to repeat in the advice, such as those for the inputs.
    """
    if talk.form == "json":
        show(json_text(dict(document)).rstrip())
        return
    shown = view(document)
    sections = list(shown.sections if isinstance(shown, Page) else shown)
    page = shown if isinstance(shown, Page) else None
    if talk.form == "csv":
        _show_csv(talk, sections, page)
    elif page is not None:
        show_page(talk, page)
    else:
        show_sections(talk, sections)
    if page is None or not page.closing:
        advise(talk, document, models, inputs)


def advise(
    talk: Talk,
    document: Mapping[str, Any],
    models: Sequence[object] = (),
    inputs: Sequence[str] = (),
) -> None:
    """Print what to do after a result; for the arguments see :func:`show_document`."""
    command = {"command": click.get_current_context().info_name}
    advice = next_step(command | dict(document), models, inputs)
    flush_results()
    is_read = not getattr(sys.stdout, "is_gone", False)
    if advice is not None and is_read:
        talk.note(f"next: {advice}")


def show_page(talk: Talk, page: Page) -> None:
    """Print a report; with ``-q`` only its verdict.

    Remarks go to stderr. Without ``-v``, rows of long tables are grouped, and optional tables are
    omitted.
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
                show_table(table, talk)
        if not section.is_drawn_only:
            if section.points and not section.text:
                talk.note(f"{section.title}:")
            for point in section.points:  # a list stays with its sentence
                show_paragraph(point) if section.text else talk.note(f"- {point}")
    return not is_first


def _show_csv(talk: Talk, sections: Sequence[Section], page: Page | None) -> None:
    """Print all tables to stdout, and the other texts to stderr."""
    tables = [table for section in sections for table in section.tables]
    if page is not None:
        facts = [["verdict", page.verdict], *([fact.name, fact.value] for fact in page.facts)]
        tables.insert(0, Table("summary", ["name", "value"], facts))
        talk.note(page.sentence)
    for section in sections:
        for text in (*section.text, *section.points):
            talk.note(text)
    sys.stdout.write(csv_text(tables, talk.subject))


_LEAST_CUT = 20
"""Texts are not cut shorter than this."""

_LEAST_PREFIX = 8
"""Common prefixes of names that are shorter than this are not removed."""

_COARSE = str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*##")
"""Coarse characters of bars, for encodings that lack the fine ones."""

_THOUSANDS = r"(?<=\d),(?=\d{3})"
_LARGE_NUMBER = r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?"


def show_table(table: Table, talk: Talk | None = None) -> None:
    """Print a table, fitted to the terminal, or at full width if stdout is not a terminal.

    Columns without content are omitted. A line below the table names everything else that is
    omitted, with the option that shows it. If ``talk`` is given and without ``-v``, rows of a long
    table that differ only in names are grouped, and only the first groups are printed.
    """
    hidden = 0
    if talk is not None and table.folded and not (talk.verbosity or talk.wide):
        table = table.gathered()
        hidden = max(len(table.rows) - (table.most or 0), 0)
        table.rows = table.rows[: table.most]
    columns, kept = table.columns, table.shown
    if sys.stdout.isatty() and not (talk is not None and talk.wide):
        rows = [[Cell(_in_line(cell.text), cell.tone) for cell in row] for row in table.rows]
        _show_fitted(columns, rows, kept)
    else:
        texts = [[_in_line(row[i].text) for i in kept] for row in table.rows]
        _show_plain([columns[i] for i in kept], texts)
    if hidden:
        show(f"and {hidden} more; -v shows all")


def csv_text(tables: Iterable[Table], subject: str = "") -> str:
    """Return tables as CSV, an empty line between them; each begins with the name of the table.

    Cells are not shortened and have no digit separators. A missing number is empty. If there are
    several models, ``subject`` is the model of the tables, and the first column.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["model"] if subject else []
    for number, table in enumerate(tables):
        if number:
            text.write("\n")
        writer.writerow([*head, "table", *(column.name for column in table.columns)])
        for row in table.rows:
            cells = [_machine_text(c, cell) for c, cell in zip(table.columns, row, strict=True)]
            writer.writerow([*([subject] if subject else []), table.label, *cells])
    return text.getvalue()


def _machine_text(column: Column, cell: Cell) -> str:
    text = one_line(cell.full or cell.text)
    is_number = column.number or (not column.code and re.fullmatch(_LARGE_NUMBER, text))
    return "" if text == NONE else re.sub(_THOUSANDS, "", text) if is_number else text


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
    notes = []
    for index in kept:
        texts = [row[index].text for row in rows]
        prefix = common_prefix(texts)
        if columns[index].code and prefix and max(map(len, texts)) > screen.width // 2:
            notes.append(f"in {columns[index].name!r}, names begin with {prefix}")
            for row in rows:
                row[index] = Cell(row[index].text.removeprefix(prefix), row[index].tone)
    widths = _fitted(columns, rows, kept, screen.width)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    is_cut = False
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
                is_cut |= text != row[index].text
                row[index] = Cell(text, row[index].tone)
    for row in rows:
        grid.add_row(*(Text(row[i].text, style=STYLES[row[i].tone]) for i in widths))
    screen.print(grid)
    if left := [columns[index].name for index in kept if index not in widths]:
        notes.append(f"not shown: {', '.join(left)}")
    if is_cut:
        notes.append("names are cut at …")
    if notes:
        show_paragraph(f"{'; '.join(notes)}. --wide shows all")


def common_prefix(names: Sequence[str]) -> str:
    """Return the common prefix of all names, up to the end of a part; empty if it is short.

    The rest of each name begins with a part, and prefix and rest together are the name.
    """
    low, high = min(names, default=""), max(names, default="")
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    end = max(low.rfind(mark, 0, same) + 1 for mark in "/.:")
    return low[:end] if end >= _LEAST_PREFIX and len(set(names)) > 1 else ""


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Return texts shortened to ``width`` characters; different texts stay different if possible.

    Names in one model often share prefixes and suffixes. A name that is too long keeps its end. If
    all long names share a suffix, the suffix is removed and the part before it is kept.
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

    If the table is too wide, texts that may be shortened are shortened, then optional columns are
    removed, and then cells are wrapped.
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


def _show_plain(columns: Sequence[Column], rows: Sequence[list[str]]) -> None:
    lines = [[column.name for column in columns], *rows]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    for line in lines:
        parts = [
            text.rjust(width) if column.number else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ]
        show("  ".join(parts).rstrip())

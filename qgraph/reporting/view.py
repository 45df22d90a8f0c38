"""View model of a report; HTML, Markdown, SARIF, JUnit and text are rendered from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from enum import StrEnum
from itertools import compress
from typing import Any

from qgraph.records import by_key, dataclass
from qgraph.text import NONE

MANY = 24
"""Number of rows above which tables are folded in pages, and grouped on terminals."""


class Tone(StrEnum):
    """Tone of a text: good, bad, open or neutral; each has a colour."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    PLAIN = "plain"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        number: whether its texts are aligned to the right.
        code: whether they are names of a model, which may be shortened on a terminal.
        spare: whether it may be omitted on a narrow terminal.
    """

    name: str
    number: bool = False
    code: bool = False
    spare: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its colour, and the full text if it is shortened."""

    text: str
    tone: Tone = Tone.PLAIN
    full: str = ""


Row = Sequence[Cell | str]
Columns = list[Column | str]
"""Columns, or names of columns without options."""


class Table:
    """A table of cells; rows have a cell, or its text, for each column.

    Args:
        label: what the rows describe, such as ``layers``.
        columns: its columns.
        rows: its rows.
        most: number of rows shown without folding; None for all.
    """

    def __init__(
        self, label: str, columns: Columns, rows: Sequence[Row], most: int | None = None
    ) -> None:
        self.label = label
        self.columns: list[Column] = [
            Column(each) if isinstance(each, str) else each for each in columns
        ]
        self.rows = [
            [cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows
        ]
        self.most = most

    @property
    def folded(self) -> bool:
        """Whether the table is long enough to be folded."""
        return self.most is not None and len(self.rows) > self.most

    @property
    def shown(self) -> list[int]:
        """Indices of the columns that have a text."""
        return [
            index
            for index in range(len(self.columns))
            if any(row[index].text not in ("", NONE) for row in self.rows)
        ]

    def gathered(self) -> Table:
        """Return the table with rows joined that differ only in names: ``first and 7 more``."""
        shown = [not column.code for column in self.columns]
        rows = []
        for group in by_key((tuple(compress(row, shown)), row) for row in self.rows).values():
            more = and_more(group)
            rows.append(
                [
                    Cell(cell.text + more, cell.tone) if column.code else cell
                    for column, cell in zip(self.columns, group[0], strict=True)
                ]
            )
        return Table(self.label, [*self.columns], rows, self.most)


@dataclass(frozen=True)
class Chart:
    """A picture: its title, and a function that draws it as an SVG element on demand."""

    title: str
    draw: Callable[[], str]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading; ``points`` are remarks, one below the other.

    Terminals show the tables of a ``detail`` only on demand.
    """

    title: str
    text: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    detail: bool = False

    @property
    def is_drawn_only(self) -> bool:
        """Whether the section consists of pictures only."""
        return bool(self.charts) and not (self.tables or self.points)


@dataclass(frozen=True)
class KeyFigure:
    """A key figure: a tile at the top of the page."""

    name: str
    value: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class File:
    """A model of the report; a model in memory has no path."""

    role: str
    path: str | None
    sha256: str | None = None
    remark: str = ""

    @property
    def name(self) -> str:
        """Its path, or "a model in memory"."""
        return "a model in memory" if self.path is None else self.path


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding."""

    id: str
    name: str
    short: str
    full: str
    help: str
    level: Severity


@dataclass(frozen=True)
class Issue:
    """A finding for a code scanner or a test server.

    Attributes:
        rule: id of the kind of finding, see :data:`qgraph.reporting.findings.RULES`; None if a test
            has passed.
        text: a sentence.
        place: name of the node, output, metric or option.
        kind: which of these it is.
        role: the file of the finding, such as ``candidate``.
        properties: figures for programs.
        test: name of its test case; None if there is none.
        more: further text of a failed test.
        level: its severity; None for that of its kind.
        fix: how to fix it; None if there is no fix.
    """

    rule: str | None
    text: str = ""
    place: str = ""
    kind: str = "node"
    role: str = "candidate"
    properties: Mapping[str, Any] | None = None
    test: str | None = None
    more: str = ""
    level: Severity | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Page:
    """A report for people.

    Attributes:
        verdict: one word.
        tone: of the verdict.
        sentence: the verdict in full.
        facts: the most important numbers.
        findings: findings for code scanners and test servers.
        closing: advice: lines after everything else.
        kinds: of the findings; none if they are among those of all other commands.
    """

    command: str
    version: str
    verdict: str
    tone: Tone
    sentence: str
    files: Sequence[File]
    facts: Sequence[KeyFigure]
    sections: Sequence[Section]
    findings: Sequence[Issue]
    closing: Sequence[str] = ()
    kinds: Sequence[FindingKind] = ()


def files_of(document: Mapping[str, Any], *roles: str) -> list[File]:
    """Return the models of a document that it has, by their roles."""
    stated = {role: document[role] for role in roles if isinstance(document.get(role), Mapping)}
    return [
        File(
            role,
            each["path"],
            each.get("sha256"),
            f"opset {each['opset']}, IR version {each['ir_version']}" if "opset" in each else "",
        )
        for role, each in stated.items()
    ]


def pascal(name: str) -> str:
    """Return ``BiasScale`` for ``bias-scale``."""
    return "".join(word.capitalize() for word in name.split("-"))


def and_more(group: Sized) -> str:
    """Return how many further members a group has, after its first."""
    return f" and {len(group) - 1} more" if len(group) > 1 else ""


def numbers(*names: str, spare: bool = False) -> list[Column]:
    """Return columns of numbers."""
    return [Column(name, number=True, spare=spare) for name in names]


def operator(name: str) -> str:
    """Return the name of an operator without its domain."""
    return name.rpartition("::")[2]


def with_id(entry: Mapping[str, Any]) -> str:
    """Return the reason of a site or region with its id, which reports of schema 1 lack."""
    reason, reason_id = entry["reason"], entry.get("reason_id")
    return f"{reason or ''} [{reason_id}]" if reason_id else str(reason or "")

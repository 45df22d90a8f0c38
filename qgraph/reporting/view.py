"""What a page consists of, before it is HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NONE = "\N{EN DASH}"
"""Stands where there is no number."""

_MINUS = "\N{MINUS SIGN}"
_TIMES = "\N{MULTIPLICATION SIGN}"


class Tone(StrEnum):
    """Whether something is good news; the page has a colour and a sign for each."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    PLAIN = "plain"


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers are aligned to the right, names are set as code."""

    name: str
    number: bool = False
    code: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it says.
        tone: its colour.
        full: the whole of a text that is shortened.
    """

    text: str
    tone: Tone = Tone.PLAIN
    full: str = ""


@dataclass(frozen=True)
class Table:
    """A table; a folded one is opened by the reader."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    label: str
    folded: bool = False

    @property
    def shown(self) -> list[int]:
        """Numbers of the columns that say something."""
        return [
            place
            for place in range(len(self.columns))
            if any(row[place].text not in ("", NONE) for row in self.rows)
        ]


@dataclass(frozen=True)
class Chart:
    """A picture: what it shows, and how it is drawn, which not every form of a report needs."""

    title: str
    draw: Callable[[], str]
    caption: str = ""

    @property
    def svg(self) -> str:
        """The picture, an SVG element, drawn anew each time."""
        return self.draw()


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own."""

    title: str
    text: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True)
class Fact:
    """A number that tells much: a tile at the top of the page."""

    name: str
    value: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class File:
    """A model that the report is about."""

    role: str
    path: str
    sha256: str | None = None
    remark: str = ""


@dataclass(frozen=True)
class Page:
    """A report for people.

    Attributes:
        command: what made it.
        version: of qgraph.
        verdict: in a word.
        tone: of the verdict.
        sentence: the verdict in full.
        files: the models.
        facts: the most important numbers.
        sections: everything else.
    """

    command: str
    version: str
    verdict: str
    tone: Tone
    sentence: str
    files: Sequence[File] = ()
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = field(default_factory=list)


def whole(number: int) -> str:
    """Return a whole number with its thousands apart."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def amount(number: Any, digits: int = 6) -> str:
    """Return a number of a report with so many digits; a dash for none.

    What is not finite stands in JSON as a word.
    """
    if number is None:
        return NONE
    value = float(number)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    return f"{value:.{digits}g}".replace("-", _MINUS)


def size(number: int) -> str:
    """Return a number of bytes as people read it: ``118 KiB``."""
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def factor(before: int, after: int) -> str:
    """Return how many times smaller something became."""
    return f"{before / after:.1f}{_TIMES}" if after else NONE


def counted(number: int, noun: str) -> str:
    """Return ``1 region`` or ``2 regions``."""
    return f"{whole(number)} {noun}{'' if number == 1 else 's'}"


def operator(name: str) -> str:
    """Return the name of an operator without its domain."""
    return name.rpartition("::")[2]


def example(found: Mapping[str, Any]) -> str:
    """Return the rest of a sentence about a difference: its witness, if there is one."""
    witness = found["witness"]
    if witness is None:
        return ""
    x, y, z = (amount(witness[name], 9) for name in ("input", "reference", "candidate"))
    return f", such as {x}: {z}, not {y}"

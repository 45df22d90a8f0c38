"""Texts for terminals, Markdown, XML and JSON, and of objects. Names may have any character."""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import math
import re
import types
import typing
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar

_MARKDOWN = (
    r"[\\`*\[\]<|~$]|(?<!\w)_|_(?!\w)|&(?=[#\w])|^[#>+-](?=\s|#|>)|"
    r"(?<=^\d)\.(?=\s)|(?<=^\d\d)\.(?=\s)"
)
"""Special characters of GitHub's Markdown; a backslash escapes them."""

_NOT_CODE = r"[`|\\]|^\s|\s$"
"""Characters that a code span in a table cell cannot contain, or not at its ends."""


def printable(text: str) -> str:
    """Return text with control characters made visible.

    The result has no characters that XML forbids or that control a terminal; line ends are kept.
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else _code(c) for c in text)


_COMMAND = re.compile(r"(^|[\r\n])([^\S\r\n]*):(?=:)|#(?=#\[)")


def without_commands(text: str, *, at_line_start: bool = True) -> str:
    """Return text in which no line is a GitHub workflow command.

    Workflow commands are lines that begin with ``::`` after blanks, and ``##[`` anywhere. The first
    colon or number sign is replaced by its JSON escape, so a JSON document keeps its meaning. The
    text begins a line if ``at_line_start``.
    """

    def escape(match: re.Match[str]) -> str:
        if match[0] == "#":
            return "\\u0023"
        is_inside = match.start() == 0 and not match[1] and not at_line_start
        return match[0] if is_inside else f"{match[1]}{match[2]}\\u003a"

    return _COMMAND.sub(escape, text)


def one_line(text: str) -> str:
    """Return text as :func:`printable` does, in which ends of lines are shown, too."""
    return printable(text).replace("\n", "\\n")


def markdown(text: str) -> str:
    """Return text on one line that Markdown shows literally, also in a table cell."""
    line = " ".join(printable(text).split("\n"))
    return re.sub(_MARKDOWN, lambda match: f"\\{match[0]}", line)


def markdown_code(text: str) -> str:
    """Return a name as Markdown code, or as text if a code span cannot hold it."""
    line = one_line(text)
    return markdown(line) if not line or re.search(_NOT_CODE, line) else f"`{line}`"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def json_text(document: dict[str, Any]) -> str:
    """Return a JSON document; ``NaN``, ``Infinity`` and ``-Infinity`` become strings.

    JSON has no such numbers, and strict readers reject them.
    """
    return json.dumps(as_read(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_read(node: Any) -> Any:
    """Return what a reader of :func:`json_text` gets for a part of a document."""
    if type(node) in _PLAIN:
        return node
    if isinstance(node, dict):
        return {
            as_read(key): value if type(value) in _PLAIN else as_read(value)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [as_read(value) for value in node]
    if isinstance(node, float):
        if math.isfinite(node):
            return float(node)
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    if isinstance(node, str | int):
        return str.__str__(node) if isinstance(node, str) else int(node)
    raise TypeError(f"{type(node).__name__} has no form in JSON")


_PLAIN = {str, int, bool, types.NoneType}


T = TypeVar("T")

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def read_fields(cls: type[T], known: Mapping[str, Any]) -> T:
    """Return a dataclass from a mapping that has all of its fields, of exactly their types.

    A class with a method ``from_json`` is read by that.

    Raises:
        KeyError: a field is missing.
        TypeError: a value is of another type.
        ValueError: a value is no member of an enumeration.
    """
    hints = _hints(cls)  # type: ignore[arg-type]  # classes are hashable
    return cls(**{name: read_json(hint, known[name]) for name, hint in hints.items()})


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass by name."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def read_json(hint: Any, value: Any) -> Any:
    """Return a JSON value as a type, which must be exactly that; see :func:`read_fields`.

    Raises:
        TypeError: the value is of another type.
        ValueError: it is no member of an enumeration.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or origin is dict:
        return value
    if origin in (types.UnionType, typing.Union):
        choices = [choice for choice in inner if choice is not types.NoneType]
        if value is None and types.NoneType in inner:
            return None
        fitting = [choice for choice in choices if type(value) is choice]
        return read_json(fitting[0] if fitting else choices[0], value)
    if origin is tuple:
        items = value if isinstance(value, list) else list(value) if type(value) is tuple else None
        if items is None:
            raise TypeError(f"list: {value!r}")
        each = [inner[0]] * len(items) if inner[1:] == (...,) else inner
        return tuple(read_json(k, item) for k, item in zip(each, items, strict=True))
    if hasattr(hint, "from_json"):
        return hint.from_json(value if issubclass(hint, str) else _mapping(value))
    if isinstance(hint, type) and is_dataclass(hint):
        return read_fields(hint, _mapping(value))
    if hint is float:
        number = _SPECIAL[value] if isinstance(value, str) else value
        if type(number) not in (int, float):
            raise TypeError(f"number: {value!r}")
        try:
            return float(number)
        except OverflowError as error:
            raise ValueError(f"number beyond float64: {value!r:.20}") from error
    if issubclass(hint, StrEnum) and type(value) is str:
        member = hint(value)
        if str(member) != value:
            raise ValueError(f"{hint.__name__}: {value!r}")
        return member
    if type(value) is not hint:
        raise TypeError(f"{hint.__name__}: {value!r}")
    return value


def fields_json(thing: Any, *names: str) -> dict[str, Any]:
    """Return attributes of an object, by default all fields of a dataclass, as JSON has them.

    :func:`read_fields` reads them.
    """
    return {
        name: as_json(getattr(thing, name)) for name in names or [f.name for f in fields(thing)]
    }


def as_json(value: Any) -> Any:
    """Return a value as JSON has it; what has a method ``to_json`` is written by that.

    Sets are sorted.
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return fields_json(value)
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, tuple | list | frozenset):
        listed = [as_json(each) for each in value]
        return sorted(listed) if isinstance(value, frozenset) else listed
    return str(value) if isinstance(value, str | datetime.date) else value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"object: {value!r}")
    return value


NONE = "-"
"""Shown if there is no number."""


def whole(number: int) -> str:
    """Return an integer with separated thousands."""
    return f"{number:,}"


def amount(number: Any, digits: int = 6) -> str:
    """Return a number of a report, rounded to some digits; a dash for None.

    A number that is not finite stands in JSON as a word.
    """
    return NONE if number is None else f"{float(number):.{digits}g}".replace("nan", "NaN")


def extent(low: Any, high: Any, digits: int = 4) -> str:
    """Return the ends of a parameter; one number if they are equal."""
    ends = amount(low, digits), amount(high, digits)
    return ends[0] if ends[0] == ends[1] else " .. ".join(ends)


def percent(share: float | None) -> str:
    """Return a fraction in percent; a tiny one is not shown as 0."""
    if share is None:
        return NONE
    return "<0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def size(number: int) -> str:
    """Return a number of bytes with a unit: ``118 KiB``."""
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """Return ``1 region`` or ``2 regions``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{whole(number)} {noun}{'' if number == 1 else plural}"


def example(witness: Mapping[str, Any] | None) -> str:
    """Return the end of a sentence about a difference: its witness, if there is one."""
    if witness is None:
        return ""
    x, y, z = (amount(witness[name], 9) for name in ("input", "reference", "candidate"))
    return f", such as {x}: reference {y}, candidate {z}"


class Displayed:
    """Object with a one-line ``repr`` from ``summary``, and a page in notebooks."""

    @property
    def summary(self) -> str:
        """Short description."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON report."""
        plain: dict[str, Any] = importlib.import_module("qgraph.api").document_of(self)
        return plain

    def _repr_html_(self) -> str | None:
        """Return a page for notebooks; None if the libraries that draw are not installed."""
        page: str | None = importlib.import_module("qgraph.api").page_in_frame(self)
        return page


class Fields:
    """Object that notebooks show as a table of the fields of its report."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return a table with a row for each field that has a value."""
        import html

        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in self.to_json().items()
            if value is not None
        )
        return f"<table>{''.join(rows)}</table>"

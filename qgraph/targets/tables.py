"""Read tables of TOML as dataclasses; errors name the place and its line."""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from enum import StrEnum
from typing import Any

from qgraph.errors import matching, meant

UNKNOWN = "unknown"
Place = tuple[str | int, ...]
"""Keys and indices that lead to a value of a TOML document."""

_DERIVED = ("path", "digest", "is_named")
_WORDS = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number",
    date: "a date such as 2026-01-31", tuple: "a list", frozenset: "a list", dict: "a table",
}  # fmt: skip


class WrongError(Exception):
    """A value that is wrong: where it stands, and what was expected."""

    def __init__(self, place: Place, what: str) -> None:
        super().__init__(f"{_spelled(place)}: {what}" if place else what)
        self.place = place


@functools.cache
def _hints(hint: type) -> Mapping[str, Any]:
    return typing.get_type_hints(hint)


def made(hint: Any, table: object, place: Place) -> object:
    """Return a dataclass from a table of TOML."""
    if not isinstance(table, dict):
        raise WrongError(place, f"{table!r} is not a table. Write its keys.")
    profile_fields = {each.name: each for each in fields(hint)}
    shown = [name for name in profile_fields if name not in _DERIVED]
    for key in table:
        if key not in profile_fields or (key in _DERIVED and place):
            what = f"unknown key, expected one of {', '.join(shown)}.{meant(key, shown)}"
            raise WrongError((*place, key), what)
    for name, each in profile_fields.items():
        if each.default is MISSING and each.default_factory is MISSING and name not in table:
            raise WrongError(place, f"{name!r} is missing. Add it.")
    hints = _hints(hint)
    values = {key: _value(hints[key], value, (*place, key)) for key, value in table.items()}
    return hint(**values)


def _value(hint: Any, value: object, place: Place) -> object:
    """Return a value of TOML as a type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        choices = [each for each in inner if each is not types.NoneType]
        if value == UNKNOWN and types.NoneType in inner:
            return None
        return _chosen(choices, value, place)
    if origin is typing.Literal:
        if value not in inner:
            raise WrongError(place, f"{value!r}, expected one of {', '.join(inner)}.")
        return value
    if origin in (tuple, frozenset):
        return _list(origin, inner, value, place)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise WrongError(place, f"{value!r} is not a table. Write its keys.")
        return {key: _value(inner[1], each, (*place, key)) for key, each in value.items()}
    if is_dataclass(hint):
        return made(hint, value, place)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        matched = matching(hint, value)
        if matched is None:
            raise WrongError(place, f"{value!r}, expected one of {', '.join(hint)}.")
        return hint(matched)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        expected = _WORDS.get(hint, hint.__name__)
        raise WrongError(place, f"{value!r}, expected {expected}.")
    return value


def _chosen(choices: list[Any], value: object, place: Place) -> object:
    """Return a value as the first of several types that it fits; words of enumerations first."""
    for choice in choices:
        try:
            return _value(choice, value, place)
        except WrongError as error:
            last = error
            enumeration = isinstance(choice, type) and issubclass(choice, StrEnum)
            # A word that is in no enumeration is a slip, and not just any text.
            if enumeration and isinstance(value, str) and value != "any":
                break
    raise last


def _list(origin: Any, inner: tuple[Any, ...], value: object, place: Place) -> object:
    if not isinstance(value, list):
        raise WrongError(place, f"{value!r}, expected a list.")
    if origin is tuple and inner[-1] is not ...:
        if len(value) != len(inner):
            raise WrongError(place, f"{value!r}, expected {len(inner)} values.")
        return tuple(_value(k, v, place) for k, v in zip(inner, value, strict=True))
    return origin(_value(inner[0], each, (*place, i)) for i, each in enumerate(value))


def _spelled(place: Place) -> str:
    """Return a place as people write it: ``kernel[2].x.zero``."""
    text = ""
    for part in place:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _keys(text: str) -> Iterator[tuple[Place, int]]:
    """Yield the place of each table and key that begins a line of TOML, and its line from 1."""
    prefix: Place = ()
    counts: dict[Place, int] = {}
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header and depth == 0:
            prefix = _header(header, counts)
            yield prefix, number
            continue
        key = _KEY.match(line)
        if key and depth == 0:
            yield (*prefix, *_parts(key[1])), number
        bare = _STRING.sub("", line).split("#")[0]
        depth += bare.count("[") - bare.count("]")


def _header(header: re.Match[str], counts: dict[Place, int]) -> Place:
    """Return the place of a header; elements of arrays of tables are counted."""
    prefix: Place = ()
    parts = _parts(header[2])
    for index, part in enumerate(parts, 1):
        prefix = (*prefix, part)
        if index == len(parts) and header[1] == "[[":
            counts[prefix] = counts.get(prefix, -1) + 1
        if prefix in counts:
            prefix = (*prefix, counts[prefix])
    return prefix


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')


def _parts(name: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(name)]


def line_of(text: str, place: Place) -> int:
    """Return the line of the longest beginning of a place that is written in a line of its own.

    A key that only has tables below it, as ``kernel`` has ``[[kernel]]``, is at the first of them.
    """
    keys = list(_keys(text))
    for length in range(len(place), 0, -1):
        exact = [line for key, line in keys if key == place[:length]]
        below = [line for key, line in keys if key[:length] == place[:length]]
        if lines := exact or below:
            return lines[0]
    return 1

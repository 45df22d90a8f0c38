"""Passes written as text, ``convert{to=qdq,exact=bits}``, and what their options are."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Collection
from enum import StrEnum
from typing import Any

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.transforms.base import TRANSFORMS, Transform

_SPEC = re.compile(r"\s*([^{}\s]+)\s*(?:\{([^{}]*)\}\s*)?")
_BOOLEANS = {"true": True, "false": False}
_NONE = "none"


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One option of a pass.

    Attributes:
        name: as in the specification.
        kind: what values it takes, in words.
        default: how the default is written; None if the option is required.
        help: what it does.
    """

    name: str
    kind: str
    default: str | None
    help: str


@dataclasses.dataclass(frozen=True)
class PassInfo:
    """A pass in words.

    Attributes:
        name: as in the specification.
        summary: what it does, in a sentence.
        preserves: the lowest rung of equality that it lets through unless told otherwise.
        options: its options, in the order of the fields.
    """

    name: str
    summary: str
    preserves: Exactness
    options: tuple[OptionInfo, ...]


def parse_spec(text: str) -> Transform:
    """Return the pass that ``text`` specifies: ``name`` or ``name{option=value,option=value}``.

    Values are written as their type shows them: ``true`` and ``false``, numbers, the members of a
    choice; ``none`` where an option may be absent. They contain no braces and no commas.

    Raises:
        OptionError: the text has another form, the pass or an option is unknown, a required
            option is missing, or a value does not fit.
    """
    form = _SPEC.fullmatch(text)
    if form is None:
        raise OptionError(
            f"Pass specification {text!r} is not of the form NAME or NAME{{option=value,...}}; "
            "expected one pair of braces at the end. Write for example 'convert{to=qdq}', in "
            "quotes where a shell reads it."
        )
    cls = TRANSFORMS.find(form[1])
    fields = {field.name: field for field in _fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for item in (form[2] or "").split(","):
        if not item.strip() and not (form[2] or "").strip():
            continue
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise OptionError(
                f"Pass specification {text!r}: {item.strip()!r} is not of the form option=value. "
                f"{_known(cls, fields)}"
            )
        if name not in fields:
            raise OptionError(f"Pass {cls.name!r} has no option {name!r}; {_nearest(name, fields)}")
        if name in values:
            raise OptionError(f"Pass {cls.name!r}: option {name!r} is given twice, expected once.")
        values[name] = _convert(f"Pass {cls.name!r}, option {name!r}", hints[name], value)
    missing = [field.name for field in fields.values() if _required(field, values)]
    if missing:
        raise OptionError(
            f"Pass {cls.name!r} needs the option {missing[0]!r} "
            f"({fields[missing[0]].metadata.get('help', '')}), which is not given. "
            f"Write '{cls.name}{{{missing[0]}=...}}'."
        )
    try:
        return cls(**values)
    except OptionError as error:
        raise OptionError(f"Pass {cls.name!r}: {error}") from error


def describe(cls: type[Transform]) -> PassInfo:
    """Return name, sentence and options of a pass."""
    hints = typing.get_type_hints(cls)
    options = tuple(
        OptionInfo(
            field.name,
            _kind(hints[field.name]),
            None if field.default is dataclasses.MISSING else _written(field.default),
            field.metadata.get("help", ""),
        )
        for field in _fields(cls)
    )
    summary = (cls.__doc__ or "").strip().splitlines()[0].replace("``", "")
    return PassInfo(cls.name, summary, cls.preserves, options)


def _fields(cls: type[Transform]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)  # type: ignore[arg-type]  # the decorator makes it a dataclass


def _required(field: dataclasses.Field[Any], values: dict[str, Any]) -> bool:
    return field.default is dataclasses.MISSING and field.name not in values


def _plain(annotation: Any) -> tuple[type, bool]:
    """Return the type of an option, and whether it may be absent."""
    members = typing.get_args(annotation)
    if not members:
        return annotation, False
    (kind,) = (member for member in members if member is not types.NoneType)
    return kind, types.NoneType in members


def _convert(place: str, annotation: Any, text: str) -> Any:
    kind, optional = _plain(annotation)
    if optional and text == _NONE:
        return None
    if kind is bool and text in _BOOLEANS:
        return _BOOLEANS[text]
    if kind is str and text:
        return text
    if kind is not bool and kind is not str:
        try:
            return kind(text)
        except ValueError:
            pass
    hint = ""
    if issubclass(kind, StrEnum):
        near = difflib.get_close_matches(text.lower(), list(kind), n=1)
        hint = f" Did you mean {str(near[0])!r}?" if near else ""
    raise OptionError(f"{place} is {text!r}, expected {_kind(annotation)}.{hint}")


def _kind(annotation: Any) -> str:
    kind, optional = _plain(annotation)
    if issubclass(kind, StrEnum):
        words = f"one of {', '.join(kind)}"
    else:
        words = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
    return f"{words}, or none" if optional else words


def _written(default: object) -> str:
    if default is None:
        return _NONE
    return str(default).lower() if isinstance(default, bool) else str(default)


def _known(cls: type[Transform], names: Collection[str]) -> str:
    return f"The options of {cls.name!r} are {', '.join(names)}." if names else "It has no options."


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"it has {', '.join(known)}." if known else "it has none at all."

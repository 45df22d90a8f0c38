"""Options of passes: the fields of a dataclass, their types, and how values are read."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
import typing
from enum import StrEnum
from typing import Any

from qgraph.choices import matching, meant, shown
from qgraph.errors import OptionError
from qgraph.registry import Registry

_BOOLEANS = {"true": True, "false": False}
_NONE = "none"

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a pass.

    Attributes:
        name: as in the specification.
        type: bool, int, float, str or an enumeration.
        optional: whether None is a value.
        registry: what a str names an entry of; None for free text.
        default: MISSING if the option is required.
        help: what it does.
    """

    name: str
    type: type
    optional: bool
    registry: Registry[Any] | None
    default: object
    help: str

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def kind(self) -> str:
        """The values that the option takes, in words."""
        known = self.registry.names() if self.registry else None
        if known is None and issubclass(self.type, StrEnum):
            known = list(self.type)
        words = _WORDS[self.type] if known is None else f"one of {', '.join(known)}"
        return f"{words}, or none" if self.optional else words

    @property
    def written_default(self) -> str | None:
        """The default as a specification has it; None if the option is required."""
        if self.is_required:
            return None
        if self.default is None:
            return _NONE
        return str(self.default).lower() if self.type is bool else str(self.default)

    def read(self, value: object) -> Any:
        """Return a value given in Python in the type of the option; words match in any case.

        Raises:
            OptionError: it is no value of the option.
        """
        if value is None and self.optional:
            return None
        if self.registry is not None:
            return self.registry.name_of(value)
        if issubclass(self.type, StrEnum):
            match = matching(self.type, value)
            if match is None:
                raise self._refuse(value)
            return self.type(match)
        if self.type is bool and type(value).__name__ in ("bool", "bool_"):
            return bool(value)
        if self.type is str and isinstance(value, str):
            return str(value)
        is_number = not isinstance(value, bool)
        if self.type is int and is_number and isinstance(value, numbers.Integral):
            return int(value)
        if self.type is float and is_number and isinstance(value, numbers.Real):
            return float(value)
        raise self._refuse(value)

    def parse(self, text: str) -> Any:
        """Return the value that a text in a specification stands for.

        Raises:
            OptionError: it stands for none.
        """
        if self.optional and text.lower() == _NONE:
            return None
        if self.type is bool and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if self.type is str and text and self.registry is None:
            return text
        if self.type in (int, float):
            try:
                return self.type(text)
            except ValueError:
                pass
        if issubclass(self.type, StrEnum) or self.registry is not None:
            return self.read(text)
        raise self._refuse(text)

    def _refuse(self, value: object) -> OptionError:
        known = list(self.type) if issubclass(self.type, StrEnum) else []
        return OptionError(
            f"option {self.name!r} is {shown(value)}, expected {self.kind}.{meant(value, known)}"
        )


@functools.cache
def options_of(cls: type) -> tuple[Option, ...]:
    """Return the options of a pass class, in the order of its fields."""
    hints = typing.get_type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        members = typing.get_args(hints[field.name]) or (hints[field.name],)
        (kind,) = (each for each in members if each is not types.NoneType)
        metadata = field.metadata
        options.append(
            Option(
                field.name,
                kind,
                types.NoneType in members,
                metadata.get("registry"),
                field.default,
                metadata.get("help", ""),
            )
        )
    return tuple(options)

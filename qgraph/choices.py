"""Options whose values are words: enumeration members, or strings in any case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from qgraph.errors import OptionError


class Choice(StrEnum):
    """Base of enumerations that options take: ``Exactness("BITS")`` is ``Exactness.BITS``."""

    @classmethod
    def _missing_(cls, value: object) -> Choice | None:
        match = matching(cls, value)
        return None if match is None else cls(match)


C = TypeVar("C", bound=StrEnum)


def member(kind: type[C], value: object, option: str) -> C:
    """Return the member of an enumeration that an option's value names.

    Args:
        kind: the enumeration.
        value: a member, or its value as a string in any case.
        option: name of the option, for the message.

    Raises:
        OptionError: the value is no member; the message lists the members.
    """
    return kind(word(kind, value, option))


def word(known: Iterable[str], value: object, option: str) -> str:
    """Return the one of the ``known`` words that an option's value is, without regard to case.

    Raises:
        OptionError: the value is none of them; the message lists them.
    """
    words = [str(each) for each in known]
    match = matching(words, value)
    if match is None:
        raise OptionError(
            f"{option} is {shown(value)}, expected one of {', '.join(words)}.{meant(value, words)}"
        )
    return match


def matching(known: Iterable[str], value: object) -> str | None:
    """Return the known word that ``value`` is, without regard to case; None if it is none."""
    text = value.casefold() if isinstance(value, str) else None
    return next((each for each in known if each.casefold() == text), None)


def meant(value: object, known: Iterable[str]) -> str:
    """Return the question whether the closest word is meant, after a space; empty if none is."""
    near = closest(value, known)
    return f" Did you mean {str(near)!r}?" if near else ""


def closest(value: object, known: Iterable[str]) -> str | None:
    """Return the known word that is most like ``value``; None if none is."""
    words = {each.casefold(): each for each in known}
    text = value.casefold() if isinstance(value, str) else ""
    near = difflib.get_close_matches(text, words, n=1)
    return words[near[0]] if near else None


def shown(value: object) -> str:
    """Return a value as a message shows it: a string in quotes, anything else with its type."""
    return repr(str(value)) if isinstance(value, str) else f"{value!r} ({type(value).__name__})"

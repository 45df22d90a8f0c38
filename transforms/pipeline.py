"""Passes written as text, ``convert{to=qdq,exact=bits}``, and what their options are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import Any

from qgraph.choices import closest
from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.transforms.base import TRANSFORMS, Transform
from qgraph.transforms.fields import options_of

_SPEC = re.compile(r"\s*([^{}\s]+)\s*(?:\{([^{}]*)\}\s*)?")


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
    choice, all in any case; ``none`` where an option may be absent. They contain no braces and no
    commas.

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
    options = {each.name: each for each in options_of(cls)}
    values: dict[str, Any] = {}
    for item in (form[2] or "").split(","):
        if not item.strip() and not (form[2] or "").strip():
            continue
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise OptionError(
                f"Pass specification {text!r}: {item.strip()!r} is not of the form option=value. "
                f"{_known(cls, options)}"
            )
        if name not in options:
            raise OptionError(
                f"Pass {cls.name!r} has no option {name!r}; {_nearest(name, options)}"
            )
        if name in values:
            raise OptionError(f"Pass {cls.name!r}: option {name!r} is given twice, expected once.")
        try:
            values[name] = options[name].parse(value)
        except OptionError as error:
            raise OptionError(f"Pass {cls.name!r}, {error}") from error
    missing = [each for each in options.values() if each.is_required and each.name not in values]
    if missing:
        name = missing[0].name
        raise OptionError(
            f"Pass {cls.name!r} needs the option {name!r} ({missing[0].help}), which is not given. "
            f"Write '{cls.name}{{{name}=...}}'."
        )
    try:
        return cls(**values)
    except OptionError as error:
        raise OptionError(f"Pass {cls.name!r}: {error}") from error


def describe(cls: type[Transform]) -> PassInfo:
    """Return name, sentence and options of a pass."""
    options = tuple(
        OptionInfo(each.name, each.kind, each.written_default, each.help)
        for each in options_of(cls)
    )
    summary = (cls.__doc__ or "").strip().splitlines()[0].replace("``", "")
    return PassInfo(cls.name, summary, cls.preserves, options)


def _known(cls: type[Transform], names: Collection[str]) -> str:
    return f"The options of {cls.name!r} are {', '.join(names)}." if names else "It has no options."


def _nearest(name: str, known: Collection[str]) -> str:
    near = closest(name, known)
    if near:
        return f"did you mean {near!r}?"
    return f"it has {', '.join(known)}." if known else "it has none at all."

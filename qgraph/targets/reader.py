"""Read and check the profile of a target in a TOML file; errors name file and line.

Tables become dataclasses, whose types say what may be in them.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

from qgraph.errors import ModelError, OptionError, matching, meant, require
from qgraph.registry import load_plugins
from qgraph.targets.profile import Profile, contradictions
from qgraph.targets.rules import LoadRule

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_MOST = 1 << 20
"""Bytes of the largest profile that is read; a device may have no end."""

_ADDED: dict[str, Path] = {}


def add_target(path: str | os.PathLike[str]) -> None:
    """Add a profile, whose file has the name of the target; plugins call it when they are imported.

    Raises:
        ValueError: there is a target of this name.
    """
    file = Path(path)
    if _files().setdefault(file.stem, file) != file:
        raise ValueError(f"target {file.stem!r} is added twice")
    _ADDED[file.stem] = file


def _files() -> dict[str, Path]:
    return {path.stem: path for path in _FOLDER.glob("*.toml")} | _ADDED


def target_names() -> list[str]:
    """Return the names of the profiles that qgraph and plugins have, in alphabetical order."""
    load_plugins("targets")
    return sorted(_files())


def profiles() -> list[Profile]:
    """Return the profiles that qgraph and plugins have, in alphabetical order.

    The log names profiles of plugins that cannot be read; they are left out.
    """
    found = []
    for name in target_names():
        try:
            found.append(profile_of(name))
        except ModelError as error:
            logger.error("%s The target is left out.", error)  # noqa: TRY400 - of a plugin
    return found


def profile_of(target: str | os.PathLike[str] | Profile) -> Profile:
    """Return the profile of a target, by its name or by the path of a TOML file.

    ``NAME@PROCESSOR`` is the profile for one of the processors that it names.

    Raises:
        OptionError: there is no target or processor of that name; the message lists the names.
        ModelError: the file cannot be read, or says something wrong; the message names the line.
    """
    if isinstance(target, Profile):
        return target
    require(target, str | os.PathLike, "target", "the name of a target, or the path of a profile")
    target = os.fspath(target)
    known = matching(target_names(), target)
    if known is not None:
        return _read(_files()[known])
    name, _, processor = target.rpartition("@")
    if name and not os.path.exists(target):
        return _on(profile_of(name), processor)
    if not target.endswith(".toml") and "/" not in target:
        names = ", ".join(target_names())
        raise OptionError(
            f"There is no target {target!r}, expected one of {names}, or the path of a profile, "
            f"such as ./mychip.toml.{meant(target, target_names())}"
        )
    return read_profile(Path(target))


def _on(profile: Profile, processor: str) -> Profile:
    known = matching(list(profile.processors), processor)
    if known is None:
        names = ", ".join(profile.processors) or "none, since all are alike"
        raise OptionError(
            f"{profile.name} has no processor {processor!r}, expected one of its processors: "
            f"{names}.{meant(processor, list(profile.processors))}"
        )
    return profile.on(known)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"it has more than {_MOST} bytes")
    return data


def read_profile(path: Path) -> Profile:
    """Return the profile in a file.

    Raises:
        ModelError: the file cannot be read, or says something wrong; the message names the line.
    """
    try:
        data = _content(path)
        text = data.decode("utf-8")
    except FileNotFoundError as error:
        raise ModelError(
            f"{path}: there is no such file, expected the profile of a target. Correct the path, "
            "or give a name that 'qgraph targets' lists."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ModelError(
            f"{path}: the profile cannot be read ({reason}), expected a file in TOML. Correct the "
            "path, or the file."
        ) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ModelError(_not_toml(path, text, error)) from error
    try:
        profile = _checked(document | {"path": str(path)})
    except WrongError as error:
        raise ModelError(f"{path}:{line_of(text, error.place)}: {error}") from error
    return replace(profile, digest=hashlib.sha256(data).hexdigest())


def _not_toml(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return the message for a text that is not TOML, as a date that does not exist makes it."""
    for number, line in enumerate(text.splitlines(), 1):
        if stated := re.match(r"[^\"'#=]*=\s*(\d+-\d+-\d+)", line):
            try:
                date.fromisoformat(stated[1])
            except ValueError:
                return f"{path}:{number}: {stated[1]} is no date, expected one such as 2026-01-31."
    return f"{path}: this is not TOML: {error}. Correct the file."


def _checked(document: dict[str, Any]) -> Profile:
    """Return the profile of a document of TOML."""
    profile = typing.cast("Profile", made(Profile, document, ()))
    for contradiction in contradictions(profile):
        raise WrongError(*contradiction)
    return profile


@functools.cache
def _read(path: Path) -> Profile:
    return read_profile(path)


@functools.cache
def load_rule(target: str, name: str) -> LoadRule:
    """Return a rule of a target of qgraph by its id; reading the whole profile takes longer."""
    document = tomllib.loads((_FOLDER / f"{target}.toml").read_text("utf-8"))
    (table,) = (each for each in document["load"] if each.get("id") == name)
    return typing.cast("LoadRule", made(LoadRule, table, ()))


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
        raise WrongError(place, f"{value!r}, expected {_WORDS.get(hint, hint.__name__)}.")
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
    parts = (f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).lstrip(".")


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

"""Read and check the profile of a target in a TOML file; errors name file and line."""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.errors import ModelError, OptionError, matching, meant, require
from qgraph.registry import load_plugins
from qgraph.targets.layer import ANY, LAYERS, Granularity, KernelRule, Loads, OperandRule
from qgraph.targets.profile import Profile
from qgraph.targets.tables import WrongError, line_of, made

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
        line = line_of(text, error.place)
        raise ModelError(f"{path}:{line}: {error}") from error
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


_TYPES = frozenset(dtype.name for dtype in ir.DataType)
Found = tuple[tuple[str | int, ...], str]


def contradictions(profile: Profile) -> Iterator[Found]:
    """Yield place and text of each contradiction in a profile."""
    yield from _sources(profile)
    opsets = profile.versions.opsets
    if opsets is not None and opsets[0] > opsets[1]:
        yield ("versions", "opsets"), f"{list(opsets)}: the lowest comes first."
    if profile.processors and profile.processor not in (*profile.processors, ANY):
        yield ("processor",), f"{profile.processor!r} is not among the processors."
    ids: set[str] = set()
    for table in ("kernel", "saturation"):
        for index, each in enumerate(getattr(profile, table)):
            for name in each.processors:
                if name not in profile.processors:
                    yield (table, index, "processors"), f"{name!r} is not among the processors."
    for index, kernel in enumerate(profile.kernel):
        place = ("kernel", index)
        if kernel.id in ids:
            yield (*place, "id"), f"{kernel.id!r} is given twice. Name one of them otherwise."
        ids.add(kernel.id)
        for where, what in _kernel(kernel):
            yield (*place, *where), what
    for index, sums in enumerate(profile.sums):
        number = sums.order.partition("chunk:")[2]
        if sums.order != ANY and not (number.isdigit() and int(number)):
            yield ("sums", index, "order"), f"{sums.order!r}, expected any, or chunk:N."


def _sources(profile: Profile) -> Iterator[Found]:
    """Yield facts whose source is missing."""
    tables = [name for name, facts in vars(profile).items() if isinstance(facts, tuple)]
    cells = [
        ((table, i), cell) for table in tables for i, cell in enumerate(getattr(profile, table))
    ]
    for place, cell in [(("versions",), profile.versions), *cells]:
        if not cell.source:
            yield place, "'source' is missing: each fact states where it comes from."
        for name in cell.source:
            if name not in profile.sources:
                known = ", ".join(profile.sources) or "none"
                yield (*place, "source"), f"{name!r} is not among the sources ({known})."


def _kernel(kernel: KernelRule) -> Iterator[Found]:
    for name in kernel.operators:
        if name not in LAYERS:
            yield ("operators",), f"{name!r}, expected some of {', '.join(sorted(LAYERS))}."
    if kernel.exists is Loads.NO and (kernel.types or not kernel.reason):
        yield ("exists",), "a kernel that does not exist has a reason, and no types."
    if kernel.exists is Loads.UNKNOWN and not kernel.reason:
        yield ("exists",), "'reason' is missing: what is not known."
    if kernel.exists is not Loads.NO and not kernel.types:
        yield (), "'types' is missing: which types of codes go together."
    for index, rule in enumerate(kernel.types):
        for name in (*rule.x, *rule.w, *rule.y):
            if name not in _TYPES and name != ANY:
                yield ("types", index), f"{name!r} is not a type of ONNX, such as INT8."
    for name, operand in (("x", kernel.x), ("w", kernel.w), ("y", kernel.y)):
        for where, what in _operand(operand):
            yield (name, *where), what
    for name in ("within", "gap"):
        if getattr(kernel.bias, name) and kernel.bias.scale != "product":
            yield ("bias", name), "a deviation is allowed from the product only."
    for key in ("redundant", "never"):
        if both := set(kernel.behind.operators or ()) & set(getattr(kernel.behind, key)):
            yield ("behind", key), f"{', '.join(sorted(both))}: listed in 'operators', too."


def _operand(rule: OperandRule) -> Iterator[Found]:
    reach = rule.granularity
    if rule.axis and reach is not None and not {Granularity.AXIS, ANY} & set(reach):
        yield ("axis",), "'granularity' excludes scales per axis."
    if rule.blocks is not None and reach is not None and not {Granularity.BLOCK, ANY} & set(reach):
        yield ("blocks",), "'granularity' excludes blocks."

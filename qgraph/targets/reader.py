"""Read the profile of a target from its TOML file; errors name file and line."""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import tomllib
import typing
from pathlib import Path
from typing import Any

from qgraph.errors import ModelError, OptionError, matching, meant, require
from qgraph.registry import load_plugins
from qgraph.targets.contradictions import contradictions
from qgraph.targets.profile import Profile
from qgraph.targets.tables import WrongError, line_of, made

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_MOST = 1 << 20
"""Bytes of the largest profile that is read; a device may have no end."""

_ADDED: dict[str, Path] = {}


def add_target(path: str | os.PathLike[str]) -> None:
    """Add a profile to those that are known by name; plugins call it when they are imported.

    Args:
        path: the file, which has the name of the target.

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
        raise ModelError(f"{path}: this is not TOML: {error}. Correct the file.") from error
    try:
        profile = _checked(document | {"path": str(path)})
    except WrongError as error:
        line = line_of(text, error.place)
        raise ModelError(f"{path}:{line}: {error}") from error
    return _with_digest(profile, hashlib.sha256(data).hexdigest())


def _checked(document: dict[str, Any]) -> Profile:
    """Return the profile of a document of TOML."""
    profile = typing.cast("Profile", made(Profile, document, ()))
    for place, what in contradictions(profile):
        raise WrongError(place, what)
    return profile


@functools.cache
def _read(path: Path) -> Profile:
    return read_profile(path)


def _with_digest(profile: Profile, digest: str) -> Profile:
    return Profile(**(vars(profile) | {"digest": digest}))

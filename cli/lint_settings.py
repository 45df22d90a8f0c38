"""The defaults of ``qgraph lint``, which the settings file of a project states."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qgraph.errors import OptionError, meant, plain_message, shown

_FILES = (("qgraph.toml", ("lint",)), ("pyproject.toml", ("tool", "qgraph", "lint")))
"""Settings files and the names of their tables; the first existing file of a folder is used."""

_LISTS = ("select", "ignore")
_WORDS = ("target", "fail-on", "baseline")
LEVELS = ("error", "warning", "info", "never")
"""Severities that --fail-on takes."""


def project_settings(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the project that contains a folder; empty if there are none.

    Paths are relative to the settings file.

    Raises:
        OptionError: a setting is not known, or has another type.
    """
    for parent in (folder, *folder.parents):
        for name, keys in _FILES:
            file = parent / name
            if file.is_file():
                table = _table(file, keys)
                if table is not None:
                    return _checked(file, table)
    return {}


def _table(file: Path, keys: Sequence[str]) -> Mapping[str, Any] | None:
    try:
        table: Any = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{file}: cannot be read ({plain_message(error)}), expected TOML. Correct it."
        ) from error
    others = [key for key in table if key not in keys] if len(keys) == 1 else []
    if others:  # the file has nothing else
        raise OptionError(
            f"{file}: there is {shown(others[0])}, expected the table [{keys[0]}]. Correct it."
        )
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else None


def _checked(file: Path, table: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = dict(table)
    for key, value in table.items():
        if key not in (*_LISTS, *_WORDS):
            keys = (*_LISTS, *_WORDS)
            raise OptionError(
                f"{file}: there is no setting {shown(key)} of lint, expected one of "
                f"{', '.join(keys)}.{meant(key, keys)}"
            )
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (is_list if key in _LISTS else isinstance(value, str)):
            wanted = "a list of strings" if key in _LISTS else "a string"
            raise OptionError(f"{file}: {key} is {shown(value)}, expected {wanted}. Correct it.")
    if settings.get("fail-on", "warning") not in LEVELS:
        raise OptionError(
            f"{file}: fail-on is {shown(settings['fail-on'])}, expected one of "
            f"{', '.join(LEVELS)}. Correct it."
        )
    if "baseline" in settings:
        settings["baseline"] = str(file.parent / settings["baseline"])
    if str(settings.get("target", "")).endswith(".toml"):
        settings["target"] = str(file.parent / settings["target"])
    return settings

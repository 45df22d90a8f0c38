"""Registries that load their entries on demand: operators, dialects, passes; also of plugins.

A plugin is an installed package with entry points in groups such as ``qgraph.passes``. Each names a
module, whose import registers entries.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Generic, TypeVar

from qgraph.errors import OptionError, closest, shown

T = TypeVar("T")

logger = logging.getLogger(__name__)

GROUPS = ("dialects", "operators", "passes", "rules", "targets")
"""Kinds of plugin entries; the entry point group is ``qgraph.`` followed by the kind."""


@functools.cache
def load_plugins(group: str) -> None:
    """Import the modules that installed packages name in a group of :data:`GROUPS`; log errors."""
    if not _has_plugins():
        return
    from importlib.metadata import entry_points  # takes as long as all of qgraph.graph

    for entry in sorted(entry_points(group=f"qgraph.{group}"), key=lambda entry: entry.name):
        try:
            importlib.import_module(entry.module)
        except (Exception, SystemExit) as error:  # a plugin may raise any exception
            owner = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
            logger.error(  # noqa: TRY400 - users need no traceback
                "The plugin %s%s cannot be loaded (%s: %s), and is left out. Correct the package, "
                "or uninstall it.",
                entry.value,
                owner,
                type(error).__name__,
                error,
            )


@functools.cache
def _has_plugins() -> bool:
    """Return whether an installed package mentions an entry point of qgraph."""
    for folder in sys.path:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    with suppress(OSError), open(f"{entry.path}/entry_points.txt", "rb") as file:
                        if b"[qgraph." in file.read():
                            return True
    return False


def modules_of(package: ModuleType) -> list[str]:
    """Return the names of the modules in the folder of a package, sorted.

    ``pkgutil`` does the same, but imports ``inspect``.
    """
    files = {file for folder in package.__path__ for file in os.listdir(folder)}
    names = {file.partition(".")[0] for file in files if file.endswith((".py", ".pyc"))}
    return sorted(names - {"__init__"})


class Registry(Generic[T]):
    """Unique names for the entries that the modules of one package register.

    A lookup imports the module of the package with the name of the entry, or the class of the
    package with this name. If there is none, it imports all modules, in sorted order. So a new file
    needs no entry in a list. Plugins add entries in a ``group`` of :data:`GROUPS`; in none if it is
    None.
    """

    def __init__(self, noun: str, package: str, group: str | None = None) -> None:
        self.kind = noun
        self._package, self._group = package, group
        self._entries: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument under ``name``."""

        def register(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return register

    def find(self, name: str) -> T:
        """Return the entry called ``name``, in any case.

        Raises:
            OptionError: there is none; the message names the nearest ones.
        """
        return self._entries[self.name_of(name)]

    def name_of(self, name: object) -> str:
        """Return the registered name of an entry, given its name in any case.

        Raises:
            OptionError: there is none; the message lists all names.
        """
        if isinstance(name, str):
            if name not in self._entries:
                self._load_module(name.lower())
            for each in (name, name.lower()):
                if each in self._entries:
                    return each
            for each in self.names():
                if each.casefold() == name.casefold():
                    return each
        near, known = closest(name, self.names()), f"nown: {', '.join(self.names())}."
        meant = f"did you mean {near!r}? K{known}" if near else f"k{known}"
        raise OptionError(f"There is no {self.kind} called {shown(name)}; {meant}")

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._load()
        return sorted(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter([self._entries[name] for name in self.names()])

    def _load_module(self, name: str) -> None:
        """Import the module or the class with the name of an entry, if there is one."""
        module = name.replace("-", "_")
        package = importlib.import_module(self._package)
        if module.isidentifier() and importlib.util.find_spec(f"{self._package}.{module}"):
            importlib.import_module(f"{self._package}.{module}")
        else:
            getattr(package, module.title().replace("_", ""), None)

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in modules_of(package):
            importlib.import_module(f"{self._package}.{module}")
        self._loaded = True
        if self._group is not None:
            load_plugins(self._group)

"""Named things that load themselves: operators, dialects, passes."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from qgraph.errors import OptionError, closest, shown

T = TypeVar("T")


class Registry(Generic[T]):
    """Unique names for the entries that the modules of one package register.

    A module of the package that has the name of the entry is imported when that is looked up, and
    otherwise all, in sorted order, so that a new file is found without being listed anywhere.

    Args:
        kind: what an entry is called in messages, such as ``"dialect"``.
        package: import name of the package whose modules register entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
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
        """Return how an entry is registered that is called ``name``, in any case.

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
        """Import the module that bears the name of an entry, if there is one, and no other."""
        module = name.replace("-", "_")
        importlib.import_module(self._package)
        if module.isidentifier() and importlib.util.find_spec(f"{self._package}.{module}"):
            importlib.import_module(f"{self._package}.{module}")

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"{self._package}.{module}")
        self._loaded = True

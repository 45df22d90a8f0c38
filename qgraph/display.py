"""Base classes of objects with a one-line ``repr`` and a page in notebooks."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class Displayed:
    """Object with a one-line ``repr`` from ``summary``, and a page in notebooks."""

    @property
    def summary(self) -> str:
        """Short description."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON report."""
        plain: dict[str, Any] = importlib.import_module("qgraph.notebook").document_of(self)
        return plain

    def _repr_html_(self) -> str | None:
        """Return a page for notebooks; None if the libraries that draw are not installed."""
        page: str | None = importlib.import_module("qgraph.notebook").page_in_frame(self)
        return page


class Fields:
    """Object that notebooks show as a table of the fields of its report."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return a table with a row for each field that has a value."""
        import html

        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in self.to_json().items()
            if value is not None
        )
        return f"<table>{''.join(rows)}</table>"


class _CallablePackage(ModuleType):
    """A package that has the name of a function in ``qgraph``, and hides it once imported."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module("qgraph.api"), name)(*arguments, **options)


def let_call(package: str) -> None:
    """Make a package callable, as the function of its name in :mod:`qgraph.api`."""
    sys.modules[package].__class__ = _CallablePackage

"""The operators of the dialects in ``onnx.defs``, where checker and shape inference look them up.

onnx.reference tabulates all operators by name when it is imported, and refuses names that stand in
two domains, as those of the dialects do. So the operators step aside while it is imported, whoever
does that; to import it beforehand would cost every command the time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import onnx

_TABULATING = "onnx.reference"

_published: list[onnx.defs.OpSchema] = []


def publish(schema: onnx.defs.OpSchema) -> None:
    """Enter an operator, unless its name, domain and version are entered already."""
    if onnx.defs.has(schema.name, schema.since_version, schema.domain):
        return
    if not _published and _TABULATING not in sys.modules:
        sys.meta_path.insert(0, _Finder())
    onnx.defs.register_schema(schema)
    _published.append(schema)


class _Finder:
    """Finds the tabulating package, to be loaded without the operators published here."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TABULATING:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Aside(spec.loader)
        return spec


class _Aside(Loader):
    """Loads a module while no operator is published."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        for schema in _published:
            onnx.defs.deregister_schema(schema.name, schema.since_version, schema.domain)
        try:
            self._loader.exec_module(module)
        finally:
            for schema in _published:
                onnx.defs.register_schema(schema)

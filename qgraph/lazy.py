"""Modules that are loaded when they are first used.

onnx_ir imports sympy, for arithmetic on symbolic dimensions that few programs do; that is more than
half of the time it takes to import. Loading it when it is needed makes a command start in a quarter
of a second instead of half. onnx imports all of its tools, and with them much of the standard
library; that is another tenth.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_TOOLS = frozenset(
    {
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.parser",
        "onnx.printer",
        "onnx.utils",
        "onnx.version_converter",
        "packaging.version",
    }
)
"""Modules that onnx and onnx_ir import themselves, and use in few functions only."""


class _LazyFinder:
    """Finds the named modules where they are, but has them executed at first use only."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer(*names: str) -> None:
    """Load the modules called ``names`` at first use, unless they are imported already.

    So are tools of onnx that few programs use.
    """
    sys.meta_path.insert(0, _LazyFinder(_TOOLS.union(names)))

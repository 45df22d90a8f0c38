"""Modules that are imported when they are first used.

onnx_ir imports sympy, for arithmetic on symbolic dimensions that few programs do; that is more than
half of the time it takes to import. Standing in for it until it is needed makes a command start in
a quarter of a second instead of half.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


class _Later(ModuleType):
    """Stands for a module until one of its names is asked for."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def defer(*names: str) -> None:
    """Import the modules called ``names`` at first use, unless they are imported already."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _Later(name)

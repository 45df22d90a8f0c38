"""Functions that every command calls, without the modules that define them.

Each is the only reason to execute its module, which takes longer than a short command should.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, Self, TypeGuard, TypeVar

T = TypeVar("T")


def _real(module: str, name: str) -> Any:
    """Return a function of a module, which is executed now if it was not."""
    vars(sys.modules[module])
    return getattr(sys.modules[module], name)


def version(name: str) -> str:
    """Return the version of a package, like ``importlib.metadata``, but without importing email."""
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                    with open(os.path.join(folder, entry, "METADATA"), encoding="utf-8") as lines:
                        for line in lines:
                            if line.startswith("Version: "):
                                return line.removeprefix("Version: ").strip()
    return str(_real("importlib.metadata", "version")(name))


def cleandoc(text: str) -> str:
    """Return a text without the indentation of its lines, like ``inspect``."""
    first, *others = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in others if line.lstrip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in others)]).strip("\n")


def signature(function: Any, **options: Any) -> Any:
    """Return a signature, like ``inspect``; of functions of NumPy only names of parameters."""
    if not function.__module__.startswith("numpy."):
        return _real("inspect", "signature")(function, **options)
    code = function.__code__
    return SimpleNamespace(parameters=code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def deprecated(*_: object, **options: object) -> Callable[[T], T]:
    """Return a decorator that does nothing: a command does not show what libraries deprecate."""
    return lambda function: function


def gettext(text: str) -> str:
    """Return a text as it is: no package has translations for click."""
    return text


def ngettext(one: str, several: str, number: int) -> str:
    """Return the singular or the plural form of a text, in English."""
    return one if number == 1 else several


def get_close_matches(word: str, *others: Any) -> list[str]:
    """Return similar texts, like ``difflib``; none for an option of one letter.

    click looks for these among the long ones first.
    """
    return [] if len(word) <= 2 else _real("difflib", "get_close_matches")(word, *others)


def quote_from_bytes(*data: Any) -> str:
    """Return a text for a URL, like ``urllib.parse``."""
    return str(_real("urllib.parse", "quote_from_bytes")(*data))


def system() -> str:
    """Return the name of the operating system, like ``platform``."""
    return os.uname().sysname if hasattr(os, "uname") else str(_real("platform", "system")())


def node() -> str:
    """Return the name of this computer, like ``platform``."""
    return os.uname().nodename if hasattr(os, "uname") else str(_real("platform", "node")())


STAND_INS: dict[tuple[str, str], Any] = {
    ("difflib", "get_close_matches"): get_close_matches,  # click
    ("gettext", "gettext"): gettext,  # click
    ("gettext", "ngettext"): ngettext,  # click
    ("importlib.metadata", "version"): version,  # onnx, for its own
    ("inspect", "cleandoc"): cleandoc,  # click and NumPy
    ("inspect", "signature"): signature,  # NumPy
    ("numpy._typing", "NDArray"): list,  # numpy.linalg, for annotations
    ("platform", "node"): node,  # our locks
    ("platform", "system"): system,  # uuid
    ("typing_extensions", "Concatenate"): Concatenate,  # onnx_ir, as the next ones
    ("typing_extensions", "ParamSpec"): ParamSpec,
    ("typing_extensions", "Self"): Self,
    ("typing_extensions", "TypeIs"): TypeGuard,
    ("typing_extensions", "deprecated"): deprecated,
    ("urllib.parse", "quote_from_bytes"): quote_from_bytes,  # pathlib
}
"""What replaces a name of a module that is not executed yet; who reads it."""

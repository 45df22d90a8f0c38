"""Functions that every command calls, without the modules that define them.

Each is the only reason to execute its module, which takes longer than a short command should. Where
a stand-in does not know the result, it calls the function that it stands for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeGuard, TypeVar

T = TypeVar("T")


def _real(module: str, name: str) -> Any:
    """Return a function of a module, which is executed now if it was not."""
    vars(sys.modules[module])
    return getattr(sys.modules[module], name)


def version(distribution_name: str) -> str:
    """Return the version of a package, like ``importlib.metadata``, but without importing email."""
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                if entry.startswith(f"{distribution_name}-") and entry.endswith(".dist-info"):
                    with open(os.path.join(folder, entry, "METADATA"), encoding="utf-8") as lines:
                        for line in lines:
                            if line.startswith("Version: "):
                                return line.removeprefix("Version: ").strip()
    return str(_real("importlib.metadata", "version")(distribution_name))


def cleandoc(doc: str) -> str:
    """Return a text without the indentation of its lines, like ``inspect``."""
    first, *others = doc.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in others if line.lstrip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in others)]).strip("\n")


_DISPATCHERS = ("numpy._core.multiarray", "numpy.lib._ufunclike_impl")


def signature(obj: Any, **options: Any) -> Any:
    """Return a signature, like ``inspect``; None for what NumPy makes of its C functions.

    These have no signature then, as with earlier versions of NumPy.
    """
    if obj.__module__ in _DISPATCHERS:
        return None
    return _real("inspect", "signature")(obj, **options)


def deprecated(*_: object, **options: object) -> Callable[[T], T]:
    """Return a decorator that does nothing: a command does not show what libraries deprecate."""
    return lambda function: function


def gettext(message: str) -> str:
    """Return a text as it is: no package has translations for click."""
    return message


def ngettext(msgid1: str, msgid2: str, n: int) -> str:
    """Return the singular or the plural form of a text, in English."""
    return msgid1 if n == 1 else msgid2


def get_close_matches(word: str, *others: Any, **options: Any) -> Any:
    """Return similar texts, like ``difflib``; none for an option of one letter.

    click looks for these among the long ones first.
    """
    is_option = len(word) == 2 and word.startswith("-")
    return [] if is_option else _real("difflib", "get_close_matches")(word, *others, **options)


def finfo(dtype: Any) -> Any:
    """Return the limits of a type, like ``ml_dtypes``."""
    return _real("ml_dtypes._finfo", "finfo")(dtype)


def quote_from_bytes(*data: Any, **options: Any) -> str:
    """Return a text for a URL, like ``urllib.parse``."""
    return str(_real("urllib.parse", "quote_from_bytes")(*data, **options))


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
    ("ml_dtypes._finfo", "finfo"): finfo,  # ml_dtypes
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

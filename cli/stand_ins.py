"""Functions that every command calls, without the modules that define them.

Each is the only reason to execute its module, which takes longer than a short command should.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import FunctionType, SimpleNamespace
from typing import Any


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
    return str(sys.modules["importlib.metadata"].distribution(name).version)


def cleandoc(text: str) -> str:
    """Return a text without the indentation of its lines, like ``inspect``."""
    first, *others = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in others if line.lstrip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in others)]).strip("\n")


def signature(function: Any, **options: Any) -> Any:
    """Return a signature, like ``inspect``; of functions of NumPy only names of parameters."""
    if function.__module__.partition(".")[0] not in ("numpy", "typing"):
        return sys.modules["inspect"].Signature.from_callable(function, **options)
    code = function.__code__
    return SimpleNamespace(parameters=code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def iscoroutinefunction(function: Any) -> bool:
    """Return whether a function was defined by ``async def``, like ``inspect``."""
    if isinstance(function, FunctionType):
        return bool(function.__code__.co_flags & 0x80)
    return bool(sys.modules["inspect"].isfunction(function))


def system() -> str:
    """Return the name of the operating system, like ``platform``."""
    return os.uname().sysname if hasattr(os, "uname") else str(sys.modules["platform"].uname()[0])


def node() -> str:
    """Return the name of this computer, like ``platform``."""
    return os.uname().nodename if hasattr(os, "uname") else str(_real("platform", "node")())


STAND_INS: dict[tuple[str, str], Any] = {
    ("importlib.metadata", "version"): version,  # onnx, for its own
    ("inspect", "cleandoc"): cleandoc,  # click and NumPy
    ("inspect", "iscoroutinefunction"): iscoroutinefunction,  # typing_extensions
    ("inspect", "signature"): signature,  # NumPy and typing_extensions
    ("numpy._typing", "NDArray"): list,  # numpy.linalg, for annotations
    ("platform", "node"): node,  # our locks
    ("platform", "system"): system,  # uuid
}
"""What replaces a name of a module that is not executed yet; who reads it."""

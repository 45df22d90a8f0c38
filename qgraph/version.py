"""The version of qgraph, and of the JSON documents that it writes; names of the last version.

Old names and keywords still work, with a DeprecationWarning, for one minor version.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from inspect import BoundArguments
    from types import FunctionType

__version__ = "0.1.0"

SCHEMA = 2
"""Version of the JSON reports and certificates."""

READABLE = (1, 2)
"""Versions that can be read."""

SEMANTICS = 2
"""Version of what certificates rest on: definitions of operators, rules for bounds, conditions."""


def head(command: str) -> dict[str, Any]:
    """Return the fields that every JSON report begins with: versions, and who writes it."""
    return {"qgraph": __version__, "schema": SCHEMA, "command": command}


F = TypeVar("F", bound=Callable[..., Any])

RENAMED = {
    "qgraph.certificate": {"Boxes": "Division", "Region": "RegionVerdict"},
    "qgraph.reports": {"Outcome": "SiteStatus"},
}
"""New names by module and old name."""


def renamed(module: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module, which resolves old names."""

    def get(name: str) -> object:
        new = RENAMED[module].get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is now called {new}; the old name goes with the next version."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return get


def grouped(**groups: Any) -> Callable[[F], F]:
    """Return a decorator for a function whose old keywords are now fields of dataclasses.

    ``check(a, b, atol=1)`` becomes ``check(a, b, tolerances=Tolerances(atol=1))``. ``groups`` are
    the dataclasses, by name of the parameter. Another value of this parameter becomes the first
    field.
    """

    def decorate(function: F) -> F:
        code = cast("FunctionType", function).__code__
        known = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.keys() <= known:
                return function(*args, **kwargs)
            bound = _regrouped(function, groups, args, kwargs)
            return function(*bound.args, **bound.kwargs)

        return cast("F", call)

    return decorate


def _regrouped(
    function: Callable[..., Any],
    groups: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> BoundArguments:
    """Return the arguments of a call, old keywords replaced by their group."""
    from dataclasses import fields, replace  # only old programs need them
    from inspect import signature

    homes = {
        field.name: group for group, group_type in groups.items() for field in fields(group_type)
    }
    declared = signature(function)
    old = homes.keys() - declared.parameters.keys()
    moved = {name: kwargs.pop(name) for name in [*kwargs] if name in old}
    bound = declared.bind(*args, **kwargs)
    for group in dict.fromkeys(homes[name] for name in moved):
        group_type, value = groups[group], bound.arguments.get(group)
        first = [] if value is None else [value]
        start = value if isinstance(value, group_type) else group_type(*first)
        own = {name: moved[name] for name in moved if homes[name] == group}
        bound.arguments[group] = replace(start, **own)
        instead = f"{group}={group_type.__name__}({', '.join(f'{name}=...' for name in own)})"
        warnings.warn(
            f"{function.__name__}: write {instead}; old keywords go with the next version.",
            DeprecationWarning,
            stacklevel=3,
        )
    return bound

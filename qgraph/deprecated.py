"""Old names and keywords that still work, with a DeprecationWarning, for one minor version."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

RENAMED = {
    "qgraph.certificate": {"Boxes": "Division", "Region": "RegionVerdict"},
    "qgraph.reports": {"Outcome": "SiteStatus"},
}
"""New names by module and old name."""


def renamed(module: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module, which finds what has another name now."""

    def get(name: str) -> object:
        new = RENAMED[module].get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        told = f"{module}.{name} is now called {new}; the old name goes with the next version."
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return get

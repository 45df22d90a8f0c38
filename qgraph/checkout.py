"""The folder of a checkout from which this package is imported.

In a checkout the folders ``transforms`` and ``cli`` lie beside the folder ``qgraph``; an
installation moves them into it. Python that starts in the root of a checkout imports the folder
``qgraph`` from there, so the two subpackages must be importable from there, too.
"""

from __future__ import annotations

import os

_BESIDE = (os.path.join("transforms", "__init__.py"), os.path.join("cli", "__init__.py"))
_PROJECT = 'name = "qgraph"'


def source_root(init: str) -> list[str]:
    """Return the root of the checkout that the package lies in; no entry if it is installed.

    Args:
        init: the file ``__init__.py`` of the package ``qgraph``.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(init)))
    if not all(os.path.isfile(os.path.join(root, file)) for file in _BESIDE):
        return []
    try:
        with open(os.path.join(root, "pyproject.toml"), encoding="utf-8") as project:
            lines = {line.strip() for line in project}
    except (OSError, ValueError):
        return []
    return [root] if _PROJECT in lines else []

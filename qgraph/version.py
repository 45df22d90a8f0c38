"""The version of qgraph, and of the JSON documents that it writes."""

from __future__ import annotations

from typing import Any

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

"""Profiles of targets as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.reporting.view import Column, Columns, Row, Section, Table
from qgraph.text import NONE

Part = Mapping[str, Any]

_TABLES = {
    "kernel": "Kernels",
    "codes": "Operators on codes",
    "storage": "Stored weights",
    "trap": "Traps",
    "saturation": "Sums of products that saturate",
    "sums": "Order of float additions",
    "slower": "Forms that were measured to be slower",
    "option": "Session options",
    "load": "Nodes that it loads",
}
_NOT_SHOWN = frozenset({"id", "source", "operators", "names", "key", "text"})
_WITHOUT_LIMIT = frozenset(
    {
        "direct",
        "groups",
        "ranks",
        "blocks",
        "levels",
        "scale_types",
        "scale",
        "redundant",
        "first",
        "never",
    }
)
"""Fields that are omitted if they are not stated."""


def targets_section(profiles: Sequence[Part]) -> Section:
    """Return the table of all targets."""
    rows: list[Row] = [
        [
            profile["name"],
            profile["knowledge"],
            *(str(len(profile[name])) for name in ("kernel", "trap")),
            profile["executed"] or NONE,
        ]
        for profile in profiles
    ]
    columns: Columns = ["target", "known from", Column("kernels", number=True)]
    columns += [Column("traps", number=True), "executed graph of"]
    return Section("Targets", tables=[Table("targets", columns, rows)])


def target_sections(profile: Part) -> Iterator[Section]:
    """Yield the profile of one target, each fact with its sources and dates."""
    versions = profile["versions"]
    low, high = versions["opsets"] or ("unknown", "unknown")
    limits = f"opsets {low} to {high}; IR version up to {versions['ir_version'] or 'unknown'}"
    yield Section(
        profile["name"],
        [
            f"{profile['name']}: {profile['knowledge']}",
            *([" ".join(profile["note"].split())] if profile["note"] else []),
            f"{limits} ({_origin(versions, profile)})",
            *(f"on {name}: {text}" for name, text in profile["processors"].items()),
        ],
    )
    for table, title in _TABLES.items():
        rows = [row for cell in profile[table] for row in _rows(cell, profile)]
        if rows:
            columns: Columns = [title.lower(), "source", "field", "value"]
            yield Section(title, tables=[Table(title, columns, rows)])
    sources = profile["sources"].items()
    source_rows: list[Row] = [
        [name, each["kind"], each["what"], each["date"]] for name, each in sources
    ]
    columns = ["source", "kind", "what", "date"]
    yield Section("Sources", tables=[Table("sources", columns, source_rows)])


def _rows(cell: Part, profile: Part) -> Iterator[Row]:
    """Yield a row for each field of a fact; the first one names the fact and its sources."""
    facts = [("", cell["text"])] if cell.get("text") else []
    facts += [
        (key.replace("_", " "), text)
        for key, value in cell.items()
        if key not in _NOT_SHOWN and not _is_empty(value) and (text := _value(value))
    ]
    if cell.get("exists") == "yes":
        facts.append(("unknown", ", ".join(_unknown(cell))))
    label, origin = _label(cell), _origin(cell, profile)
    for key, text in facts or [("", NONE)]:
        yield [label, origin, key, text]
        label = origin = ""


def _label(cell: Part) -> str:
    names = cell.get("operators") or cell.get("names") or ()
    operators = ", ".join(names)
    name = cell.get("key") or cell.get("id") or ""
    return f"{name}: {operators}" if name and operators else name or operators or "any"


def _unknown(cell: Part, prefix: str = "") -> Iterator[str]:
    """Yield the names of the unknown conditions."""
    for key, value in cell.items():
        if value is None and key not in _WITHOUT_LIMIT:
            yield prefix + key
        elif isinstance(value, dict):
            yield from _unknown(value, f"{prefix}{key}.")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key.replace('_', ' ')} {_value(each)}"
            for key, each in value.items()
            if not (_is_empty(each) and (each != [] or key in _WITHOUT_LIMIT))
            and (key, each) not in (("constant", "any"), ("within", 0.0), ("gap", 0.0))
        )
    if isinstance(value, list):
        separator = "; " if value and isinstance(value[0], dict) else " "
        return separator.join(_value(each) or "''" for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _is_empty(value: Any) -> bool:
    """Return whether to omit a field: a condition that is unknown, or that does not exist."""
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value is False or value in ("", {}, [])


def _origin(cell: Part, profile: Part) -> str:
    sources = profile["sources"]
    return ", ".join(f"{name} {sources[name]['date']}" for name in cell["source"])

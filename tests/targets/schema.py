"""``python -m tests.targets.schema`` writes ``qgraph/targets/schema.json``."""

from __future__ import annotations

import datetime
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from qgraph.targets.profile import Profile

PATH = Path(__file__).parents[2] / "qgraph" / "targets" / "schema.json"
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}
DERIVED = ("path", "digest", "is_named")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile."""
    named: dict[str, Any] = {}
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "qgraph target"}
    return {**top, **table(Profile, named), "$defs": dict(sorted(named.items()))}


def table(kind: Any, named: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    known = [each for each in fields(kind) if each.name not in DERIVED]
    needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
    return {
        "type": "object",
        "properties": {each.name: form(hints[each.name], named) for each in known},
        "required": needed,
        "additionalProperties": False,
    }


def form(kind: Any, named: dict[str, Any]) -> dict[str, Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        choices = [
            {"const": "unknown"} if each is types.NoneType else form(each, named) for each in inner
        ]
        return {"anyOf": choices}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (tuple, frozenset):
        if origin is tuple and inner[-1] is not ...:
            items = [form(each, named) for each in inner]
            return {"type": "array", "prefixItems": items, "minItems": 2, "maxItems": 2}
        return {"type": "array", "items": form(inner[0], named)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": form(inner[1], named)}
    if is_dataclass(kind):
        if kind.__name__ not in named:
            named[kind.__name__] = {}
            named[kind.__name__] = table(kind, named)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": list(kind)}
    if kind is datetime.date:
        return {"type": "string", "format": "date"}
    return {"type": SIMPLE[kind]}


def text() -> str:
    """Return what the file holds."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())

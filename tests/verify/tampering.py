"""Everything that can be changed in a certificate, one thing at a time."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]

FREE = {
    "facts",  # compared with what the checker reads, see test_facts.py
    "qgraph",  # the version that wrote it
    "semantics",  # read with the file; the present version if it is missing
    "schema",  # read with the file, as are the command and the hashes
    "command",
    "reference",
    "candidate",
    "counterexample_found",  # the input itself is in another file
}
"""Entries of a certificate that ``verify`` does not look at."""

HOW = {"boxes", "cases", "reason", "text"}
"""How the prover divided inputs, and the wording of reasons and conditions."""

RUNGS = [None, "bits", "values", "codes", "near", "different", "bounded"]
VERDICTS = ["proved", "bounded", "different", "undecided"]
METHODS = ["constant", "congruence", "intervals", "thresholds", "exhaustive", "bound", "none"]
CHOICES = {"exactness": RUNGS, "verdict": VERDICTS, "method": METHODS}


def tamperings(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was changed and the changed document."""
    for path in _paths(document):
        if path and (path[0] in FREE or HOW & set(path)):
            continue  # how the prover divided the inputs, and the wording of reasons
        for what, value in _others(path, _at(document, path)):
            changed = copy.deepcopy(document)
            _at(changed, path[:-1])[path[-1]] = value
            yield f"{'.'.join(map(str, path))}: {what}", changed
        if path and isinstance(path[-1], str):
            changed = copy.deepcopy(document)
            del _at(changed, path[:-1])[path[-1]]
            yield f"{'.'.join(map(str, path))}: left out", changed


def mutant(document: dict[str, Any], rng: random.Random) -> tuple[list[str], dict[str, Any]]:
    """Return one to three random changes, and the document with them."""
    changed, done = copy.deepcopy(document), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        regions = changed.get("regions")
        if rng.random() < 0.3 and isinstance(regions, list) and regions:
            done.append(_mixed(regions, rng))
        elif rng.random() < 0.1:
            side = rng.choice(("reference", "candidate"))
            changed[side] = {"path": None, "sha256": rng.choice((None, "0" * 64))}
            done.append(f"{side}: another hash")
        else:
            paths = [p for p in _paths(changed) if p[0] not in FREE and not HOW & set(p)]
            path = rng.choice(paths)
            others = list(_others(path, _at(changed, path)))
            if others:
                what, value = rng.choice(others)
                _at(changed, path[:-1])[path[-1]] = value
                done.append(f"{'.'.join(map(str, path))}: {what}")
    return done, changed


def _mixed(regions: list[Any], rng: random.Random) -> str:
    """Drop, double or exchange regions, or parts of two of them, in place."""
    one, other = (rng.randrange(len(regions)) for _ in range(2))
    match rng.randrange(4):
        case 0:
            del regions[one]
            return "regions: one missing"
        case 1:
            regions.insert(other, copy.deepcopy(regions[one]))
            return "regions: one twice"
        case 2:
            regions[one], regions[other] = regions[other], regions[one]
            return "regions: exchanged"
    pair = regions[one], regions[other]
    if not all(isinstance(region, dict) for region in pair):
        return "regions: exchanged"
    name = rng.choice(sorted(set(pair[0]) & set(pair[1])) or ["bound"])
    parts = [region.get(name) for region in pair]
    pair[0][name], pair[1][name] = parts[1], parts[0]
    return f"regions: {name} exchanged" if parts[0] != parts[1] else "regions: exchanged"


def _paths(node: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from _paths(value, (*path, key))


def _at(node: Any, path: Path) -> Any:
    for key in path:
        node = node[key]
    return node


def _others(path: Path, value: Any) -> Iterator[tuple[str, Any]]:
    name = path[-1]
    if name in CHOICES:
        yield from ((str(other), other) for other in CHOICES[name] if other != value)
    elif name in ("starts", "differing", "signs"):
        yield from _texts(name, value)
    elif name == "input":
        yield "no number", "much"  # another input may show the same
    elif name in ("notes", "conditions"):
        for place in range(len(value)):
            yield f"{place} missing", value[:place] + value[place + 1 :]
    elif isinstance(value, list):
        for place in range(len(value)):
            yield f"{place} missing", value[:place] + value[place + 1 :]
            yield f"{place} twice", [*value[: place + 1], *value[place:]]
        yield "something else", "nothing"
    elif name == "channel" and "witness" in path:
        yield "beyond all", 1000  # another one may show the same
    elif isinstance(value, bool):
        yield "the opposite", not value
        yield "a number", int(value)
    elif isinstance(value, int | float) and "bound" in path and name != "code_shift":
        # more would be a looser bound, which claims less; but "levels" make percents
        yield from (("less", value * 0.9 - 1e-9), ("a text", "many"))
        yield from [("NaN", "NaN"), ("none", None)]
        yield from [("more", value * 1.5)] if name == "levels" else []
    elif isinstance(value, int):
        yield from (("1 more", value + 1), ("1 less", value - 1), ("a text", str(value)))
    elif isinstance(value, float):
        yield from (("more", value * 1.5 + 1), ("NaN", "NaN"), ("a text", "many"))
    elif isinstance(value, str) and "conditions" in path:
        # the text behind the kind is for readers
        yield from ((f"_{value}", f"_{value}"), ("nothing", None), ("a number", 7))
    elif isinstance(value, str):
        yield from ((f"{value}_", f"{value}_"), ("nothing", None), ("a number", 7))
    elif value is None:
        yield from (("a number", 7), ("a text", "x"))


def _texts(name: str, value: str) -> Iterator[tuple[str, str]]:
    parts = value.split()
    for place in {0, 1, len(parts) // 2, len(parts) - 1} & set(range(len(parts))):
        for change in (1, -1):
            moved = [*parts]
            moved[place] = str(int(moved[place]) + change)
            if place + 1 < len(parts) and name == "starts":
                moved[place + 1] = str(int(moved[place + 1]) - change)  # the other edges stay
            yield f"{place} moved by {change}", " ".join(moved)
        yield f"{place} missing", " ".join(parts[:place] + parts[place + 1 :])
        if name != "starts" or place + 1 < len(parts):  # the last part may as well be two
            yield f"{place} twice", " ".join([*parts[: place + 1], *parts[place:]])
    yield "0 more", " ".join(["0" if name != "starts" else "-1", *parts])
    yield "words", "one two"

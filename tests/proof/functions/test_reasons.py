"""Every reason for which something is left undecided is explained in the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RETURNED = {
    "mismatch",
    "described",
    "_differ",
    "zero_sign_nodes",
    "rewritten_sum",
}
"""Functions that make reasons in other ways than by raising or returning them as such."""
REMARKS = {
    "... pairs of values of two inputs were tried",
    "the inputs that differ are not counted, there are more: ...",
    "...; not all inputs could be tried: ...",
    "...; values are up to ... floats apart",
    "all inputs were tried one by one",
    "value ...",
    "values differ",
}
"""What is said of decided regions, beside a reason that is listed, or in one; and of drafts that
need not be compared to the end."""


def template(node: ast.expr) -> str | None:
    """Return a text with dots for what is filled in; a cause that is called gives its argument."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).isupper():
        return template(node.args[0])
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
    return re.sub(r"'?(\.\.\.)+'?", "...", "".join(map(str, parts)))


def texts(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            yield from node.args[:1] if name in ("Undecidable", "undecided") else ()
            yield from (word.value for word in node.keywords if word.arg == "reason")
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
            "reason",
            "_GUESSED",
        ):
            yield node.value
        elif isinstance(node, ast.FunctionDef) and node.name in RETURNED:
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Return, ast.Assign)) and inner.value is not None:
                    yield inner.value


def reasons() -> set[str]:
    found = set()
    package = ROOT / "qgraph"
    bounds = ("bounds", "rules")  # their reasons are those of QG063 and QG064
    proof = [path for path in (package / "proof").rglob("*.py") if path.parent.name not in bounds]
    for path in [*proof, package / "graph" / "interface.py"]:
        for node in texts(ast.parse(path.read_text("utf-8"))):
            is_caused = isinstance(node, ast.Call) and getattr(node.func, "id", "").isupper()
            text = template(node.args[0] if is_caused else node)
            if text is not None and re.search(r"[a-z]{2} ", text):
                found.add(text)
    return found - REMARKS


def documented() -> set[str]:
    page = (ROOT / "docs" / "proof.md").read_text("utf-8")
    section = page.split("## Reasons for UNDECIDED")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    return {reason for cell in cells for reason in re.findall(r"`(.+?)`", cell)}


def test_the_documented_reasons_are_those_of_the_code() -> None:
    told, found = documented(), reasons()
    assert len(found) > 50
    assert sorted(found - told) == []
    assert sorted(told - found) == []

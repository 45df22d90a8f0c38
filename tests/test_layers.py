"""Modules import from lower layers only, and from no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"qgraph": "qgraph", "transforms": "qgraph.transforms", "cli": "qgraph.cli"}

LAYERS = [
    {
        "errors",
        "registry",
        "exactness",
        "checkout",
        "choices",
        "lazy",
        "files",
        "cores",
        "collecting",
        "markup",
        "outputs",
        "junit",
    },
    {"numerics"},
    {"primitives", "tensors", "graph", "opsets", "storage", "report", "runtimes"},
    {"ops", "proof", "quantizer", "kernels", "foreign"},
    {"weights", "dialects", "recognition", "execution"},
    {"model", "prepared"},
    {
        "matching",
        "equivalence",
        "certification",
        "verification",
        "inventory",
        "standardize",
        "magnitudes",
    },
    {"reporting"},
    {"transforms"},
    {"cli", "pytest_plugin", "__main__"},
]
"""Modules and packages of qgraph; those of one layer may import each other, but in no circle."""

CHOICES = [
    ("qgraph.execution.executor", "qgraph.execution.runtime"),
    ("qgraph.execution.executor", "qgraph.standardize"),
]
"""The ways back: the executor hands over to the backend that was asked for, which is made from the
executor, and gives it the means to spell quantizers anew, which rest on the proofs above."""

STRANGERS = [("ops", "quantizer"), ("quantizer", "ops")]
"""What must not know of each other: nodes are run by definition, and read as parameters."""


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """Yield the modules of ours that a file imports, also inside functions, types excepted."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in known else node.module or ""
                if target in known:
                    yield target
        pending += ast.iter_child_nodes(node)


def layer(module: str) -> int:
    part = module.split(".")[1]
    (found,) = [height for height, names in enumerate(LAYERS) if part in names]
    return found


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str]]:
    found = modules()
    return [
        (module, target)
        for module, path in found.items()
        for target in sorted(set(imported(path, set(found))))
        if module != "qgraph" and target not in {"qgraph", module}
    ]


def test_every_module_has_a_layer() -> None:
    parts = {module.split(".")[1] for module in modules() if "." in module}
    assert len(parts) > 25
    named = [name for names in LAYERS for name in names]
    assert sorted(parts) == sorted(named)


def test_imports_go_down(imports: list[tuple[str, str]]) -> None:
    upward = [(module, target) for module, target in imports if layer(target) > layer(module)]
    assert set(upward) <= set(CHOICES)


def test_imports_form_no_circle(imports: list[tuple[str, str]]) -> None:
    picture = nx.DiGraph(imports)
    picture.remove_edges_from(CHOICES)
    assert list(nx.simple_cycles(picture)) == []


def test_some_parts_know_nothing_of_each_other(imports: list[tuple[str, str]]) -> None:
    pairs = {(module.split(".")[1], target.split(".")[1]) for module, target in imports}
    assert pairs.isdisjoint(STRANGERS)


FORBIDDEN = ("qgraph.dialects", "qgraph.recognition", "qgraph.quantizer")
PROVERS = (
    "certification.certify",
    "certification.discharge",
    "certification.regions",
    "matching.match",
)


@pytest.mark.parametrize("name", PROVERS)
def test_proofs_of_whole_models_know_no_reader(imports: list[tuple[str, str]], name: str) -> None:
    """A mistake of a dialect's reader must not hide in the proof of what it led to."""
    picture = nx.DiGraph(imports)
    picture.remove_edges_from(CHOICES)
    # seeded inputs, which a search for counterexamples begins with, visit the grids of quantizers
    picture.remove_node("qgraph.equivalence.inputs")
    reached = nx.descendants(picture, f"qgraph.{name}")
    assert "qgraph.proof.engine" in reached or name == "matching.match"
    assert not [m for m in reached if m.startswith(FORBIDDEN)]


def test_reader_of_imports_sees_all_forms(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import a.b\n"
        "if TYPE_CHECKING:\n    import a.types\n"
        "else:\n    import a.other\n"
        "def f():\n    from a import c, name\n    from a.d import thing\n"
    )
    known = {"a", "a.b", "a.c", "a.d", "a.types", "a.other"}
    assert sorted(imported(tmp_path / "m.py", known)) == ["a", "a.b", "a.c", "a.d", "a.other"]

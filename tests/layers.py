"""The order of the components of qgraph, and which file imports which.

A component is a package or a module that lies directly in ``qgraph``. ``transforms`` and ``cli``,
which lie beside it in a checkout, are components too. ``__init__`` is ``qgraph/__init__.py``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"qgraph": "qgraph", "transforms": "qgraph.transforms", "cli": "qgraph.cli"}

ORDER = (
    ("errors", "records", "version", "text"),
    ("effort", "reasons"),
    ("exactness", "bound", "conditions"),
    ("numerics", "registry", "certificate", "reporting"),
    ("graph",),
    ("reports", "targets", "storage", "ops"),
    ("execution", "proof"),
    ("quantizers",),
    ("inventory", "model"),
    ("comparison", "verify", "lint"),
    ("transforms",),
    ("api", "plugin"),
    ("cli", "pytest_plugin", "__init__"),
    ("__main__",),
)
"""All components, lowest layer first. A component imports from the layers below its own only."""

LAYER = {component: height for height, layer in enumerate(ORDER) for component in layer}


@dataclass(frozen=True, order=True)
class Import:
    """One module of qgraph imports another.

    Args:
        source: name of the module that imports.
        target: name of the module that is imported.
        file: path of the source's file, from the root of the repository.
        line: number of the line, from 1.
    """

    source: str
    target: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} imports {self.target}"

    @property
    def is_upward(self) -> bool:
        """Whether the target does not lie in a lower layer, or one of both lies in none."""
        source, target = component(self.source), component(self.target)
        if source == target:
            return False
        return not LAYER.get(target, len(ORDER)) < LAYER.get(source, -1)


def component(module: str) -> str:
    """Return the component that a module lies in."""
    return module.split(".")[1] if "." in module else "__init__"


def module_of(file: str) -> str:
    """Return the import name of a file, given by its path from the root of the repository."""
    folder, *parts = Path(file).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(part for part in parts if part != "__init__")])


def files(folders: Iterable[str] = FOLDERS, *, root: Path = ROOT) -> list[str]:
    """Return the paths of all Python files of some folders, from the root, in sorted order."""
    return sorted(
        str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.py")
    )


@functools.cache
def tree_of(text: str) -> ast.Module:
    """Return the syntax tree of a module; it is shared, and not to be changed."""
    return ast.parse(text)


def imported(tree: ast.AST, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each known module that a syntax tree imports, and the line.

    Imports inside functions and under ``TYPE_CHECKING`` count. What a registry loads by the name of
    a folder is not seen: operators, dialects and passes load the modules of their own package.
    """
    known = set(known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else str(node.module) for name in whole]
        else:
            continue
        for name in dict.fromkeys(names):
            if name in known:
                yield name, node.lineno


def all_imports(*, root: Path = ROOT, moves: Mapping[str, str] | None = None) -> list[Import]:
    """Return all imports among the modules of qgraph, sorted.

    Args:
        root: the root of the repository.
        moves: new paths by old paths; files are read as if they had been moved, and files with the
            same new path as if they had been joined.
    """
    moves = moves or {}
    names = {module_of(file): module_of(moves.get(file, file)) for file in files(root=root)}
    return sorted(
        Import(names[module_of(file)], names[target], file, line)
        for file in files(root=root)
        for target, line in imported(tree_of((root / file).read_text()), names)
        if names[target] != names[module_of(file)]
    )


@functools.cache
def own_imports() -> list[Import]:
    """Return all imports of this checkout; the list is shared, and not to be changed."""
    return all_imports()


def graph_of_modules(imports: Iterable[Import]) -> nx.DiGraph[str]:
    """Return the graph of modules, an edge for each import; ``qgraph/__init__.py`` is left out."""
    pairs = ((each.source, each.target) for each in imports)
    return nx.DiGraph(pair for pair in pairs if "qgraph" not in pair)


def graph_of_components(imports: Iterable[Import]) -> nx.DiGraph[str]:
    """Return the graph of components, an edge where modules of one import modules of another."""
    edges = graph_of_modules(imports).edges
    pairs = ((component(source), component(target)) for source, target in edges)
    return nx.DiGraph((source, target) for source, target in pairs if source != target)


def circles(graph: nx.DiGraph[str]) -> list[list[str]]:
    """Return the strongly connected parts of a graph that have more than one node, sorted."""
    return sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)

"""Modules import from lower layers only, and in no circle; importing qgraph changes nothing."""

from __future__ import annotations

import ast
import subprocess
import sys

import networkx as nx
import pytest

from tests.layers import (
    FOLDERS,
    ORDER,
    ROOT,
    Import,
    circles,
    component,
    files,
    graph_of_modules,
    imported,
    module_of,
    own_imports,
    tree_of,
)

PLANNED = {"lint"}
"""Components that the order has a seat for, and that need not exist yet."""

FORBIDDEN = {
    # A mistake of a dialect's reader must not hide in the proof of what it led to.
    "proof": {"quantizers", "execution"},
    # The checker of certificates shares nothing with the search that wrote them.
    "verify": {"proof", "comparison", "quantizers", "execution"},
}
"""What a component must not reach, not by way of others either."""

EXTERNAL = {
    "click": ({"cli"}, "always"),
    "onnxscript": ({"transforms"}, "always"),
    "pytest": ({"pytest_plugin"}, "always"),
    "jinja2": ({"reporting"}, "lazily"),
    "markupsafe": ({"reporting"}, "lazily"),
    "matplotlib": ({"reporting"}, "lazily"),
    "rich": ({"cli"}, "lazily"),
    "distributed": (set(), "never"),
    "onnxruntime": (set(), "never"),
    "openvino": (set(), "never"),
    "sympy": (set(), "never"),
}
"""Libraries that are not needed everywhere: the components that may import them, and whether at
module level or inside functions only. Runtimes are loaded by name, when a session is made."""


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return own_imports()


def test_every_component_has_one_layer() -> None:
    ordered = [name for layer in ORDER for name in layer]
    assert len(ordered) == len(set(ordered))
    existing = {component(module_of(file)) for file in files()}
    assert existing - set(ordered) == set()
    assert set(ordered) - existing <= PLANNED


@pytest.mark.slow
def test_imports_go_down(imports: list[Import]) -> None:
    assert len(imports) > 500
    assert [str(each) for each in imports if each.is_upward] == []


@pytest.mark.slow
def test_imports_form_no_circle(imports: list[Import]) -> None:
    assert circles(graph_of_modules(imports)) == []


@pytest.mark.slow
@pytest.mark.parametrize("source", FORBIDDEN)
def test_some_components_never_reach_others(imports: list[Import], source: str) -> None:
    graph = graph_of_modules(imports)
    starts = [module for module in graph if component(module) == source]
    reached = {target for start in starts for target in nx.descendants(graph, start)}
    assert "graph" in {component(target) for target in reached}
    assert sorted(each for each in reached if component(each) in FORBIDDEN[source]) == []


@pytest.mark.slow
def test_meaning_of_a_quantizer_does_not_rest_on_its_operators(imports: list[Import]) -> None:
    """Nodes are run by the definition of their operator, and read as the parameters of another."""
    quantizer = [each for each in imports if each.source == "qgraph.quantizers.quantizer"]
    assert quantizer
    assert [str(each) for each in quantizer if component(each.target) == "ops"] == []


def libraries(tree: ast.AST, *, lazy: bool = False) -> set[tuple[str, bool]]:
    """Return the libraries that a syntax tree imports, and whether in functions or for types."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name.split(".")[0], lazy) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((str(node.module).split(".")[0], lazy))
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        found |= libraries(node, lazy=lazy or for_types or isinstance(node, ast.FunctionDef))
    return found


@pytest.mark.slow
def test_libraries_are_imported_where_they_belong() -> None:
    seen = set()
    for file in files():
        for library, lazy in libraries(tree_of((ROOT / file).read_text())):
            components, when = EXTERNAL.get(library, (None, ""))
            if components is not None:
                assert component(module_of(file)) in components, f"{file} imports {library}"
                assert lazy or when == "always", f"{file} imports {library} at module level"
                seen.add(library)
    assert seen == {name for name, (_, when) in EXTERNAL.items() if when != "never"}


IMPORTING = """
import gc, importlib, logging, os, pkgutil, signal, sys, threading, warnings

def state():
    return {{
        "argv": list(sys.argv),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "environment": dict(os.environ),
        "excepthook": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "folder": os.getcwd(),
        "import hooks": (list(sys.meta_path), list(sys.path_hooks), list(sys.path)),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "signals": [signal.getsignal(each) for each in signal.valid_signals()],
        "threads": threading.active_count(),
        "warnings": list(warnings.filters),
        "numpy": sys.modules["numpy"].geterr() if "numpy" in sys.modules else None,
    }}

libraries = {libraries!r}
for name in [*libraries, *{modules!r}]:
    if name == {modules!r}[0]:
        before = state()
    importlib.import_module(name)
after = state()
print("changed:", *(key for key in before if before[key] != after[key]))
"""


def changed_by_importing(modules: list[str], libraries: list[str]) -> list[str]:
    program = IMPORTING.format(modules=modules, libraries=libraries)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


def test_importing_the_package_changes_nothing() -> None:
    assert changed_by_importing(["qgraph"], []) == ["changed:"]


@pytest.mark.slow
def test_importing_all_of_the_library_changes_nothing() -> None:
    """Libraries are imported before, since importing these may change something."""
    names = {module_of(file) for file in files()} - {"qgraph.__main__"}
    library = sorted(each for each in names if component(each) not in {"cli", "pytest_plugin"})
    others = ["networkx", "numpy", "ml_dtypes", "onnx", "onnx.reference", "onnx_ir", "onnxscript"]
    assert changed_by_importing(library, others) == ["changed:"]


def test_reader_of_imports_sees_all_forms() -> None:
    text = """
from typing import TYPE_CHECKING
import a.b
if TYPE_CHECKING:
    import a.types
else:
    import a.other, b
def f():
    from a import c, name
    from a.d import thing
"""
    known = {"a", "a.b", "a.c", "a.d", "a.types", "a.other"}
    assert sorted(imported(ast.parse(text), known)) == [
        ("a", 9),
        ("a.b", 3),
        ("a.c", 9),
        ("a.d", 10),
        ("a.other", 7),
        ("a.types", 5),
    ]


@pytest.mark.parametrize(
    ("source", "target", "upward"),
    [
        ("qgraph.proof.certify", "qgraph.graph.edit", False),
        ("qgraph.proof.certify", "qgraph.proof.regions", False),
        ("qgraph.graph.edit", "qgraph.proof.certify", True),
        ("qgraph.proof.certify", "qgraph.execution.plan", True),
        ("qgraph.cli.main", "qgraph", True),
        ("qgraph.elsewhere", "qgraph.errors", True),
        ("qgraph.cli.main", "qgraph.elsewhere", True),
    ],
)
def test_upward_and_sideways_imports_are_seen(source: str, target: str, upward: bool) -> None:
    assert Import(source, target, "", 1).is_upward is upward


def test_circles_are_seen() -> None:
    pairs = [("q.a.x", "q.a.y"), ("q.a.y", "q.b.z"), ("q.b.z", "q.a.x"), ("q.c", "q.a.x")]
    imports = [Import(source, target, "", 1) for source, target in pairs]
    assert circles(graph_of_modules(imports)) == [["q.a.x", "q.a.y", "q.b.z"]]


def test_files_are_named_as_they_are_imported() -> None:
    names = ["qgraph/__init__.py", "qgraph/graph/__init__.py", "cli/main.py", "transforms/base.py"]
    expected = ["qgraph", "qgraph.graph", "qgraph.cli.main", "qgraph.transforms.base"]
    assert [module_of(name) for name in names] == expected
    assert {file.split("/")[0] for file in files()} == set(FOLDERS)

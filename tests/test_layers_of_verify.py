"""The checker of certificates shares nothing with the search that wrote them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

from tests.layers import ROOT, component, graph_of_modules, own_imports

ALLOWED = {
    "certificate",  # the schema
    "reasons",
    "errors",
    "exactness",
    "reports",
    "registry",
    "records",
    "text",
    "version",
    "bound",
    "conditions",
    "numerics",  # primitive operations
    "graph",
    "ops",  # definitions of operators
    "storage",
    "verify",
}
"""Components that the checker may reach, also by way of others."""

MOST_LINES = 2300


@pytest.fixture(scope="module")
def modules() -> nx.DiGraph[str]:
    return graph_of_modules(own_imports())


@pytest.mark.slow
def test_the_checker_reaches_no_search(modules):
    checkers = [module for module in modules if component(module) == "verify"]
    assert len(checkers) >= 6
    reached = set().union(*(nx.descendants(modules, module) for module in checkers))
    assert {component(module) for module in reached} <= ALLOWED
    assert "qgraph.ops.definitions.quant" not in reached  # a registry loads the definitions
    definitions = [m for m in modules if m.startswith("qgraph.ops.definitions.")]
    loaded = set().union(*(nx.descendants(modules, module) for module in definitions))
    assert {component(module) for module in loaded} <= ALLOWED


@pytest.mark.slow
def test_nothing_of_the_search_is_loaded():
    loads = (
        "import sys, qgraph.verify.verify\n"
        "from qgraph.ops.operator import OPERATORS\n"
        "OPERATORS.names()\n"
        "print(*(m for m in sys.modules if m.startswith('qgraph.')))"
    )
    done = subprocess.run([sys.executable, "-c", loads], check=True, capture_output=True, text=True)
    loaded = {component(module) for module in done.stdout.split()} - {"checkout", "lazy"}
    assert {"verify", "ops", "certificate"} <= loaded <= ALLOWED


@pytest.mark.slow
def test_the_search_knows_nothing_of_the_checker(modules):
    for module in modules:
        if component(module) in ("proof", "comparison", "quantizers", "execution"):
            reached = nx.descendants(modules, module)
            assert not [other for other in reached if component(other) == "verify"]


def test_the_checker_stays_small():
    files = sorted(Path(ROOT, "qgraph", "verify").rglob("*.py"))
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES

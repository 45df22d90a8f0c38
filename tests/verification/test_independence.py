"""What checks certificates shares nothing with what writes them."""

from __future__ import annotations

import ast

import networkx as nx
import pytest

from tests.test_layers import CHOICES, FORBIDDEN, imported, modules

SEARCH = (
    "qgraph.certification",
    "qgraph.proof",
    "qgraph.matching.closure",
    "qgraph.matching.context",
    "qgraph.matching.match",
    "qgraph.matching.congruence",
    "qgraph.matching.correspondence",
)
"""Packages and modules that find proofs."""

SHARED = {
    "qgraph.certification",
    "qgraph.certification.certificate",  # the words of a certificate
    "qgraph.proof",
    "qgraph.proof.environment",  # whether this thread computes as IEEE 754 says
}
"""What the checker may know of them."""

WORDS = {
    "AFTER_DIFFERENCE",
    "AS_WRITTEN",
    "BIAS_LAST",
    "EQUAL_OPERATORS",
    "NO_NAN",
    "NOT_FED",
    "OPEN_BOUNDS",
    "ProofVerdict",
    "SUMMED_ALIKE",
    "WHOLE_SUMS",
    "ZERO_SIGNS",
}

PREPARED = ("qgraph.matching.normal.order", "qgraph.proof")
"""The one way from the preparation of both models, which is shared, to the engine: that a function
never decreases is proved where it is exchanged with a maximum."""

EVALUATION = ("qgraph.execution.plan", "qgraph.execution.executor", "qgraph.kernels.standard")
"""What runs models; the regions of a certificate are evaluated by definitions alone."""


@pytest.fixture(scope="module")
def picture() -> nx.DiGraph:
    known = modules()
    found = nx.DiGraph()
    for module, path in known.items():
        found.add_edges_from((module, target) for target in imported(path, set(known)))
    found.remove_edges_from(CHOICES)
    found.remove_nodes_from(["qgraph"])
    return found


def checkers(picture: nx.DiGraph) -> list[str]:
    return [module for module in picture if module.startswith("qgraph.verification.")]


def test_the_checker_knows_nothing_of_the_search(picture):
    assert len(checkers(picture)) > 10
    module, engine = PREPARED
    shared = [t for t in picture.successors(module) if t.startswith(engine)]
    assert f"{engine}.monotone" in shared
    picture = nx.DiGraph(picture)
    picture.remove_edges_from((module, target) for target in shared)
    reached = set().union(*(nx.descendants(picture, module) for module in checkers(picture)))
    assert {m for m in reached if m.startswith(SEARCH)} <= SHARED
    assert not [m for m in reached if m.startswith(FORBIDDEN)]


def test_only_words_are_taken_from_the_package_that_writes_certificates():
    taken = set()
    for module, path in modules().items():
        if module.startswith("qgraph.verification."):
            taken |= _names(path.read_text(), "qgraph.certification.certificate")
    assert taken == WORDS


def test_certificates_are_written_without_the_checker(picture):
    for module in picture:
        if module.startswith(("qgraph.certification", "qgraph.matching", "qgraph.proof")):
            reached = nx.descendants(picture, module)
            assert not [m for m in reached if m.startswith("qgraph.verification")]


def test_regions_are_evaluated_by_definitions(picture):
    """But for operators that only a kernel defines, and constants, which are computed as ever."""
    users = {
        module
        for module in checkers(picture)
        if any(target in EVALUATION for target in picture.successors(module))
    }
    assert users == {"qgraph.verification.arrays"}


def _names(source: str, module: str) -> set[str]:
    return {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }

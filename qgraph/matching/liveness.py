"""Which nodes the outputs of a graph depend on."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from qgraph.execution.control import captured
from qgraph.graph.scopes import subgraphs


def used(node: ir.Node) -> list[ir.Value]:
    """Return the operands of a node, and what the graphs that it runs take from around it."""
    return [*(value for value in node.inputs if value is not None), *captured(node)]


def inner_results(node: ir.Node) -> list[ir.Value]:
    """Return the outputs of the graphs that a node runs."""
    graphs = (g for attribute in node.attributes.values() for g in subgraphs(attribute))
    return [value for graph in graphs for value in graph.outputs]


def live_nodes(outputs: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes on which the outputs depend, those in graphs of attributes included."""
    found: set[ir.Node] = set()
    pending = list(outputs)
    while pending:
        node = pending.pop().producer()
        if node is None or node in found:
            continue
        found.add(node)
        pending += (*used(node), *inner_results(node))
    return found

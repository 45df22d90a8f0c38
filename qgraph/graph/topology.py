"""The graph as networkx sees it: which node depends on which."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import networkx as nx
import onnx_ir as ir

from qgraph.graph.scopes import subgraphs

_FOLLOWED = 128

Digraph: TypeAlias = "nx.MultiDiGraph[ir.Node]"


def graph_of(graph: ir.Graph | ir.Function) -> Digraph:
    """Return the dependencies between the nodes of ``graph``.

    A vertex is a node. Each value makes an edge from its producer to each node that uses it, with
    the value as key and as the attribute ``value``; what a subgraph of a node uses, the node uses.
    Graph inputs, initializers and nodes inside subgraphs are no vertices.
    """
    picture: Digraph = nx.MultiDiGraph()
    picture.add_nodes_from(graph)
    for node in graph:
        for value in _used(node):
            producer = value.producer()
            if producer in picture:
                picture.add_edge(producer, node, key=value, value=value)
    return picture


def cone(picture: Digraph, value: ir.Value, leaves: Collection[ir.Value]) -> list[ir.Node]:
    """Return the nodes that compute ``value`` from ``leaves``, in the order of the graph.

    The way back from ``value`` ends at leaves, and at what no node of ``picture`` produces.
    """
    found: set[ir.Node] = set()
    pending = [value]
    while pending:
        wanted = pending.pop()
        node = wanted.producer()
        if wanted in leaves or node is None or node in found or node not in picture:
            continue
        found.add(node)
        pending += [known for _, _, known in picture.in_edges(node, keys=True)]
    return [node for node in picture if node in found]


def bottlenecks(picture: Digraph, node: ir.Node) -> list[ir.Node]:
    """Return the nodes that every path to ``node`` passes, the nearest first.

    A path begins at a node that depends on no other. ``node`` itself is not among them.
    """
    origin = object()
    flow = nx.DiGraph(picture.subgraph(nx.ancestors(picture, node) | {node}))
    flow.add_edges_from([(origin, first) for first, count in flow.in_degree() if count == 0])
    dominators = nx.immediate_dominators(flow, origin)
    chain = []
    step = dominators[node]
    while step is not origin:
        chain.append(step)
        step = dominators[step]
    return chain


def gates(value: ir.Value, operands: Callable[[ir.Value], Sequence[ir.Value]]) -> list[ir.Value]:
    """Return ``value`` and all values that whatever it is made of has to pass, the nearest first.

    Where the ways back part, some hundred values are followed at most; what lies farther away is
    not looked for.

    Args:
        value: where the way back begins.
        operands: what a value is made of; nothing for values at which the way back ends.
    """
    chain, step = [value], value
    while len(found := dict.fromkeys(operands(step))) == 1:
        (step,) = found
        chain.append(step)
    if not found:
        return chain
    origin = object()
    flow: nx.DiGraph[Any] = nx.DiGraph()
    pending, seen = deque([step]), {step}
    while pending:
        user = pending.popleft()
        # behind values that are not followed anything may lie, as behind the last ones
        sources = operands(user) if len(seen) < _FOLLOWED else []
        if not sources:
            flow.add_edge(origin, user)
        for operand in sources:
            flow.add_edge(operand, user)
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    dominators = nx.immediate_dominators(flow, origin)
    while dominators[step] is not origin:
        step = dominators[step]
        chain.append(step)
    return chain


def _used(node: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        for subgraph in subgraphs(attribute):
            for inner in subgraph:
                yield from _used(inner)

"""Find connected nodes around constants, where weights may be quantized.

A quantizer consists of connected elementwise nodes, or of nodes that are quantizers themselves. If
none of the connected nodes has a constant as its first input, none of them quantizes a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_stream
from qgraph.graph.scopes import producer_of


def around_constants(
    nodes: Sequence[ir.Node], connects: Callable[[ir.Node], bool]
) -> list[ir.Node]:
    """Return the nodes connected to a node whose first input is constant, in order.

    Args:
        nodes: of a graph and its subgraphs.
        connects: whether a quantizer may contain a node.
    """
    reached = connected([n for n in nodes if _takes_constant(n) and connects(n)], connects)
    return [node for node in nodes if node in reached]


def connected(starts: Sequence[ir.Node], connects: Callable[[ir.Node], bool]) -> set[ir.Node]:
    """Return some nodes and all nodes connected to them."""
    pending = list(starts)
    reached = set(pending)
    while pending:
        for node in neighbours(pending.pop()):
            if node not in reached and connects(node):
                reached.add(node)
                pending.append(node)
    return reached


def _takes_constant(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    return constant_stream(x) is not None or constant_expression(x) is not None


def neighbours(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the producers of a node's operands and the users of its results."""
    for value in node.inputs:
        producer = producer_of(value)
        if producer is not None:
            yield producer
    for value in node.outputs:
        yield from value.consumers()

"""Which values of a graph reach an operator that distinguishes -0 from +0."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.execution.control import captured
from qgraph.graph.scopes import subgraphs
from qgraph.matching.zero_sight import forgets, sees


def distinguished(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the values whose sign of zero some operator after them may distinguish.

    One walk against the order of the nodes: a value counts if a node distinguishes its zeros, if a
    node uses it inside a graph of its own, or if a floating result made of it counts, unless the
    node has the same results for both zeros. Outputs of the model do not count.
    """
    found: set[ir.Value] = set()
    for node in reversed(list(graph)):
        used = [value for value in node.inputs if value is not None]
        if any(subgraphs(attribute) for attribute in node.attributes.values()):
            found.update(used)
            found.update(captured(node))
            continue
        passes_on = any(output in found for output in node.outputs) and not forgets(node)
        for value in used:
            if passes_on or sees(node, [value]):
                found.add(value)
    return frozenset(found)

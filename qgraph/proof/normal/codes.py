"""Write operators of com.microsoft on codes by their definitions.

These are in :mod:`qgraph.ops.integer.definitions`. An operator that occurs equally often in
both models is kept: equal operands give equal results.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.conditions import SUMS_OF_CODES
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.ops.composite import differing
from qgraph.ops.integer.definitions import write_elementwise
from qgraph.proof.normal.rewriter import Rewriter


def shared_operators(models: Sequence[ir.Model]) -> frozenset[OpKey]:
    """Return the operators of com.microsoft that occur equally often in all models."""
    nodes = (node for model in models for node in nodes_of(model.graph))
    used = frozenset(OpKey.of(node) for node in nodes if node.domain == MICROSOFT)
    return used - differing(models, lambda node: node.domain == MICROSOFT)


def write_definition(graph: Rewriter, node: ir.Node) -> bool:
    """Write an operator on codes by its definition."""
    draft = graph.define(node, write_elementwise)
    if draft is not None and any(new.op_type == "ReduceSum" for new in draft.nodes):
        graph.conditions.add(SUMS_OF_CODES)
    return draft is not None

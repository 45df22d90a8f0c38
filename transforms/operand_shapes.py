"""Inferred types and shapes of what nodes take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import onnx_ir as ir

from qgraph.graph.inferred import inferred
from qgraph.model import Model


def inferred_operands(
    model: Model, wanted: Callable[[ir.Node], bool]
) -> AbstractContextManager[None]:
    """Give inputs of nodes their inferred types and shapes for a while.

    Args:
        model: values of its main graph and of subgraphs are treated.
        wanted: tells of which nodes the inputs matter.
    """
    nodes = ir.traversal.RecursiveGraphIterator(model.ir.graph)
    values = [value for node in nodes if wanted(node) for value in node.inputs if value]
    return inferred(model.ir, values)

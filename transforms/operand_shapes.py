"""Types and shapes of what nodes take, inferred where a model does not state them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import onnx_ir as ir

from qgraph.graph.shapes import learnt
from qgraph.model import Model


def learnt_operands(
    model: Model, wanted: Callable[[ir.Node], bool]
) -> AbstractContextManager[None]:
    """Give inputs of nodes the types and, for a while, the shapes that ONNX infers.

    Args:
        model: values of its main graph and of subgraphs are completed where they have none.
        wanted: tells of which nodes the inputs matter.
    """
    nodes = ir.traversal.RecursiveGraphIterator(model.ir.graph)
    values = [value for node in nodes if wanted(node) for value in node.inputs if value]
    return learnt(model.ir, shapes=values, types=values)

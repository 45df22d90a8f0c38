"""The nodes of a graph that a draft may replace."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that compute ``y`` from ``x`` and constants.

    Attributes:
        x: the only input that is not a parameter.
        y: the output.
        nodes: in topological order; the last one produces ``y``.
    """

    x: ir.Value
    y: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def stands(self) -> bool:
        """Whether all nodes are still in the graph."""
        return all(node.graph is not None for node in self.nodes)

    @property
    def entry(self) -> tuple[ir.Node, int] | None:
        """Node and operand index at which its input is read."""
        entries = ((n, i) for n in self.nodes for i, v in enumerate(n.inputs) if v is self.x)
        return next(entries, None)

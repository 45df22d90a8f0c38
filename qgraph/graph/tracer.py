"""What a draft may replace, and how it writes nodes: a method for each operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.numerics.open_scale import OpenScale
from qgraph.numerics.primitives import NUMPY


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that compute ``y`` from ``x`` and constants, in topological order."""

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


Operand = ir.Value | Array

PREDICATES = ("Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not")
"""Operators whose output is of type bool."""


class Nodes(Protocol):
    """Takes nodes; computes in the 16-bit type ``half``, or in float32 if it is None."""

    half: ir.DataType | None

    def node(
        self,
        name: str,
        operands: Sequence[Operand | None],
        attributes: dict[str, Any] | None = None,
        *,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Append a node and return its output."""


class Tracer:
    """The ``op`` of a draft: one method for each standard operator."""

    def __init__(self, draft: Nodes) -> None:
        self._draft = draft

    def __getattr__(self, name: str) -> Callable[..., Operand]:
        def call(*operands: Operand | float, **attributes: Any) -> Operand:
            return self._call(name, [_operand(o) for o in operands], attributes)

        return call

    def _call(self, name: str, operands: list[Operand], attributes: dict[str, Any]) -> Operand:
        if not any(isinstance(operand, ir.Value) for operand in operands):
            with np.errstate(all="ignore"):
                return np.asarray(NUMPY[name](*operands, **attributes))
        if name == "Where" and isinstance(operands[0], np.ndarray):
            for chosen, condition in ((operands[1], True), (operands[2], False)):
                if (operands[0] == condition).all():
                    return chosen
        first = operands[0]
        if name == "Cast" and isinstance(first, ir.Value) and first.dtype == attributes["to"]:
            return first
        dtype = ir.DataType.BOOL if name in PREDICATES else ir.DataType.FLOAT
        dtype = ir.DataType(attributes.get("to", dtype))
        return self._draft.node(name, operands, attributes, dtype=dtype)


def _operand(operand: Operand | float) -> Operand:
    if isinstance(operand, ir.Value | np.ndarray | OpenScale):
        return operand
    return np.asarray(operand, bool if isinstance(operand, bool) else np.float32)

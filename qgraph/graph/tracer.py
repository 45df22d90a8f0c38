"""Write nodes by calling a method for each operator, as definitions of operators do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.numerics.open_scale import OpenScale
from qgraph.numerics.primitives import NUMPY

Operand = ir.Value | Array

PREDICATES = ("Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not")
"""Operators whose output is of type bool."""


class Nodes(Protocol):
    """Takes nodes.

    Attributes:
        half: the 16-bit type in which it computes; None for float32.
    """

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

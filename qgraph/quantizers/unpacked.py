"""Constant codes that operators on integers unpack from larger ones.

    Concat(BitwiseAnd(w, 15), BitShift(w, 4, direction=RIGHT))  ->  codes from 0 to 15

The nodes are computed, and what uses the codes gets a constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from qgraph.graph.constants import constant
from qgraph.numerics import Array
from qgraph.ops.dispatch import Environment, compute

_CUTS = frozenset({"BitShift", "BitwiseAnd", "Div", "Mod"})
_MOVES = {"Concat", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
_OTHERS = {"Add", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Equal", "Greater"}
_OTHERS |= {"GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub", "Where"}

_MOST_NODES = 64


def unpacked(value: ir.Value | None, imports: Mapping[str, int]) -> Array | None:
    """Return the integers of ``value`` if they are cut out of constant integers, else None.

    An arithmetic shift is written with comparisons and choices, as ONNX has none.

    Args:
        value: a value of integers.
        imports: versions of operator sets where it is computed.
    """
    nodes: list[ir.Node] = []
    known: Environment = {}
    if value is None or not _collect(value, nodes, known):
        return None
    if _CUTS.isdisjoint(node.op_type for node in nodes):
        return None
    for node in nodes:
        compute(node, imports, known)
    return known[value]  # type: ignore[no-any-return]


def _collect(value: ir.Value, nodes: list[ir.Node], known: Environment) -> bool:
    """Add what computes ``value`` from constants, in order; return False if something else does."""
    if value in known:
        return True
    array = constant(value)
    if array is not None:
        known[value] = array
        return array.dtype.kind in "iub"
    node = value.producer()
    if node is None or node.domain or node.op_type not in _CUTS | _MOVES | _OTHERS:
        return False
    if not all(each is None or _collect(each, nodes, known) for each in node.inputs):
        return False
    if node not in nodes:
        nodes.append(node)
    return len(nodes) <= _MOST_NODES

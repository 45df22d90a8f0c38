"""Find sums and means of codes over rows of several matrices, which OpenVINO computes wrongly.

These are sums over the middle one of three axes. Axes of size 1 are ignored, and a Transpose before
the sum may be undone::

    ReduceMean of [N, 64, 16] over axis 1                        yes
    ReduceMean of [N, 1, 64, 16] over axis 2                     yes
    GlobalAveragePool of [N, 16, 64], after a Transpose         yes
    ReduceMean of [1, 64, 16] over axis 1: one matrix            no
    ReduceMean of [N, 16, 8, 8] over axes 2 and 3                no
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.inference.rules import UNKNOWN, Shape
from qgraph.graph.inference.walk import infer
from qgraph.graph.schema import LINEAR_DOMAINS
from qgraph.graph.scopes import input_of

_SUMS = frozenset({"GlobalAveragePool", "ReduceMean", "ReduceSum"})
_DECODER = "DequantizeLinear"
"""Operators after which OpenVINO adds floats."""
_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_BETWEEN = _MOVES | {"MaxPool", "Relu"}
"""Operators that codes pass through, whose results are not below the lowest code."""
_AXES = 3


@dataclass(frozen=True)
class RowSum:
    """A sum or mean over rows.

    Attributes:
        node: the operator.
        decoder: the DequantizeLinear of the codes.
    """

    node: ir.Node
    decoder: ir.Node


def row_sums(
    nodes: Iterable[ir.Node], shape_of: Callable[[ir.Value], Shape | None]
) -> Iterator[RowSum]:
    """Yield the sums over rows of codes among nodes of a model.

    Args:
        nodes: the nodes.
        shape_of: returns the inferred shape of a value; None if its rank is not known.
    """
    for node in nodes:
        if node.op_type not in _SUMS or node.domain not in LINEAR_DOMAINS:
            continue
        x = input_of(node, 0)
        shape = None if x is None else shape_of(x)
        decoder, is_turned = _decoder(x)
        if shape is None or decoder is None:
            continue
        axes = _summed(node, len(shape))
        long = [axis for axis, size in enumerate(shape) if size != 1]
        summed = [place for place, axis in enumerate(long) if axis in axes]
        if len(long) == _AXES and (summed == [1] or (summed == [2] and is_turned)):
            yield RowSum(node, decoder)


def _decoder(value: ir.Value | None) -> tuple[ir.Node | None, bool]:
    """Return the DequantizeLinear of the summed numbers, and whether a Transpose follows it."""
    is_turned = False
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == _DECODER:
            return node, is_turned
        if node.op_type not in _BETWEEN or node.domain not in LINEAR_DOMAINS:
            break
        is_turned |= node.op_type == "Transpose"
        value = node.inputs[0]
    return None, False


def _summed(node: ir.Node, rank: int) -> set[int]:
    """Return the axes of a sum; none if they are not known."""
    if node.op_type == "GlobalAveragePool":
        return set(range(2, rank))
    stated = input_of(node, 1)
    array = None if stated is None else constant_expression(stated)
    axes = node.attributes.get_ints("axes", ()) if array is None else array.reshape(-1).tolist()
    return {int(axis) % rank for axis in axes}


def row_sums_of(model: ir.Model) -> list[RowSum]:
    """Return the sums over rows of codes of a model."""
    nodes = [node for node in model.graph if node.op_type in _SUMS]
    facts = infer(model) if nodes else {}
    return list(row_sums(nodes, lambda value: facts.get(value, UNKNOWN).shape))

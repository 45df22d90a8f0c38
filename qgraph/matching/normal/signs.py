"""Differences, negations and factors of one or a power of two, written in one way.

    a - b            -> a + (-b)          IEEE 754 defines the difference so
    x * -1, x / -1   -> -x
    -(-x)            -> x
    x * 1, x / 1     -> x
    x / c            -> x * (1 / c)       c a power of two whose reciprocal is a float32
    Sum(a, b)        -> a + b

All are equal bit for bit for every input; all NaN count as one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import sizes_of


def write_difference(graph: Rewriter, node: ir.Node) -> bool:
    """Write a difference of floating-point numbers as a sum."""
    if node.domain or node.op_type != "Sub" or graph.known.has(node.outputs[0]):
        return False
    a, b = node.inputs
    dtype = node.outputs[0].dtype
    if a is None or b is None or dtype is not ir.DataType.FLOAT:
        return False
    array = graph.array(b)
    if array is not None:
        other = graph.constant(np.negative(array), f"{b.name}_negated")
    else:
        other = graph.node(node, "Neg", [b], dtype=dtype, sizes=sizes_of(b))
    return _replace(graph, node, "Add", [a, other])


def write_factor(graph: Rewriter, node: ir.Node) -> bool:
    """Write a product with, or a quotient by, one or a power of two in one way."""
    if node.domain or node.op_type not in ("Mul", "Div") or graph.known.has(node.outputs[0]):
        return False
    x, factor = node.inputs
    number = graph.single(factor)
    if number is None and node.op_type == "Mul":
        x, factor = factor, x
        number = graph.single(factor)
    if x is None or factor is None or number is None:
        return False
    rank = len(sizes_of(x) or ())
    if factor.shape is None or factor.shape.rank() > rank:
        return False
    if number == 1:
        return graph.replace(node.outputs[0], x)
    if number == -1:
        return _replace(graph, node, "Neg", [x])
    if node.op_type == "Div" and _has_exact_reciprocal(number):
        reciprocal = np.asarray(np.float32(1) / number).reshape(())
        return _replace(graph, node, "Mul", [x, graph.constant(reciprocal, "reciprocal")])
    return False


def join_negations(graph: Rewriter, node: ir.Node) -> bool:
    """Remove two negations that follow each other."""
    inner = None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
    if inner is None or any((n.domain, n.op_type) != ("", "Neg") for n in (node, inner)):
        return False
    x = inner.inputs[0]
    return x is not None and graph.replace(node.outputs[0], x)


def write_sum(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Sum of two numbers as an Add."""
    if node.domain or node.op_type != "Sum" or len(node.inputs) != 2:
        return False
    return _replace(graph, node, "Add", list(node.inputs))


def hand_on(graph: Rewriter, node: ir.Node) -> bool:
    """Remove an Identity."""
    if node.domain or node.op_type != "Identity" or node.outputs[0].is_graph_output():
        return False
    x = node.inputs[0]
    return x is not None and graph.replace(node.outputs[0], x)


def _has_exact_reciprocal(number: np.float32) -> bool:
    with np.errstate(all="ignore"):
        mantissa, _ = np.frexp(number)
        reciprocal = np.float32(1) / number
    return abs(mantissa) == 0.5 and bool(np.isfinite(reciprocal)) and reciprocal != 0


def _replace(graph: Rewriter, node: ir.Node, name: str, inputs: list[ir.Value | None]) -> bool:
    output = node.outputs[0]
    return graph.replace(
        output, graph.node(node, name, inputs, dtype=output.dtype, sizes=sizes_of(output))
    )

"""Replace values that are computed from sizes alone by constants.

``fix_static_values`` turns the results of shape computations into constants: a chain of Shape,
Gather and Concat that always gives [1, 300] is the constant [1, 300], and can then be compared with
an initializer.
"""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.inference.walk import Facts
from qgraph.graph.scopes import graphs_of, nodes_of


def fix_static_values(graph: ir.Graph, facts: Facts) -> dict[str, str]:
    """Replace nodes with known results by Constant nodes of the same names, in place.

    Nodes on constants alone are left unchanged.

    Args:
        graph: the main graph; subgraphs are included.
        facts: the inferred types, shapes and values.

    Returns: the replaced operators with their operands, by the names of the results.
    """
    constants: set[ir.Value] = set()
    fixed: dict[str, str] = {}
    for node in nodes_of(graph):
        if _is_constant(node, constants):
            constants.update(node.outputs)
            continue
        if len(node.outputs) != 1 or graphs_of(node):
            continue
        (result,) = node.outputs
        fact = facts.get(result)
        array = None if fact is None else fact.array
        if array is None:
            continue
        fixed[str(result.name)] = origin(result)
        node.resize_inputs(0)
        node.attributes.clear()
        node.domain, node.op_type = "", "Constant"
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
    return fixed


def origin(value: ir.Value) -> str:
    """Return the operator that computes a value, with its operands, as a text."""
    node = value.producer()
    if node is None:
        return "stored in the file" if value.is_initializer() else "stated for the input"
    operands = ", ".join(str(operand.name) for operand in node.inputs if operand is not None)
    return f"{node.op_type} of {operands}" if operands else node.op_type


def _is_constant(node: ir.Node, constants: set[ir.Value]) -> bool:
    """Return whether a node computes from constants alone."""
    if node.op_type == "Constant" and not node.domain:
        return True
    used = [value for value in node.inputs if value is not None]
    return bool(used) and all(
        value in constants or (value.is_initializer() and not value.is_graph_input())
        for value in used
    )

"""Properties of operators for the checker: identity, and whether they distinguish zeros."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import onnx
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import constant
from qgraph.graph.opset.versions import OLDEST, changes
from qgraph.graph.schema import attribute_values
from qgraph.graph.scopes import subgraphs
from qgraph.ops.known_values import is_random
from qgraph.ops.operator import operator_of


def names(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


_REVIEWED = 28
"""The opset up to which the standard operators were reviewed for signs of zeros."""

SWAPPABLE = names("Add And BitwiseAnd BitwiseOr Equal Mul Or Xor")
"""Standard operators whose two operands may be swapped."""

_BY_SIGN = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
_BY_DIVISION = {"BatchNormalization": 4, "Div": 1, "QuantizeLinear": 1}
_EVEN = names("Abs Cos Cosh Exp Sigmoid Softplus")
_BY_SCALES = frozenset({"QLinearConv", "QLinearMatMul"})


def graphs_of(node: ir.Node) -> list[ir.Graph]:
    """Return the subgraphs of a node."""
    attributes = sorted(node.attributes.items())
    return [graph for _, attribute in attributes for graph in subgraphs(attribute)]


def is_apart(node: ir.Node, imports: Mapping[str, int]) -> bool:
    """Return whether the results depend on more than the operands, or the node has subgraphs."""
    return bool(graphs_of(node)) or is_random(node, imports)


def meaning(node: ir.Node, imports: Mapping[str, int]) -> Hashable:
    """Return a key that is equal for nodes that compute equal results from equal operands.

    Absent attributes have their defaults, and subgraphs are ignored. Versions of an operator that
    differ only in types or texts have one key.
    """
    present = [value is not None for value in node.inputs]
    while present and not present[-1]:
        present.pop()
    outputs = len(node.outputs) if node.op_type == "Split" else 0
    try:
        operator = operator_of(node)
        if operator is not None and not operator.schema.standard:
            values = sorted(operator.schema.attributes_of(node).items())
            return operator.schema.identity, tuple(present), str(values)
    except OperatorError:
        pass  # compared like an unknown operator
    opset = imports.get(node.domain, 1)
    attributes = attribute_values(node, opset)
    version = opset if node.domain else _version(node.op_type, opset)
    identity = node.domain, node.op_type, node.overload, version
    return (*identity, tuple(present), outputs, tuple(sorted(attributes.items())))


def _version(name: str, opset: int) -> Hashable:
    """Return the last opset that changed the meaning of a standard operator."""
    return ("opset", opset) if opset < OLDEST else max(changes(name, OLDEST, opset), default=0)


def tells_zeros_apart(node: ir.Node, index: int) -> bool:
    """Return whether the sign of a zero in one operand may change the result of a node.

    The prover has its own table; the two are separate on purpose. Operators of other domains than
    those of quantizers and of the standard count as distinguishing zeros.
    """
    name = node.op_type
    try:
        operator = operator_of(node)
    except OperatorError:
        return True
    if operator is not None and (name == "QuantizeLinear" or not operator.schema.standard):
        return index > 0  # scales, ranges and zero points
    if node.domain or name == "CastLike" or name in _BY_SCALES:
        return True
    if name == "Cast":
        return node.attributes.get_int("to", 1) == ir.DataType.STRING
    if name in _BY_SIGN or _BY_DIVISION.get(name) == index:
        return index == 1 or not forgets_zero_signs(node)
    is_standard = onnx.defs.has(name, "")
    return not is_standard or onnx.defs.get_schema(name).since_version > _REVIEWED


def forgets_zero_signs(node: ir.Node) -> bool:
    """Return whether a node is an even function, so that -0 and +0 give the same result."""
    if node.domain == "" and node.op_type == "Pow":
        exponents = constant(node.inputs[1])
        return exponents is not None and bool(((exponents >= 0) & (exponents % 2 == 0)).all())
    return node.domain == "" and node.op_type in _EVEN

"""Operators that make each element of the result of one element of each operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY

Array = npt.NDArray[Any]

_JOINS = frozenset({"QLinearAdd", "QLinearMul"})
_OF_ONE_CODE = frozenset({"QLinearLeakyRelu", "QLinearSigmoid"})
"""Operators of com.microsoft that make each code of one code."""

_MOVING = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def is_elementwise(node: ir.Node) -> bool:
    """Return whether a node has a definition over single elements."""
    if node.domain == "" and node.op_type in NUMPY:
        return True
    try:
        return operator_of(node) is not None
    except OperatorError:
        return False


def is_reshape(node: ir.Node) -> bool:
    """Return whether a node gives its data another shape."""
    return node.domain == "" and node.op_type == "Reshape" and len(node.inputs) == 2


def is_moving(node: ir.Node) -> bool:
    """Return whether a node only moves elements to other places."""
    return node.domain == "" and node.op_type in _MOVING


def operands(value: ir.Value, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return what an elementwise operator makes ``value`` of, constants apart.

    A Reshape to a constant shape leaves the elements as they are, and counts too. Nothing is
    returned for values that come from elsewhere.

    Args:
        value: the value.
        is_known: whether a value is constant.
    """
    node = value.producer()
    if node is None or is_known(value):
        return []
    if is_reshape(node):
        data, shape = node.inputs[:2]
        return [data] if data is not None and shape is not None and is_known(shape) else []
    coded = node.domain == "com.microsoft" and node.op_type in _OF_ONE_CODE
    if not coded and not is_elementwise(node):
        return []
    found = list(dict.fromkeys(v for v in node.inputs if v is not None and not is_known(v)))
    if node.domain == "" and node.op_type in NUMPY:
        return [] if node.op_type == "Gather" and node.inputs[0] in found else found
    # the parameters of a quantizer have forms of their own, and are no data
    return found if found == list(node.inputs[:1]) else []


def joined(value: ir.Value, is_known: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Return what :func:`operands` does, also for operators that join codes of two tensors."""
    node = value.producer()
    if node is None or node.domain != "com.microsoft" or node.op_type not in _JOINS:
        return operands(value, is_known)
    if is_known(value):
        return []
    return list(dict.fromkeys(v for v in node.inputs if v is not None and not is_known(v)))


def check_parameters(node: ir.Node, array_of: Callable[[ir.Value], Array | None]) -> None:
    """See that a quantizer accepts the values of its parameters.

    Raises:
        OperatorError: it does not.
    """
    operator = operator_of(node)
    if operator is None or operator.schema.standard:
        return
    parameters = [None if value is None else array_of(value) for value in node.inputs[1:]]
    try:
        sizes = np.broadcast_shapes(*(array.shape for array in parameters if array is not None))
    except ValueError as error:
        raise OperatorError(f"{where(node)}: its parameters do not broadcast: {error}") from error
    operator.run(node, [np.zeros(sizes, np.float32), *parameters])

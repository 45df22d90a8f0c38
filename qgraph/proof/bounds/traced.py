"""Evaluate nodes on quantities by their definitions in primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of
from qgraph.ops.operator import operator_of
from qgraph.proof.bounds.events import Operand, Pending
from qgraph.proof.bounds.quantity import Constant, ConstantTracer, Known, Quantity, stored
from qgraph.proof.bounds.rule import NodeCall
from qgraph.proof.functions.lowering import Shape, lower_node
from qgraph.reasons import NOT_COMPUTED, OUT_OF_RANGE, Undecidable


def traced(call: NodeCall) -> Operand:
    """Return the result of a node that is a primitive or has a definition, or raise Undecidable."""
    node, tracer = call.node, call.tracer
    is_defined = operator_of(node) is not None
    values = []
    for index, value in enumerate(node.inputs):
        # Parameters are laid out along their axis.
        is_parameter = is_defined and index > 0 and call.array(value) is not None
        if value is not None and not is_parameter:
            values.append(value)
    constants = _constants(values, call)
    dtype = node.outputs[0].dtype
    types = {value.dtype for value in (*values, *node.outputs)}
    tracer.is_whole = all(each is not None and each.is_integer() for each in types)
    try:
        # Definitions are written over any primitives; expressions are one kind of them.
        primitives: Any = tracer if constants is None else ConstantTracer()
        operands: Any = constants or {value: call.of(value) for value in values}
        result: Any = lower_node(node, operands, shape_of_data(node), primitives, call.array)
    except OperatorError as error:
        raise Undecidable(NOT_COMPUTED(str(error))) from error
    if isinstance(result, Constant):
        result = result.quantity
    if not isinstance(result, Quantity | Pending):
        raise call.refusal()
    if tracer.is_whole and dtype is not None and node.op_type in _WRAPPING:
        return _expect_no_wrap(tracer.quantity(result), node, np.iinfo(dtype.numpy()))
    if isinstance(result, Pending) or dtype is None:
        return result
    return stored(result, dtype.name)


def _constants(values: Sequence[ir.Value], call: NodeCall) -> dict[ir.Value, Constant] | None:
    """Return operands that are all constant; None if one is data.

    Raises Undecidable if an operand has no quantity.
    """
    constants: dict[ir.Value, Constant] = {}
    for value in values:
        array = array_of(value)
        if array is not None and array.dtype.kind not in _NO_NUMBERS:
            constants[value] = Constant(array)
            continue
        known = call.of(value)
        if isinstance(known, Pending) or known.value is None:
            return None
        constants[value] = Known(known)
    return constants


_NO_NUMBERS = "cOSUmM"


def shape_of_data(node: ir.Node) -> Shape:
    """Return the shape of the first operand; empty if it is not known."""
    value = node.inputs[0]
    if value is None or value.shape is None:
        return ()
    return tuple(n if isinstance(n, int) else None for n in value.shape.dims)


_WRAPPING = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Div", "Pow", "Sum"})
"""Operators on integers, whose results wrap around or are truncated."""
_EXACT = 1 << 53
"""Largest magnitude up to which float64 ranges of integers are exact."""


def _expect_no_wrap(result: Quantity, node: ir.Node, limits: np.iinfo[Any]) -> Quantity:
    """Return integers that do not wrap around; raise Undecidable if they may."""
    first, last = max(limits.min, -_EXACT), min(limits.max, _EXACT)
    is_inside = (result.low >= first).all() and (result.high <= last).all()
    if node.op_type in ("Div", "Pow") or not is_inside:
        raise Undecidable(OUT_OF_RANGE(f"{node.op_type} of integers may leave their range"))
    return result

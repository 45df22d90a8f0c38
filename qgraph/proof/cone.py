"""Nodes lowered to expressions by their operators' definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.folding import array_of
from qgraph.numerics import blocks
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY
from qgraph.proof.expression import Builder, Expr, Undecidable

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]


def lower(
    nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value, shape: Shape, builder: Builder
) -> Expr:
    """Return ``y`` as an expression of one float32 variable, ``x``.

    Every node is replaced by its operator's definition, or is a primitive itself. Constants keep
    their shapes, aligned to the data as NumPy broadcasts; scale and zero point of
    QuantizeLinear and DequantizeLinear are laid along their axis or blocks first.

    Args:
        nodes: in topological order.
        x: the value that is the variable.
        y: the value to express.
        shape: of the data, None for unknown dimensions.
        builder: collects the expressions; share it between regions to share common parts.

    Raises:
        Undecidable: a node has no definition here, or an operand is neither constant nor
            computed by the nodes.
    """
    known: dict[ir.Value, Expr] = {x: builder.input}
    for node in nodes:
        if any(value in known for value in node.inputs):
            known[node.outputs[0]] = _lower_node(node, known, shape, builder)
    if y not in known:
        raise Undecidable(f"{y.name!r} does not depend on the data")
    return known[y]


def parameter_array(node: ir.Node, value: ir.Value, shape: Shape) -> Array:
    """Return a constant operand in float32 (or bool), laid out so that it broadcasts to the data.

    Raises:
        Undecidable: it is not constant, or its axis cannot be placed.
    """
    array = array_of(value)
    if array is None:
        raise Undecidable(f"operand {value.name!r} of {node.op_type} is only known at run time")
    if node.op_type in _ALONG_AXIS:
        array = _aligned(node, array, shape)
    return array if array.dtype == bool else array.astype(np.float32)


_ALONG_AXIS = ("QuantizeLinear", "DequantizeLinear")


def _lower_node(node: ir.Node, known: dict[ir.Value, Expr], shape: Shape, builder: Builder) -> Expr:
    def operand(value: ir.Value | None) -> Expr | None:
        if value is None:
            return None
        if value in known:
            return known[value]
        return builder.constant(parameter_array(node, value, shape))

    try:
        operator = operator_of(node)
        if operator is not None:
            operands = [operand(value) for value in operator.schema.values(node)]
            result: Expr = operator.define(builder, *operands, **operator.arguments(node))
            return result
    except OperatorError as error:
        raise Undecidable(str(error)) from error
    if node.domain != "" or node.op_type not in NUMPY:
        raise Undecidable(f"{node.op_type} has no definition over single values")
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    primitive: Expr = getattr(builder, node.op_type)(*map(operand, node.inputs), **attributes)
    return primitive


def _aligned(node: ir.Node, parameter: Array, shape: Shape) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    if not shape:
        raise Undecidable(f"the rank of the data of {node.op_type} is not known")
    axis = node.attributes.get_int("axis", 1)
    size = node.attributes.get_int("block_size", 0)
    place = axis % len(shape)
    if size:
        sizes = list(parameter.shape)
        sizes[place] = shape[place] or sizes[place] * size
    else:
        sizes = [1] * len(shape)
        sizes[place] = parameter.size
    try:
        return blocks.align(parameter, sizes, axis, size)
    except ValueError as error:
        raise Undecidable(str(error)) from error

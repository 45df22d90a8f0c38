"""Refuse operators whose constants repeat data: the functions of bounds do not hold shapes.

``x + c`` has the shape ``[1, 2]`` for ``x: [1, 2]`` and ``c: [1]``, and ``[2, 1, 2]`` for
``c: [2, 1, 1]``. As a function of elements it may be the same.

A product of one channel may be repeated for the channels of another product, to which it is added:
the sum has the shape of that product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import operator_of
from qgraph.reasons import DO_NOT_FIT, Undecidable

_OF_TWO_CODES = frozenset({"QLinearAdd", "QLinearMul"})
_OF_ALL = frozenset(NUMPY) - {"Gather"} | {"Mean", "Sum"}

_CHANNEL_FIRST = frozenset({"Conv", "ConvInteger", "ConvTranspose"})
_CHANNEL_LAST = frozenset({"Gemm", "MatMul", "MatMulInteger"})

_Size = int | ir.SymbolicDim


def expect_no_repeats(node: ir.Node, array_of: Callable[[ir.Value], Array | None]) -> None:
    """Check that the constants of an operator on elements do not repeat elements of its data.

    Args:
        node: the node.
        array_of: returns the array of a constant; None for data.

    Raises:
        Undecidable: they may.
    """
    values = dict.fromkeys(value for value in _broadcast(node) if value is not None)
    arrays = {value: array_of(value) for value in values}
    constants = [array for array in arrays.values() if array is not None and array.ndim]
    shapes = [value.shape for value, array in arrays.items() if array is None]
    if not constants or not shapes:
        return
    known = [list(reversed(shape.dims)) for shape in shapes if shape is not None]
    columns = list(zip_longest(*known, fillvalue=1))
    channels = _channels_added(node, [v for v, array in arrays.items() if array is None])
    if len(known) < len(shapes) or any(_repeat(array, columns, channels) for array in constants):
        name = node.name or node.outputs[0].name
        raise Undecidable(DO_NOT_FIT(f"constants of {node.op_type} {name!r} may repeat its data"))


def _broadcast(node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the operands of a node that broadcast to its result."""
    if node.domain == "com.microsoft" and node.op_type in _OF_TWO_CODES:
        return [node.inputs[0], node.inputs[3]]
    if node.domain == "" and node.op_type in _OF_ALL:
        return node.inputs
    operator = operator_of(node)
    return () if operator is None or operator.schema.standard else node.inputs


def _channels_added(node: ir.Node, data: Sequence[ir.Value]) -> int | None:
    """Return the axis, from the last one, along which a product of one channel may be repeated.

    None if the data is no such product, or if the result is not only added to products of the same
    operator that have its sizes.
    """
    maker, result = data[0].producer(), node.outputs[0]
    if len(data) > 1 or maker is None or maker.domain or data[0].shape is None:
        return None
    if result.shape is None or result.is_graph_output() or not result.uses():
        return None
    for reader, index in result.uses():
        other = reader.inputs[1 - index] if reader.op_type == "Add" and not reader.domain else None
        product = None if other is None else other.producer()
        if product is None or (product.domain, product.op_type) != ("", maker.op_type):
            return None
        if other is None or other.shape != result.shape:
            return None
    if maker.op_type in _CHANNEL_FIRST:
        return len(data[0].shape) - 2
    return 0 if maker.op_type in _CHANNEL_LAST else None


def _repeat(array: Array, columns: Sequence[Sequence[_Size]], channels: int | None) -> bool:
    """Return whether a constant may repeat data.

    Args:
        array: the constant.
        columns: sizes of the data, from the last axis on.
        channels: the axis along which data may be repeated, from the last one; None for none.
    """
    if array.ndim > len(columns):
        return True
    for axis, (size, sizes) in enumerate(zip(reversed(array.shape), columns, strict=False)):
        if size == 1 or size in sizes:
            continue
        if set(sizes) == {1}:
            if axis == channels:
                continue
            return True
        # where an open size is 1, numbers that differ along the axis show in the function
        along = array.ndim - 1 - axis
        if (array == array.take([0], along)).all():
            return True
    return False

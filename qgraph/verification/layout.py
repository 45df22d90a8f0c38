"""Nodes written out as steps on single elements, each constant laid beside the data it meets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.matching.elementwise import check_parameters
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY
from qgraph.verification.sides import Side
from qgraph.verification.tracing import Ref, Trace

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]

ALONG_AXIS = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators whose parameters lie along an axis, or in blocks."""


def write_out(
    trace: Trace,
    side: Side,
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    shape: Shape | None,
) -> Ref:
    """Return the line of ``y``, computed by ``nodes`` from ``x``, element by element.

    Args:
        trace: takes the lines.
        side: the model.
        nodes: operands first; see :meth:`Side.between`.
        x: the variable.
        y: what is wanted.
        shape: of ``x``; None where not even the rank is known.

    Raises:
        UnsupportedError: a node has no definition over single elements, or moves them.
    """
    known = {x: Ref(0)}
    views: dict[ir.Value, Shape | None] = {x: shape}
    for node in nodes:
        seen = [views[value] for value in node.inputs if value in views]
        if any(view != seen[0] for view in seen):
            raise UnsupportedError(f"the operands of {node.op_type} have different shapes")
        result = node.outputs[0]
        if node.op_type == "Reshape" and node.domain == "":
            known[result] = _reshaped(trace, side, node, known, shape)
            views[result] = target_of(side, node)
            continue
        known[result] = _write_node(trace, side, node, known, seen[0], shape)
        views[result] = seen[0]
    if views[y] != shape:
        raise UnsupportedError("the result has another shape than the data")
    return known[y]


def target_of(side: Side, node: ir.Node) -> Shape:
    """Return the shape that a Reshape gives to its data.

    Raises:
        UnsupportedError: it is not spelled out.
    """
    wanted = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = None if wanted is None else side.known.array(wanted)
    target = () if sizes is None else tuple(int(size) for size in sizes)
    if sizes is None or min(target, default=1) < 1:
        raise UnsupportedError("the shape of a Reshape is not spelled out")
    return target


def _reshaped(
    trace: Trace, side: Side, node: ir.Node, known: dict[ir.Value, Ref], shape: Shape | None
) -> Ref:
    data = node.inputs[0]
    sizes = [size for size in shape or () if size is not None]
    if shape is None or len(sizes) < len(shape) or data not in known:
        raise UnsupportedError("the shape of reshaped data is not known")
    whole = tuple(sizes)
    enlarged = np.broadcast_shapes(trace.shape_of(known[data].number), whole) != whole
    if enlarged or math.prod(target_of(side, node)) != math.prod(whole):  # type: ignore[arg-type]
        raise UnsupportedError("a Reshape has other elements than the data")
    return known[data]


def _write_node(
    trace: Trace,
    side: Side,
    node: ir.Node,
    known: dict[ir.Value, Ref],
    view: Shape | None,
    shape: Shape | None,
) -> Ref:
    operator = operator_of(node)

    def operand(value: ir.Value | None) -> Ref | None:
        if value is None or value in known:
            return None if value is None else known[value]
        array = side.known.array(value)
        if array is None:
            raise UnsupportedError(f"{value.name!r} is not constant")
        if operator is None and is_narrow_float(array):
            raise UnsupportedError(f"{node.op_type} with a constant of type {array.dtype}")
        array = laid_out(node, array, view)
        if array.size > 1 and view != shape:
            array = np.broadcast_to(array, _sizes(view)).reshape(_sizes(shape))
        return trace.constant(array)

    try:
        if operator is not None:
            if any(value in known for value in node.inputs[1:]):
                raise UnsupportedError(f"the parameters of {node.op_type} are made of data")
            _check_rank(trace, node, known, view)
            check_parameters(node, side.known.array)
            operands = [operand(value) for value in operator.schema.values(node)]
            found: Ref = operator.define(trace, *operands, **operator.arguments(node))
            return found
    except OperatorError as error:
        raise UnsupportedError(str(error)) from error
    if node.domain != "" or node.op_type not in NUMPY:
        raise UnsupportedError(f"{node.op_type} has no definition over single elements")
    attributes: dict[str, object] = {name: a.value for name, a in node.attributes.items()}
    return trace.call(node.op_type, [operand(value) for value in node.inputs], attributes)


def _check_rank(
    trace: Trace, node: ir.Node, known: dict[ir.Value, Ref], view: Shape | None
) -> None:
    """See that constants before a node left the data its rank, from which axes count."""
    before = trace.shape_of(known[node.inputs[0]].number) if node.inputs[0] in known else ()
    if node.op_type in ALONG_AXIS and view is not None and len(before) > len(view):
        raise UnsupportedError(f"the data of {node.op_type} is of higher rank than its region's")


def is_narrow_float(array: Array) -> bool:
    """Return whether numbers have another floating type than float32."""
    kind = ir.DataType.from_numpy(array.dtype)
    return kind.is_floating_point() and kind is not ir.DataType.FLOAT


def laid_out(node: ir.Node, array: Array, view: Shape | None) -> Array:
    """Return a constant operand so that it broadcasts to data of the shape ``view``.

    Raises:
        UnsupportedError: it does not fit, or the rank of the data is not known.
    """
    if node.op_type not in ALONG_AXIS:
        return array
    if array.size == 1:
        return array.reshape(())
    if not view:
        raise UnsupportedError(f"the rank of the data of {node.op_type} is not known")
    axis = node.attributes.get_int("axis", 1)
    if not -len(view) <= axis < len(view):
        raise UnsupportedError(f"axis {axis} of data of rank {len(view)}")
    axis %= len(view)
    size, block = view[axis], node.attributes.get_int("block_size", 0)
    if not block:
        if array.ndim != 1 or size not in (None, array.size):
            raise UnsupportedError(f"parameters of {node.op_type} do not fit its data")
        return array.reshape([array.size if i == axis else 1 for i in range(len(view))])
    if array.ndim != len(view) or (size is not None and -(-size // block) != array.shape[axis]):
        raise UnsupportedError(f"blocks of {node.op_type} do not fit its data")
    whole = np.repeat(array, block, axis)
    return whole if size is None else np.take(whole, range(size), axis)


def result_shape(constants: Sequence[int], shape: Shape | None) -> Shape:
    """Return the shape of a result: that of its constants, broadcast to that of the data.

    Raises:
        UnsupportedError: they do not fit, or may not.
    """
    if shape is None:
        return tuple(constants)  # the same for both sides, or they may differ
    rank = max(len(constants), len(shape))
    ours = (1,) * (rank - len(constants)) + tuple(constants)
    data = (1,) * (rank - len(shape)) + shape
    if any(d not in (None, 1, c) and c != 1 for c, d in zip(ours, data, strict=True)):
        raise UnsupportedError("its constants do not fit its data")
    return tuple(c if c != 1 else d for c, d in zip(ours, data, strict=True))


def _sizes(view: Shape | None) -> list[int]:
    sizes = [size for size in view or () if size is not None]
    if view is None or len(sizes) < len(view):
        raise UnsupportedError("the shape of reshaped data is not known")
    return sizes

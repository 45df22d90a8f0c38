"""Values that are known because they are constants seen through shape-only operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.constants import constant

Array = npt.NDArray[Any]


def constant_expression(value: ir.Value | None) -> Array | None:
    """Return the array that ``value`` always has, or None.

    Follows Identity, Transpose, Reshape, Flatten, Squeeze and Unsqueeze back to a constant.
    """
    known = constant(value)
    if known is not None or value is None:
        return known
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in _RULES:
        return None
    data = constant_expression(node.inputs[0])
    if data is None:
        return None
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    operand = constant_expression(axes)
    if axes is not None and operand is None:
        return None
    return _RULES[node.op_type](node, data, operand)


def array_of(value: ir.Value | None) -> Array | None:
    """Return a constant's array, also that of a drafted constant, which no graph owns yet."""
    drafted = value is not None and value.graph is None and value.producer() is None
    if drafted and value is not None:
        return None if value.const_value is None else value.const_value.numpy()
    return constant_expression(value)


def _transpose(node: ir.Node, data: Array, _: Array | None) -> Array:
    order = node.attributes.get("perm")
    return np.transpose(data, None if order is None else order.as_ints())


def _reshape(node: ir.Node, data: Array, shape: Array | None) -> Array | None:
    if shape is None:
        return None
    sizes = [int(size) for size in shape]
    if not (zeros := node.attributes.get("allowzero")) or not zeros.as_int():
        sizes = [data.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return data.reshape(sizes)


def _flatten(node: ir.Node, data: Array, _: Array | None) -> Array:
    given = node.attributes.get("axis")
    axis = given.as_int() if given is not None else 1
    axis += data.ndim if axis < 0 else 0
    return data.reshape(int(np.prod(data.shape[:axis])), -1)


def _axes(node: ir.Node, operand: Array | None) -> tuple[int, ...] | None:
    if operand is not None:
        return tuple(int(axis) for axis in operand)
    given = node.attributes.get("axes")
    return None if given is None else tuple(given.as_ints())


def _squeeze(node: ir.Node, data: Array, operand: Array | None) -> Array:
    return np.squeeze(data, _axes(node, operand))


def _unsqueeze(node: ir.Node, data: Array, operand: Array | None) -> Array | None:
    axes = _axes(node, operand)
    return None if axes is None else np.expand_dims(data, axes)


_RULES: dict[str, Callable[[ir.Node, Array, Array | None], Array | None]] = {
    "Identity": lambda node, data, operand: data,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}

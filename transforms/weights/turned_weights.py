"""Write constant weights with exchanged axes: the stored matrix is transposed, not its result."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.inventory.weight_chains import WeightChain
from qgraph.numerics import Array
from qgraph.transforms.drafts.rebuilding import carry_over

_LINEAR = ("DequantizeLinear", "QuantizeLinear")
_ROWS = 2


def turned_weights(draft: Draft, chain: WeightChain) -> ir.Value | None:
    """Return the weights of a chain with the last two axes exchanged.

    Args:
        draft: gets the operators and constants.
        chain: the stored matrix, and the elementwise operators on it.

    Returns:
        None if a parameter has no form with exchanged axes.
    """
    matrix = constant_expression(chain.root)
    if matrix is None or matrix.ndim < _ROWS:
        return None
    rank, value = matrix.ndim, draft.constant(_swapped(matrix), "turned")
    for node in chain.nodes:
        arrays = [None if v is None else constant_expression(v) for v in node.inputs[1:]]
        if any(a is not None and a.ndim > rank for a in arrays):
            return None
        is_linear = node.op_type in _LINEAR
        operands: list[Operand | None] = [value]
        for old, array in zip(node.inputs[1:], arrays, strict=True):
            is_one = array is None or array.size == 1 or (is_linear and array.ndim < _ROWS)
            operands.append(old if is_one or array is None else _spread(draft, array))
        changes = None
        if is_linear:
            changes = {"axis": _other(node.attributes.get_int("axis", 1) % rank, rank)}
        value = draft.copy(node, operands, changes)
        if len(node.outputs[0].uses()) == 1:
            carry_over(node, draft.nodes[-1])
    return value


def _swapped(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))


def _spread(draft: Draft, array: Array) -> ir.Value:
    """Return parameters of an elementwise operator for exchanged axes."""
    return draft.constant(_swapped(array.reshape(1, -1) if array.ndim == 1 else array), "turned")


def _other(axis: int, rank: int) -> int:
    """Return where an axis is after the exchange."""
    return {rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis)

"""Constant operands with as few elements and dimensions as broadcasting needs.

    f(x, c)  with c of shape [1, ..., 1, n, ...]       -> c of shape [n, ...]
    f(x, c)  with c constant along an axis of the data -> c of size 1 along that axis

Exact to the bit, as long as the data has the dimensions, and the sizes, that ``c`` loses. So have
QuantizeLinear and DequantizeLinear one scale where all scales and zero points are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.matching.normal.elementwise import data_of, is_along_axis, is_on_elements
from qgraph.matching.normal.movements import is_constant_along
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import Sizes, sizes_of

Array = npt.NDArray[Any]


def trim_constants(graph: Rewriter, node: ir.Node) -> bool:
    """Shrink the constants of a node that works on single elements, in place."""
    if not is_on_elements(node) or node.domain not in ("", "com.microsoft"):
        return False
    data = data_of(graph, node)
    sizes = sizes_of(data[0]) if data else None
    if graph.known.has(node.outputs[0]) or sizes is None:
        return False
    constants = {
        place: array
        for place, value in enumerate(node.inputs)
        if (array := graph.array(value)) is not None and array.size and 0 < array.ndim <= len(sizes)
    }
    if is_along_axis(node):
        trimmed = _one_parameter(node, constants, sizes)
    else:
        trimmed = {place: _trimmed(array, sizes) for place, array in constants.items()}
    changed = {p: a for p, a in trimmed.items() if a.shape != constants[p].shape}
    for place, array in changed.items():
        name = str(getattr(node.inputs[place], "name", ""))
        node.replace_input_with(place, graph.constant(array, name))
    return bool(changed)


def _trimmed(array: Array, sizes: Sizes) -> Array:
    for axis, size in enumerate(array.shape):
        if size > 1 and size == sizes[len(sizes) - array.ndim + axis]:
            array = array.take([0], axis=axis) if is_constant_along(array, axis) else array
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return np.asarray(array)


def _one_parameter(node: ir.Node, constants: dict[int, Array], sizes: Sizes) -> dict[int, Array]:
    """Return the scale and the zero point as single numbers where they do not vary."""
    axis = node.attributes.get_int("axis", 1)
    if node.attributes.get_int("block_size", 0) or len(constants) < len(node.inputs) - 1:
        return {}
    if not -len(sizes) <= axis < len(sizes):
        return {}
    for array in constants.values():
        along = array.ndim == 1 and array.size in (1, sizes[axis])
        if not along or not is_constant_along(array, 0):
            return {}
    return {place: np.asarray(array[0]) for place, array in constants.items()}

"""Apply elementwise operators to moved operands.

An elementwise node ``f`` computes each element of its result from one element of each operand,
after broadcasting. So ``M(f(a, p)) = f(M(a), M(p))`` bit for bit, including NaN and signs of zeros,
for a data movement ``M`` and a parameter ``p`` that is moved as it broadcasts. The axis of a
QuantizeLinear or DequantizeLinear moves with its scale. A Gather from a constant with one axis is a
function of each index; its table is not moved.

Constants get as few dimensions as possible:

    f(x, c)  with c of shape [1, ..., 1, n, ...]       -> c of shape [n, ...]
    f(x, c)  with c constant along an axis of the data -> c of size 1 along that axis

Equal bit for bit, as long as the data has the dimensions and sizes that ``c`` loses. Likewise,
QuantizeLinear and DequantizeLinear get one scale if all scales and zero points are equal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.schema import OpKey
from qgraph.graph.sizes import is_single, stated_shape
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import is_defined
from qgraph.proof.normal.movements import is_constant_along
from qgraph.proof.normal.rewriter import Rewriter, Sizes

_OTHERS = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot"}
    | {"BitwiseOr", "BitwiseXor", "CastLike", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu"}
    | {"HardSigmoid", "HardSwish", "IsInf", "LeakyRelu", "Log", "Mean", "Mish", "Mod", "PRelu"}
    | {"Selu", "Shrink", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sum", "Swish", "Tan"}
    | {"Tanh", "ThresholdedRelu", "Xor"}
)
"""Elementwise standard operators without a definition over primitives."""

_OF_CODES = frozenset(
    {"Gelu", "QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QuickGelu"}
)
_ALONG_AXIS = frozenset({"DequantizeLinear", "QuantizeLinear"})


def is_on_elements(node: ir.Node) -> bool:
    """Return whether a node is elementwise and has one result."""
    if sum(bool(value.name) for value in node.outputs) != 1:
        return False
    if node.domain == "com.microsoft" and node.op_type in _OF_CODES:
        return True
    if node.domain == "" and (node.op_type in NUMPY or node.op_type in _OTHERS):
        return node.op_type not in ("Gather", "Identity")
    return is_defined(node)


def reads_table(graph: Rewriter, node: ir.Node) -> bool:
    """Return whether a node is a Gather of single numbers from a constant, one for each index."""
    if node.domain or node.op_type != "Gather" or graph.known.has(node.outputs[0]):
        return False
    table = graph.array(node.inputs[0])
    return table is not None and table.ndim == 1


def may_move(graph: Rewriter, node: ir.Node, result: ir.Value) -> bool:
    """Return whether elementwise ``node`` may compute its elements in another order for ``result``.

    It may not if that may change the sign of a zero that must be kept.
    """
    return not _leaves_zero_open(graph, node) or graph.gives_up_zero_sign(result)


def _leaves_zero_open(graph: Rewriter, node: ir.Node) -> bool:
    """Return whether ONNX does not define the sign of a zero result, as for Max of -0 and +0.

    The sign may depend on the index of an element, if vector code and the scalar loop over the
    remaining elements differ. If a bound is never zero, the sign is defined.
    """
    if node.domain or node.op_type not in ("Clip", "Max", "Min", "Relu"):
        return False
    dtype = node.outputs[0].dtype
    if dtype is not None and not dtype.is_floating_point():
        return False
    if node.op_type == "Relu":
        return True
    others = [value for value in node.inputs if value is not None]
    if node.op_type == "Clip":
        others = [value for value in node.inputs[1:] if value is not None]
        if "min" in node.attributes or "max" in node.attributes:  # opset 10 and earlier
            bounds = node.attributes
            return any(bounds.get_float(name, 1.0) == 0 for name in ("min", "max"))
        return any(_may_be_zero(graph, value) for value in others)
    return sum(_may_be_zero(graph, value) for value in others) > 1


def _may_be_zero(graph: Rewriter, value: ir.Value) -> bool:
    array = graph.array(value)
    return array is None or bool((array == 0).any())


def data_of(graph: Rewriter, node: ir.Node) -> list[ir.Value]:
    """Return the operands that are neither constant nor scalars; a scalar if it is the only one."""
    operands = [value for value in node.inputs if value is not None and not graph.known.has(value)]
    several = [value for value in operands if not is_single(stated_shape(value))]
    return several or operands[:1]


def parameters_of(
    graph: Rewriter, node: ir.Node, rank: int | None, *, free: int = -1
) -> dict[int, Array]:
    """Return the constants of a node by index, with the rank of the data.

    Single numbers of at most ``free`` dimensions, or along the axis of the node, are left out.
    Raises Unknown if a constant is large or has more dimensions.
    """
    parameters: dict[int, Array] = {}
    for index, value in enumerate(node.inputs):
        if value is None or not graph.known.has(value) or stays(node, index):
            continue
        array = given(graph.array(value))
        is_free = is_along_axis(node) or array.ndim <= free
        if free < 0 or array.size != 1 or not is_free:
            parameters[index] = _aligned(node, array, rank)
    return parameters


def moved(
    graph: Rewriter,
    node: ir.Node,
    before: ir.Node,
    move_value: Callable[[ir.Value], ir.Value],
    move_array: Callable[[Array], Array | None],
    sizes: Sizes | None,
    result: Sizes | None,
) -> ir.Value:
    """Insert ``node`` on moved operands before another node, and return its result.

    Scalars are not moved. ``sizes`` is the shape of the result of ``node``, None if its rank is
    unknown; ``result`` is the shape of the moved result. ``move_array`` returns a parameter with
    the rank of the data after the movement; None if there is none.
    """
    data, is_along = data_of(graph, node), is_along_axis(node)
    require(not is_along or data == [node.inputs[0]])
    operands = [(i, v) for i, v in enumerate(node.inputs) if v is not None and not stays(node, i)]
    scalars = [v for _, v in operands if v not in data and not graph.known.has(v)]
    rank = len(result or ())
    require(all(len(stated_shape(value) or ()) <= rank for value in scalars))
    aligned = parameters_of(graph, node, None if sizes is None else len(sizes), free=rank)
    parameters = {index: given(move_array(array)) for index, array in aligned.items()}
    require(all(array.ndim == rank and result is not None for array in parameters.values()))
    attributes = dict(node.attributes)
    if parameters and is_along:
        shape = np.broadcast_shapes(*(array.shape for array in parameters.values()))
        axes = [axis for axis, size in enumerate(shape) if size != 1]
        require(len(axes) < 2 and 0 not in shape)
        if axes:
            attributes["axis"] = ir.AttrInt64("axis", axes[0])
        # one scale for all that is left, or one for each element of the axis
        form = (-1,) if axes else ()
        parameters = {i: np.broadcast_to(a, shape).reshape(form) for i, a in parameters.items()}
    inputs = list(node.inputs)
    for index, array in parameters.items():
        name = "moved" if is_along else str(getattr(inputs[index], "name", ""))
        inputs[index] = graph.constant(array, name)
    for index, value in operands:
        if value in data:
            inputs[index] = move_value(value)
    return graph.copy(node, before, inputs, result, attributes.values())


def _aligned(node: ir.Node, array: Array, rank: int | None) -> Array:
    """Return a constant operand with the rank of the data, if it has no more dimensions."""
    if array.size == 1 and (is_along_axis(node) or array.ndim == 0):
        return array.reshape((1,) * (rank or 0))
    rank = given(rank)
    if is_along_axis(node):
        axis = node.attributes.get_int("axis", 1)
        require(array.ndim == 1 and node.attributes.get_int("block_size", 0) <= 0)
        require(-rank <= axis < rank)
        return array.reshape((1,) * (axis % rank) + array.shape + (1,) * (rank - axis % rank - 1))
    require(array.ndim <= rank)
    is_numpy = node.attributes.get_string("auto_broadcast", "numpy") == "numpy"
    if node.domain or not is_numpy:
        require(array.size <= 1)
        return array.reshape((1,) * rank)
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def keeps_sizes(graph: Rewriter, node: ir.Node, value: ir.Value) -> bool:
    """Return whether the result of a node is known to have the shape of an operand."""
    own, sizes = stated_shape(value), stated_shape(node.outputs[0])
    if own is not None and sizes is not None and (None not in own + sizes or len(own) < len(sizes)):
        return own == sizes
    others = [v for v in node.inputs if v is not None and not graph.known.has(v)]
    ranks = [len(stated_shape(value) or ()) for value in others]
    if data_of(graph, node) != [value] or max(ranks, default=0) > len(own or ()):
        return False
    try:
        parameters = parameters_of(graph, node, None if own is None else len(own))
    except Unknown:
        return False
    return all(
        size == 1 or (own is not None and own[axis] == size)
        for array in parameters.values()
        for axis, size in enumerate(array.shape)
    )


def is_along_axis(node: ir.Node) -> bool:
    """Return whether a node has parameters along the axis of its attribute ``axis``."""
    return node.op_type in _ALONG_AXIS and node.domain in ("", "com.microsoft")


def stays(node: ir.Node, index: int) -> bool:
    """Return whether each element uses the whole operand: a type or a table."""
    return (OpKey.of(node), index) in ((OpKey("", "CastLike"), 1), (OpKey("", "Gather"), 0))


def trim_constants(graph: Rewriter, node: ir.Node) -> None:
    """Reduce the dimensions of the constants of an elementwise node, in place."""
    require(is_on_elements(node) and node.domain in ("", "com.microsoft"))
    data = data_of(graph, node)
    sizes = given(stated_shape(data[0]) if data else None)
    constants = {
        index: array
        for index, value in enumerate(node.inputs)
        if (array := graph.array(value)) is not None and array.size and 0 < array.ndim <= len(sizes)
    }
    if is_along_axis(node):
        trimmed = _one_parameter(node, constants, sizes)
    else:
        trimmed = {index: _trimmed(array, sizes) for index, array in constants.items()}
    changed = {p: a for p, a in trimmed.items() if a.shape != constants[p].shape}
    require(changed)
    for index, array in changed.items():
        name = str(getattr(node.inputs[index], "name", ""))
        node.replace_input_with(index, graph.constant(array, name))


def _trimmed(array: Array, sizes: Sizes) -> Array:
    for axis, size in enumerate(array.shape):
        if size > 1 and size == sizes[len(sizes) - array.ndim + axis]:
            array = array.take([0], axis=axis) if is_constant_along(array, axis) else array
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return np.asarray(array)


def _one_parameter(node: ir.Node, constants: dict[int, Array], sizes: Sizes) -> dict[int, Array]:
    """Return the scale and the zero point as scalars if they do not vary."""
    axis = node.attributes.get_int("axis", 1)
    require(not node.attributes.get_int("block_size", 0) and len(constants) >= len(node.inputs) - 1)
    require(-len(sizes) <= axis < len(sizes))
    for array in constants.values():
        require(array.ndim == 1 and array.size in (1, sizes[axis]) and is_constant_along(array, 0))
    return {index: np.asarray(array[0]) for index, array in constants.items()}

"""Constant values of a graph.

Constants are also found through operators that only reshape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError, where
from qgraph.graph.scopes import input_of
from qgraph.graph.streaming import Stream, stream_of
from qgraph.graph.tensors import elements
from qgraph.numerics import Array

_SPELLED_OUT: dict[str, type[np.generic]] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constant(value: ir.Value | None) -> Array | None:
    """Return the constant of ``value``, or None if it is absent, computed, or can be fed.

    Constants are initializers that are not graph inputs, and outputs of Constant nodes. Arrays of
    narrow types have ml_dtypes types, with one element per byte. The array is read-only, because
    other values may share it.

    Raises:
        ModelError: the tensor cannot be read.
    """
    tensor = constant_tensor(value)
    return None if value is None or tensor is None else _array(value, tensor)


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant, as :func:`constant` does, without reading it."""
    if value is None:
        return None
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain:
        return None
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue  # filled in by the caller of the function
        if attribute.name == "value" and attribute.type is ir.AttributeType.TENSOR:
            tensor: ir.TensorProtocol = attribute.value  # as_tensor() checks a slow protocol
            return tensor
        if attribute.name in _SPELLED_OUT:
            try:
                return ir.Tensor(np.asarray(attribute.value, dtype=_SPELLED_OUT[attribute.name]))
            except ValueError as error:
                raise ModelError(
                    f"{where(node)}: its attribute {attribute.name} cannot be read ({error}), "
                    "expected what its name says. Write it again."
                ) from error
    return None


def constant_elements(value: ir.Value | None) -> Stream | None:
    """Return the constant of ``value``, as :func:`constant` does, without reading data files.

    Raises:
        ModelError: the tensor cannot be read.
    """
    tensor = constant_tensor(value)
    if value is None or tensor is None:
        return None
    if type(tensor) not in _KEPT and isinstance(tensor, ir.ExternalTensor | ir.LazyTensor):
        return stream_of(tensor)
    array = _array(value, tensor)
    return Stream(tensor.dtype.name, array.shape, array)


def overridable(graph: ir.Graph) -> list[ir.Value]:
    """Return the initializers of ``graph`` that are listed as inputs too."""
    return [value for value in graph.inputs if value.is_initializer()]


def freeze_inputs(model: ir.Model) -> int:
    """Make initializers among the graph inputs constants; return their number."""
    frozen = overridable(model.graph)
    for value in frozen:
        model.graph.inputs.remove(value)
    return len(frozen)


_SMALL = 4096
_READ: WeakKeyDictionary[ir.TensorProtocol, Array] = WeakKeyDictionary()
"""Cache of arrays of small tensors: scales and zero points are read many times."""

_KEPT = frozenset({ir.Tensor, ir.serde.TensorProtoTensor})
"""Types of tensors whose arrays are kept. Comparing types is faster than isinstance here: the
classes derive from a protocol.
"""


def _array(value: ir.Value, tensor: ir.TensorProtocol) -> Array:
    if type(tensor) not in _KEPT:
        return _read(value, tensor)
    array = _READ.get(tensor)
    if array is None:
        array = _read(value, tensor)
        if array.size <= _SMALL:
            _READ[tensor] = array
    return array


def _read(value: ir.Value, tensor: ir.TensorProtocol) -> Array:
    try:
        if type(tensor) not in _KEPT and isinstance(tensor, ir.ExternalTensor):
            array = elements(tensor).view()
        else:
            array = tensor.numpy().view()
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"Constant {value.name!r}: its data cannot be read ({error}), expected "
            f"{tensor.dtype.name}{list(tensor.shape)}. Export the model again."
        ) from error
    array.flags.writeable = False
    return array


Operands = Sequence[Array | None]
Rule = Callable[[ir.Node, Stream, Operands], Stream | None]


def constant_expression(value: ir.Value | None) -> Array | None:
    """Return the array of a constant value, or None.

    Follows Identity, Transpose, Reshape, Flatten, Squeeze, Unsqueeze, Slice, and Concat of few
    elements back to constants.
    """
    array = constant(value)
    if array is not None or value is None:
        return array
    followed = _follow(value)
    return None if followed is None else followed.array()


def is_constant(value: ir.Value | None) -> bool:
    """Return whether :func:`constant_expression` returns an array; a stored one is not read."""
    return constant_tensor(value) is not None or constant_stream(value) is not None


def constant_stream(value: ir.Value | None) -> Stream | None:
    """Return the elements of a constant value as a stream, as :func:`constant_expression` does.

    Elements in a file are not read.
    """
    elements = constant_elements(value)
    return elements if elements is not None or value is None else _follow(value)


def array_of(value: ir.Value | None) -> Array | None:
    """Return a constant's array, also of a drafted constant that belongs to no graph yet."""
    drafted = value is not None and value.graph is None and value.producer() is None
    if drafted and value is not None:
        return None if value.const_value is None else value.const_value.numpy()
    return constant_expression(value)


def clip_limits(node: ir.Node) -> tuple[float, float] | None:
    """Return the limits of a Clip or Relu; None if one is not a known single number.

    A limit that is absent is infinite.
    """
    if node.op_type == "Relu":
        return 0.0, math.inf
    limits = []
    for index, (name, missing) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
        value = input_of(node, index)
        limit = array_of(value)
        if value is None:
            limit = np.asarray(node.attributes.get_float(name, missing))  # opset 10 and earlier
        if limit is None or limit.size != 1 or (limit != limit).any():
            return None
        limits.append(float(limit.reshape(())))
    return limits[0], limits[1]


def _follow(value: ir.Value) -> Stream | None:
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in _RULES:
        return None
    data = constant_stream(node.inputs[0])
    if data is None:
        return None
    operands = [constant_expression(operand) for operand in node.inputs[1:]]
    if any(a is None and b is not None for a, b in zip(operands, node.inputs[1:], strict=True)):
        return None
    return _RULES[node.op_type](node, data, [*operands, None])


def _transpose(node: ir.Node, data: Stream, _: Operands) -> Stream:
    order = node.attributes.get("perm")
    return data.transposed(range(len(data.shape))[::-1] if order is None else order.as_ints())


def _reshape(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    return None if operands[0] is None else data.reshaped(reshaped(node, data.shape, operands[0]))


def reshaped(node: ir.Node, shape: Sequence[int], wanted: Array) -> list[int]:
    """Return the shape of data of ``shape`` after a Reshape to the ``wanted`` sizes, if it fits."""
    sizes = [int(size) for size in wanted]
    if not (zeros := node.attributes.get("allowzero")) or not zeros.as_int():
        sizes = [shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    if -1 in sizes:
        sizes[sizes.index(-1)] = math.prod(shape) // max(-math.prod(sizes), 1)
    return sizes


def _flatten(node: ir.Node, data: Stream, _: Operands) -> Stream | None:
    attribute = node.attributes.get("axis")
    axis = attribute.as_int() if attribute is not None else 1
    axis += len(data.shape) if axis < 0 else 0
    return data.reshaped((math.prod(data.shape[:axis]), math.prod(data.shape[axis:])))


def _axes(node: ir.Node, operands: Operands) -> list[int] | None:
    if operands[0] is not None:
        return [int(axis) for axis in operands[0]]
    attribute = node.attributes.get("axes")
    return None if attribute is None else list(attribute.as_ints())


def _squeeze(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    axes = _axes(node, operands)
    rank = len(data.shape)
    gone = {a % rank for a in axes} if axes is not None else set(range(rank))
    return data.reshaped(
        [size for axis, size in enumerate(data.shape) if axis not in gone or size != 1]
    )


def _unsqueeze(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    axes = _axes(node, operands)
    if axes is None:
        return None
    rank = len(data.shape) + len(axes)
    new = {axis % rank for axis in axes}
    sizes = iter(data.shape)
    return data.reshaped([1 if axis in new else next(sizes) for axis in range(rank)])


def _slice(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    attributes = (node.attributes.get(name) for name in ("starts", "ends", "axes"))
    arrays = [None if a is None else np.asarray(a.as_ints()) for a in attributes]
    starts, ends, axes, steps = (
        arrays[i] if i < len(arrays) and arrays[i] is not None else operand
        for i, operand in enumerate([*operands, None, None, None][:4])
    )
    if starts is None or ends is None:
        return None
    cuts = [slice(None)] * len(data.shape)
    cut_axes = range(len(starts)) if axes is None else axes.tolist()
    for i, axis in enumerate(cut_axes):
        step = 1 if steps is None else int(steps[i])
        cuts[axis] = slice(int(starts[i]), int(ends[i]), step)
    return data.sliced(cuts)


def _concat(node: ir.Node, data: Stream, operands: Operands) -> Stream | None:
    """Join small constants, such as the sizes of a Reshape."""
    arrays = [data.array(), *(array for array in operands if array is not None)]
    if sum(array.size for array in arrays) > _FEW:
        return None
    joined = np.concatenate(arrays, node.attributes.get_int("axis", 0))
    return Stream(data.kind, joined.shape, joined)


_FEW = 64
"""Maximum number of elements that are joined."""

_RULES: dict[str, Rule] = {
    "Concat": _concat,
    "Identity": lambda node, data, operands: data,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}

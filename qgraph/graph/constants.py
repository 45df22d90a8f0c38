"""Which values are constant, and what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.tensors.filed import elements
from qgraph.tensors.streaming import Stream, stream_of

_SPELLED_OUT: dict[str, type[np.generic]] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constant(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return what ``value`` always holds, or None if it is absent, computed, or can be fed.

    Constant are initializers that are not graph inputs too, and outputs of Constant nodes that
    spell a tensor or numbers out. Narrow types come as ml_dtypes arrays, one element each. The
    array is read-only: it may be shared with other values.

    Raises:
        ModelError: the tensor cannot be read.
    """
    tensor = constant_tensor(value)
    return None if value is None or tensor is None else _array(value, tensor)


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that ``value`` always is, as :func:`constant` does, without reading it."""
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
        if attribute.name == "value":
            return attribute.as_tensor()
        if attribute.name in _SPELLED_OUT:
            return ir.Tensor(np.asarray(attribute.value, dtype=_SPELLED_OUT[attribute.name]))
    return None


def constant_elements(value: ir.Value | None) -> Stream | None:
    """Return what ``value`` always holds, as :func:`constant` does; what is in a file stays there.

    Raises:
        ModelError: the tensor cannot be read.
    """
    tensor = constant_tensor(value)
    if value is None or tensor is None:
        return None
    if isinstance(tensor, ir.ExternalTensor | ir.LazyTensor):
        return stream_of(tensor)
    shape = tuple(int(size) for size in tensor.shape.numpy())
    return Stream(tensor.dtype.name, shape, _array(value, tensor))


def overridable(graph: ir.Graph) -> list[ir.Value]:
    """Return the initializers of ``graph`` that are listed as inputs too."""
    return [value for value in graph.inputs if value.is_initializer()]


def _array(value: ir.Value, tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    try:
        if isinstance(tensor, ir.ExternalTensor):
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

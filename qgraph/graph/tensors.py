"""Where a model keeps its tensors, how many bytes they take, and whether those bytes are there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import onnx
import onnx_ir as ir

from qgraph.errors import where
from qgraph.graph.scopes import bodies

_COMPLEX = {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
_TENSORS = {ir.AttributeType.TENSOR, ir.AttributeType.TENSORS}
_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


@dataclass(frozen=True)
class Slot:
    """A place of a model that holds a tensor.

    Attributes:
        tensor: what it holds.
        owner: the initializer, or whatever carries the attribute.
        attribute: name of the attribute; empty for an initializer.
        position: place in the list, when the attribute is a list of tensors.
    """

    tensor: ir.TensorProtocol
    owner: ir.Value | ir.Node | ir.Function
    attribute: str = ""
    position: int | None = None

    @property
    def is_weight(self) -> bool:
        """Whether this is an initializer or the tensor of a Constant node."""
        owner = self.owner
        if isinstance(owner, ir.Node):
            return not owner.domain and owner.op_type == "Constant"
        return isinstance(owner, ir.Value)

    def fill(self, tensor: ir.TensorProtocol) -> None:
        """Put another tensor in this place."""
        if isinstance(self.owner, ir.Value):
            self.owner.const_value = tensor
            return
        old = self.owner.attributes[self.attribute]
        if self.position is None:
            new = ir.AttrTensor(old.name, tensor, doc_string=old.doc_string)
        else:
            tensors = list(old.as_tensors())
            tensors[self.position] = tensor
            new = ir.AttrTensors(old.name, tensors, doc_string=old.doc_string)
        self.owner.attributes[self.attribute] = new

    def __str__(self) -> str:
        if isinstance(self.owner, ir.Value):
            return f"initializer {self.owner.name!r}"
        if isinstance(self.owner, ir.Node):
            return f"{where(self.owner)}, attribute {self.attribute!r}"
        return f"function {self.owner.name!r}, attribute {self.attribute!r}"


def slots(model: ir.Model) -> Iterator[Slot]:
    """Yield every place of ``model`` that holds a tensor, in the order of the file."""
    for body in bodies(model):
        if isinstance(body, ir.Function):
            yield from _attribute_slots(body)
        else:
            for value in body.initializers.values():
                if value.const_value is not None:
                    yield Slot(value.const_value, value)
        for node in body:
            yield from _attribute_slots(node)


def _attribute_slots(owner: ir.Node | ir.Function) -> Iterator[Slot]:
    for name, attribute in owner.attributes.data.items():
        if attribute.type not in _TENSORS or attribute.is_ref() or attribute.value is None:
            continue
        # as_tensor() looks at every property of the tensor, which fails for a broken one.
        if attribute.type is ir.AttributeType.TENSOR:
            yield Slot(attribute.value, owner, name)
        elif attribute.type is ir.AttributeType.TENSORS:
            for position, tensor in enumerate(attribute.value):
                yield Slot(tensor, owner, name, position)


def stored_bytes(tensor: ir.TensorProtocol) -> int:
    """Return how many bytes a file needs for the elements; narrow types are packed."""
    if tensor.dtype is ir.DataType.STRING:
        return tensor.nbytes
    return _packed_bytes(tensor.dtype, math.prod(tensor.shape.numpy()))


def _packed_bytes(dtype: ir.DataType, elements: int) -> int:
    return (elements * dtype.bitwidth + 7) // 8


def inline_fault(tensor: ir.TensorProtocol) -> str | None:
    """Say what is wrong with a tensor that a model file holds itself; None if nothing is.

    Shape and element type say how much data there must be. A reader that trusts them makes
    zeros, or terabytes, of a tensor whose data are missing.
    """
    proto = cast("object", getattr(tensor, "raw", None))
    if not isinstance(proto, onnx.TensorProto):
        return None
    fault = shape_fault(tensor)
    if fault:
        return fault
    elements = math.prod(proto.dims)
    if tensor.dtype.bitwidth < 8:
        packed = _packed_bytes(tensor.dtype, elements)
        counts = {elements if tensor.dtype.bitwidth == 6 else packed}
    else:
        counts = {2 * elements if tensor.dtype in _COMPLEX else elements}
    if proto.HasField("raw_data"):
        there, needed = len(proto.raw_data), {_packed_bytes(tensor.dtype, elements)}
    else:
        there, needed = sum(len(getattr(proto, field)) for field in _TYPED_FIELDS), counts
    if there in needed:
        return None
    kind = "bytes" if proto.HasField("raw_data") else "numbers"
    return (
        f"{there} {kind} are there, but {tensor.dtype.name}{list(proto.dims)} takes {needed.pop()}"
    )


def shape_fault(tensor: ir.TensorProtocol) -> str | None:
    """Say what is wrong with the element type or the shape; None if nothing is."""
    if tensor.dtype is ir.DataType.UNDEFINED:
        return "it has no element type"
    if any(size < 0 for size in tensor.shape.numpy()):
        return f"its shape {list(tensor.shape.numpy())} has a negative size"
    return None

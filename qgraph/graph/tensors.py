"""The tensors of a model: their locations, their bytes, and tensors and arrays in files.

Files are read, not mapped: if a mapped file is truncated, an access kills the process with SIGBUS,
whereas a short read is an error with a message.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import where
from qgraph.graph.scopes import Body, graphs_of, owners
from qgraph.graph.streaming import FileRange, stream_of
from qgraph.numerics import Array
from qgraph.records import dataclass

_COMPLEX = {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
_TENSORS = {ir.AttributeType.TENSOR, ir.AttributeType.TENSORS}
_OF_INTEREST = {*_TENSORS, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}
_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
}
"""Fields of the elements of a type, if these are not in int32_data."""


@dataclass(frozen=True)
class Slot:
    """A location of a tensor in a model.

    Attributes:
        owner: the initializer, or the node with the attribute.
        attribute: name of the attribute; empty for an initializer.
        position: index in the list, if the attribute is a list of tensors.
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
        """Replace the tensor."""
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
    """Yield the locations of all tensors of ``model``, in the order of the file."""
    for owner in owners(model):
        yield from _slots(owner)


def _slots(body: Body) -> Iterator[Slot]:
    if isinstance(body, ir.Function):
        yield from _attribute_slots(body)
    else:
        stored = ((value.const_value, value) for value in body.initializers.values())
        yield from (Slot(tensor, value) for tensor, value in stored if tensor is not None)
    graphs: list[ir.Graph] = []
    for node in body:
        # Graphs have many nodes and are visited often; most nodes have no such attribute.
        for attribute in node.attributes.data.values():
            if attribute.type in _OF_INTEREST:
                yield from _attribute_slots(node)
                graphs += graphs_of(node)
                break
    for graph in graphs:
        yield from _slots(graph)


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
    """Return the number of bytes of the elements in a file; narrow types are packed."""
    dtype = tensor.dtype
    if dtype is ir.DataType.STRING:
        return tensor.nbytes
    proto: Any = getattr(tensor, "raw", None)  # a message, whose sizes are read without a shape
    sizes = proto.dims if isinstance(proto, onnx.TensorProto) else tensor.shape.numpy()
    return _packed_bytes(dtype, math.prod(sizes))


def _packed_bytes(dtype: ir.DataType, elements: int) -> int:
    return (elements * dtype.bitwidth + 7) // 8


def inline_fault(tensor: ir.TensorProtocol) -> str | None:
    """Return what is wrong with a tensor stored in the model file; None if it is valid.

    Shape and element type determine the size of the data. If the data are missing, a reader that
    trusts them returns zeros, or allocates terabytes.
    """
    proto = cast("object", getattr(tensor, "raw", None))
    if not isinstance(proto, onnx.TensorProto):
        return None
    fault = shape_fault(tensor, proto.dims)
    if fault:
        return fault
    dtype, elements = tensor.dtype, math.prod(proto.dims)
    needed = _packed_bytes(dtype, elements)
    if proto.HasField("raw_data"):
        there, what = len(proto.raw_data), "bytes"
    else:
        own = _FIELDS.get(dtype, "int32_data")
        there, what = len(getattr(proto, own)), "numbers"
        if dtype.bitwidth == 6 or dtype.bitwidth >= 8:
            needed = 2 * elements if dtype in _COMPLEX else elements
        if other := [field for field in _TYPED_FIELDS if field != own and getattr(proto, field)]:
            return f"its numbers are in {other[0]}, but those of {dtype.name} are in {own}"
    if there == needed:
        return None
    return f"{there} {what} are there, but {dtype.name}{list(proto.dims)} takes {needed}"


def shape_fault(tensor: ir.TensorProtocol, dims: Sequence[int] | None = None) -> str | None:
    """Return what is wrong with the element type or the shape, ``dims``; None if both are valid."""
    try:
        dtype = tensor.dtype
    except ValueError as error:
        return f"its element type is unknown ({error})"
    if dtype is ir.DataType.UNDEFINED:
        return "it has no element type"
    sizes = tensor.shape.numpy() if dims is None else dims
    return f"its shape {list(sizes)} has a negative size" if sizes and min(sizes) < 0 else None


class FileRows:
    """An array in a file, in C order from ``offset`` on; rows are read, not mapped, on access."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        offset: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.ndim = len(shape)
        self._row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        size = self._row_bytes * (shape[0] if shape else 1)
        self._place = FileRange(os.path.abspath(path), offset, size)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def rows(self, first: int, last: int) -> Array:
        """Return the rows from ``first`` to before ``last``, as far as they exist.

        Raises:
            ModelError: the file has become shorter, or cannot be read.
        """
        count = max(min(last, len(self)) - first, 0)
        out = np.empty((count, *self.shape[1:]), self.dtype)
        self._place.read_into(first * self._row_bytes, out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        out = np.empty(self.shape, self.dtype)
        self._place.read_into(0, out)
        return out if dtype is None else out.astype(dtype)


def read_rows(path: Path) -> FileRows | Array:
    """Return the array of a file (.npy); an array in Fortran order is read as a whole.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no such array, or is too short.
    """
    # The map is only made, which compares the header with the size of the file; nothing touches it.
    mapped = np.load(path, "r", allow_pickle=False)
    if isinstance(mapped, np.memmap) and mapped.flags.c_contiguous and mapped.size:
        return FileRows(path, int(mapped.offset), mapped.dtype, mapped.shape)
    del mapped
    with path.open("rb") as file:
        return np.asarray(np.load(file, allow_pickle=False))


_ARRAY = "qgraph.array"


class FileTensor(ir.ExternalTensor):
    """A tensor in a data file; each use reads the file, unless an earlier array still exists."""

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> FileTensor:
        """Return a tensor that reads the data of ``tensor`` instead of mapping it."""
        return cls(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=tensor.base_dir,
        )

    def numpy(self) -> Array:
        """Return the elements, read-only; the array is shared while it is referenced.

        Raises:
            ModelError: the file is not there, cannot be read, or has become shorter.
        """
        return elements(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array.astype(dtype) if dtype is not None else array.copy() if copy else array

    def tobytes(self) -> bytes:
        """Return the bytes as the file has them; errors as for :meth:`numpy`."""
        return self._place().read().tobytes()

    def tofile(self, file: Any) -> None:
        """Write the bytes as the file has them to another file; errors as for :meth:`numpy`."""
        for _, piece in self._place().pieces():
            file.write(piece.data)

    def _place(self) -> FileRange:
        stored = stream_of(self).stored
        if not isinstance(stored, FileRange):
            raise TypeError(f"{self.name} is in no file")
        return stored


def elements(tensor: ir.ExternalTensor) -> Array:
    """Return the elements of a tensor in a data file, read-only, and never mapped.

    They are read once while the array is referenced.

    Raises:
        ModelError: the file is not there, cannot be read, or has become shorter.
    """
    loan: _Loan | None = tensor.meta.get(_ARRAY)
    flat = None if loan is None else loan.array()
    if flat is None:
        stream = stream_of(tensor)
        flat = stream.read() if tensor.size else np.empty(0, stream.dtype)
        flat.flags.writeable = False
        # Views refer to the array that has the memory, not to one another.
        tensor.meta[_ARRAY] = _Loan(flat)
    return flat.reshape(tensor.shape.numpy())


class _Loan:
    """A weak reference to an array; a pickled copy has none."""

    def __init__(self, array: Array | None = None) -> None:
        self._array = None if array is None else weakref.ref(array)

    def array(self) -> Array | None:
        return None if self._array is None else self._array()

    def __reduce__(self) -> tuple[type[_Loan], tuple[()]]:
        return _Loan, ()

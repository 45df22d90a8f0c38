"""Tensors that lie in data files, and are read when they are used.

They are read, not mapped: a process that touches a mapped page that the file no longer has is
killed by SIGBUS, while a read that comes up short is an error with a message.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.tensors.streaming import FileRange, stream_of

Array = npt.NDArray[Any]

_ARRAY = "qgraph.array"
_PIECE_BYTES = 1 << 20


class FileTensor(ir.ExternalTensor):
    """A tensor in a data file; every use reads the file, unless an earlier array still lives."""

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> FileTensor:
        """Return the tensor that reads what ``tensor`` would map."""
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
        """Return the elements, read-only; the array is shared as long as somebody has it.

        Raises:
            ModelError: the file is not there, cannot be read, or has become shorter.
        """
        return elements(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array.astype(dtype) if dtype is not None else array.copy() if copy else array

    def tobytes(self) -> bytes:
        """Return the bytes as the file has them; errors as for :meth:`numpy`."""
        place = self._place()
        data = np.empty(place.length, np.uint8)
        if data.size:
            place.read_into(0, data)
        return data.tobytes()

    def tofile(self, file: Any) -> None:
        """Write the bytes as the file has them to another file; errors as for :meth:`numpy`."""
        place = self._place()
        buffer = np.empty(min(_PIECE_BYTES, place.length), np.uint8)
        for at in range(0, place.length, _PIECE_BYTES):
            piece = buffer[: place.length - at]
            place.read_into(at, piece)
            file.write(piece.data)

    def _place(self) -> FileRange:
        stored = stream_of(self).stored
        if not isinstance(stored, FileRange):
            raise TypeError(f"{self.name} is in no file")
        return stored


def elements(tensor: ir.ExternalTensor) -> Array:
    """Return the elements of a tensor in a data file, read-only, and never mapped.

    They are read once as long as somebody has the array.

    Raises:
        ModelError: the file is not there, cannot be read, or has become shorter.
    """
    known: _Loan | None = tensor.meta.get(_ARRAY)
    flat = None if known is None else known.array()
    if flat is None:
        stream = stream_of(tensor)
        flat = stream.read() if tensor.size else np.empty(0, stream.dtype)
        flat.flags.writeable = False
        # Views refer to the array that has the memory, not to one another.
        tensor.meta[_ARRAY] = _Loan(flat)
    return flat.reshape(tensor.shape.numpy())


class _Loan:
    """An array as long as somebody has it; a pickled copy has none."""

    def __init__(self, array: Array | None = None) -> None:
        self._array = None if array is None else weakref.ref(array)

    def array(self) -> Array | None:
        return None if self._array is None else self._array()

    def __reduce__(self) -> tuple[type[_Loan], tuple[()]]:
        return _Loan, ()

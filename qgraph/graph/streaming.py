"""Read tensors piece by piece, so that data files need not fit in memory.

Pieces are read from their offset in the file (pread) into memory that is reused. A memory map would
count as resident memory, and if the file is truncated, an access beyond its end kills the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.numerics import Array
from qgraph.numerics.formats import numpy_dtype, unpack
from qgraph.records import dataclass, replace

PIECE = 1 << 18
"""Default number of elements at a time: 1 MiB of float32 fits in the second-level cache."""

_COPY_BYTES = 1 << 20

_BITS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4}
_BITS |= {"FLOAT6E2M3": 6, "FLOAT6E3M2": 6}


class Sink(Protocol):
    """Takes the bytes of one tensor, in any order."""

    def write(self, at: int, data: Array) -> None:
        """Put the bytes of the contiguous array ``data`` at place ``at``."""


@dataclass(frozen=True)
class FileRange:
    """Bytes of a file, given by its absolute path."""

    path: str
    offset: int
    length: int

    def read_into(self, at: int, out: Array) -> None:
        """Fill the contiguous array ``out`` with the bytes from ``at`` on.

        Raises:
            ModelError: the file ends before, or cannot be read.
        """
        with _opened(self.path) as file:
            _read_at(file, self.path, self.offset + at, out)

    def copy(self, at: int, count: int, target: Sink) -> None:
        """Copy ``count`` bytes from ``at`` on to the same place of ``target``, piece by piece.

        Raises:
            ModelError: this file ends before, or cannot be read.
            OSError: the target cannot be written, or there is no room.
        """
        for start, piece in self.pieces(at, count):
            target.write(start, piece)

    def pieces(self, at: int = 0, count: int | None = None) -> Iterator[tuple[int, Array]]:
        """Yield places and bytes, one piece after the other; the next one overwrites the last.

        ``count`` bytes from ``at`` on, by default all.

        Raises:
            ModelError: the file ends before, or cannot be read.
        """
        end = self.length if count is None else at + count
        buffer = np.empty(min(_COPY_BYTES, end - at), np.uint8)
        for start in range(at, end, _COPY_BYTES):
            piece = buffer[: end - start]
            self.read_into(start, piece)
            yield start, piece

    def read(self) -> Array:
        """Return all bytes; errors as for :meth:`read_into`."""
        data = np.empty(self.length, np.uint8)
        if self.length:
            self.read_into(0, data)
        return data

    def write(self, at: int, data: Array) -> None:
        """Put the bytes of a contiguous array at ``at``; the file must be there.

        Raises:
            OSError: the file cannot be written, or there is no room.
        """
        with _opened(self.path, os.O_WRONLY) as descriptor:
            rest = _bytes(data)
            offset = self.offset + at
            while rest:
                written = os.pwrite(descriptor, rest, offset)
                rest, offset = rest[written:], offset + written


@dataclass(frozen=True, eq=False)
class Stream:
    """The elements of a constant, in C order, read on access.

    A stream has no open file, so it can be pickled and read by many threads or processes at once.
    Narrow types come with one element per byte.

    Attributes:
        kind: name of the ONNX type, such as ``FLOAT``.
        shape: of the constant.
        stored: location of the elements, or the elements themselves (then strides do not matter),
            or a tensor that is computed on access.
        strides: elements from one index to the next, for each axis.
        start: place of the first element.
    """

    kind: str
    shape: tuple[int, ...]
    stored: FileRange | Array | ir.LazyTensor
    strides: tuple[int, ...] = ()
    start: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy or ml_dtypes type of the elements."""
        return numpy_dtype(self.kind)

    @property
    def is_held(self) -> bool:
        """Whether the elements are in memory."""
        return not isinstance(self.stored, FileRange | ir.LazyTensor)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as a file stores them."""
        return -(-self.size * width_of(self.kind) // 8)

    @property
    def key(self) -> tuple[object, ...]:
        """Key that is equal for streams of the same elements of the same file or array."""
        if isinstance(self.stored, FileRange):
            return (self.kind, self.shape, self.stored, self.strides, self.start)
        if isinstance(self.stored, ir.LazyTensor):
            return (self.kind, self.shape, id(self.stored))
        data = self.stored
        return (self.kind, self.shape, data.__array_interface__["data"][0], data.strides)

    def read(self, start: int = 0, stop: int | None = None, out: Array | None = None) -> Array:
        """Return the elements from ``start`` to before ``stop``, in C order, as a flat array.

        ``out``, ``[stop - start]`` contiguous elements of ``dtype``, is filled and returned if
        given.

        Raises:
            ModelError: the file ends before, or cannot be read.
        """
        stop = self.size if stop is None else stop
        if out is None:
            out = np.empty(stop - start, self.dtype)
        if not isinstance(self.stored, FileRange):
            np.copyto(out, _flat(self.array(), start, stop))
        elif self.strides == _contiguous(self.shape):
            self._read_run(self.stored, self.start + start, out)
        else:
            self._read_strided(self.stored, start, out)
        return out

    def array(self) -> Array:
        """Return all elements, in their shape."""
        if isinstance(self.stored, FileRange):
            return self.read().reshape(self.shape)
        return self.stored.numpy() if isinstance(self.stored, ir.LazyTensor) else self.stored

    def in_memory(self) -> Stream:
        """Return the stream with its elements computed, where each access computes them all."""
        is_lazy = isinstance(self.stored, ir.LazyTensor)
        return replace(self, stored=self.array()) if is_lazy else self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.array()
        return array if dtype is None else array.astype(dtype)

    def pieces(
        self, elements: int = PIECE, multiple: int = 1, between: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, Array]]:
        """Yield ``(start, flat array)`` for one piece after the other, ``between`` two places.

        The array is overwritten by the next piece. All pieces except the last have a multiple of
        ``multiple`` elements, about as many as ``elements``.
        """
        first, last = between or (0, self.size)
        step = max(elements // multiple, 1) * multiple
        buffer, whole = np.empty(min(step, last - first), self.dtype), self.in_memory()
        for start in range(first, last, step):
            count = min(step, last - start)
            yield start, whole.read(start, start + count, buffer[:count])

    def reshaped(self, shape: Sequence[int]) -> Stream | None:
        """Return the same elements, in C order, in another shape; None if the number differs.

        Elements that are not in C order in the file are read.
        """
        sizes = tuple(shape)
        if math.prod(sizes) != self.size:
            return None
        if isinstance(self.stored, FileRange) and self.strides == _contiguous(self.shape):
            return Stream(self.kind, sizes, self.stored, _contiguous(sizes), self.start)
        return Stream(self.kind, sizes, self.array().reshape(sizes))

    def packed(self) -> Stream | None:
        """Return the bytes of each row, ``[..., bytes]``; None if a file has no whole bytes."""
        is_plain = self.start == 0 and self.strides == _contiguous(self.shape)
        bits = self.shape[-1] * width_of(self.kind) if self.shape else 1
        if not isinstance(self.stored, FileRange) or not is_plain or bits % 8:
            return None
        shape = (*self.shape[:-1], bits // 8)
        return Stream("UINT8", shape, self.stored, _contiguous(shape))

    def transposed(self, order: Sequence[int]) -> Stream:
        """Return the stream with its axes in another order."""
        shape = tuple(self.shape[axis] for axis in order)
        if not isinstance(self.stored, FileRange):
            return Stream(self.kind, shape, self.array().transpose(order))
        strides = tuple(self.strides[axis] for axis in order)
        return Stream(self.kind, shape, self.stored, strides, self.start)

    def sliced(self, cuts: Sequence[slice]) -> Stream:
        """Return the part selected by ``cuts``, one slice per axis."""
        if not isinstance(self.stored, FileRange):
            part = self.array()[tuple(cuts)]
            return Stream(self.kind, part.shape, part)
        start, shape, strides = self.start, [], []
        for cut, size, stride in zip(cuts, self.shape, self.strides, strict=True):
            chosen = range(size)[cut]
            shape.append(len(chosen))
            strides.append(stride * chosen.step)
            start += stride * chosen.start
        return Stream(self.kind, tuple(shape), self.stored, tuple(strides), start)

    def _read_run(self, file: FileRange, first: int, out: Array) -> None:
        """Read consecutive elements."""
        bits = width_of(self.kind)
        if bits >= 8:
            file.read_into(first * bits // 8, out)
            return
        # A byte may begin with elements that were not asked for.
        group = 2 if bits == 4 else 4
        before = first % group
        count = before + out.size
        data = np.empty(-(-count * bits // 8), np.uint8)
        file.read_into((first - before) * bits // 8, data)
        if before:
            np.copyto(out, unpack(data, bits, count)[before:].view(self.dtype))
        else:
            unpack(data, bits, count, out.view(np.uint8))

    def _read_strided(self, file: FileRange, first: int, out: Array) -> None:
        """Read boxes of elements, each by the runs in which the file has them."""
        done = 0
        while done < out.size:
            corner, sizes = box_at(self.shape, first + done, out.size - done)
            count = math.prod(sizes)
            self._read_box(file, corner, out[done : done + count].reshape(sizes))
            done += count

    def _read_box(self, file: FileRange, corner: Sequence[int], box: Array) -> None:
        start = self.start + sum(
            index * stride for index, stride in zip(corner, self.strides, strict=True)
        )
        # The axis along which neighbours are nearest makes the runs.
        axis = min(
            (axis for axis, size in enumerate(box.shape) if size > 1),
            key=lambda axis: abs(self.strides[axis]),
            default=0,
        )
        step, length = self.strides[axis], box.shape[axis]
        span = (length - 1) * abs(step) + 1
        lowest = min((length - 1) * step, 0)
        run = np.empty(span, self.dtype)
        rows = np.moveaxis(box, axis, -1)
        outer = [stride for index, stride in enumerate(self.strides) if index != axis]
        with _opened(file.path) as descriptor:
            for index in np.ndindex(rows.shape[:-1]):
                first = start + lowest + int(np.dot(index, outer)) if outer else start + lowest
                if width_of(self.kind) >= 8:
                    at = file.offset + first * self.dtype.itemsize
                    _read_at(descriptor, file.path, at, run)
                else:
                    self._read_run(file, first, run)
                rows[index] = run[:: abs(step)] if step > 0 else run[:: -abs(step) or None]


def stream_of(tensor: ir.TensorProtocol) -> Stream:
    """Return the elements of a tensor; those of external data stay in their file."""
    shape = tuple(int(size) for size in tensor.shape.numpy())
    if not isinstance(tensor, ir.ExternalTensor):
        held = tensor if isinstance(tensor, ir.LazyTensor) else tensor.numpy()
        return Stream(tensor.dtype.name, shape, held)
    size = -(-math.prod(shape) * tensor.dtype.bitwidth // 8)
    file_range = FileRange(os.path.abspath(tensor.path), tensor.offset or 0, size)
    return Stream(tensor.dtype.name, shape, file_range, _contiguous(shape))


@contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file; yield its descriptor."""
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if flags != os.O_RDONLY:
            raise
        raise ModelError(
            f"{path}: its weights cannot be read ({error}), expected the data file of the "
            "model. Put it back, or fetch it again."
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _bytes(array: Array) -> memoryview:
    """Return the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _read_at(descriptor: int, path: str, at: int, out: Array) -> None:
    rest = _bytes(out)
    while rest:
        try:
            count = os.preadv(descriptor, [rest], at)
        except OSError as error:
            raise ModelError(
                f"{path}: cannot be read at byte {at} ({error}), expected {len(rest)} more bytes "
                "of a weight. Fetch the data file again."
            ) from error
        if count == 0:
            raise ModelError(
                f"{path}: has {os.fstat(descriptor).st_size} bytes, expected {len(rest)} from byte "
                f"{at} on for a weight; it has become shorter since the model was loaded. Fetch "
                "the data file again."
            )
        rest, at = rest[count:], at + count


def width_of(type_name: str) -> int:
    """Return the bits of one element of an ONNX type, as a file stores it."""
    return _BITS[type_name] if type_name in _BITS else 8 * numpy_dtype(type_name).itemsize


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _flat(data: Array, start: int, stop: int) -> Array:
    """Return elements ``start`` to ``stop`` in C order, without a copy of all of them."""
    return data.reshape(-1)[start:stop] if data.flags.c_contiguous else data.flat[start:stop]


def cut_box(array: Array, corner: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return the part of an array that broadcasts to data, for a box of the data."""
    before = len(sizes) - array.ndim
    axes = zip(array.shape, corner[before:], sizes[before:], strict=True)
    cuts = [slice(0 if n == 1 else at, at + size) for n, at, size in axes]
    index: tuple[Any, ...] = (..., *cuts)
    return np.asarray(array[index])


def box_at(shape: Sequence[int], first: int, most: int) -> tuple[list[int], list[int]]:
    """Return corner and sizes of a box that begins at place ``first``, of at most ``most``.

    Its elements follow one another in C order.
    """
    if not shape:
        return [], []
    corner = [int(index) for index in np.unravel_index(first, tuple(shape))]
    inner, axis = 1, len(shape) - 1
    while axis > 0 and corner[axis] == 0 and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    length = min(shape[axis] - corner[axis], max(most // inner, 1))
    return corner, [1] * axis + [length, *shape[axis + 1 :]]

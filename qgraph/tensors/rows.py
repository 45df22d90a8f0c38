"""Arrays in files (.npy) of which the rows are read that are used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.tensors.streaming import FileRange

Array = npt.NDArray[Any]


class FileRows:
    """An array that stays in its file; rows are read, not mapped, when they are asked for.

    Args:
        path: of the file.
        offset: of the first element, in bytes.
        dtype: of the elements.
        shape: of the array, in C order.
    """

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
        """Return the rows from ``first`` to before ``last``, as far as there are so many.

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
    """Return the array of a file (.npy); one that is in Fortran order is read at once.

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

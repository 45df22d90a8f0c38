"""Arrays in files: one (.npy), or archives by name (.npz), which are written batch by batch."""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, UnsupportedError, plain_message, require, unexpected
from qgraph.graph.tensors import FileRows, read_rows
from qgraph.numerics import Array
from qgraph.records import dataclass
from qgraph.storage.outputs import Outputs, joined

NamedArrays = Mapping[str, npt.ArrayLike | os.PathLike[str]]
Arrays = NamedArrays | str | os.PathLike[str]
"""Arrays by the names of inputs; or the path of an archive with them. An array may be a path."""

WANTED = "arrays by the names of inputs, such as {'x': x}, or the path of an archive (.npz)"
"""Possible arguments ``inputs``."""
_MAGIC = np.lib.format.MAGIC_PREFIX


def arrays_by_name(inputs: Arrays) -> dict[str, Any]:
    """Return arrays by name; arrays in files are read.

    Raises:
        ExecutionError: a file has no such arrays.
        OptionError: the inputs have another type.
    """
    require(inputs, Mapping | str | os.PathLike, "inputs", WANTED)
    if isinstance(inputs, str | os.PathLike):
        return dict(read_archive(Path(inputs)))
    return {name: _read_if_file(array) for name, array in inputs.items()}


def _read_if_file(array: Any) -> Any:
    is_file = isinstance(array, os.PathLike) or (isinstance(array, str) and array.endswith(".npy"))
    return read_array(Path(array)) if is_file else array


def read_array(path: Path) -> Array | FileRows:
    """Return the array in a file (.npy); rows of a large array are read on access.

    Raises:
        ExecutionError: the file has no such array.
    """
    array: Array | FileRows = _read(path, "one array (.npy)", _single)
    return array


def read_archive(
    path: Path, wanted: Collection[str | None] | None = None
) -> dict[str, Array | None]:
    """Return the arrays in an archive (.npz) by name; those not ``wanted`` are None.

    Raises:
        ExecutionError: the file has no arrays.
    """
    archive: dict[str, Array | None] = _read(
        path, "an archive of arrays (.npz)", lambda content: _archive(content, wanted)
    )
    return archive


def _read(path: Path, expected: str, reader: Callable[[Any], Any]) -> Any:
    try:
        with path.open("rb") as file:
            single = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            if single:
                # Datasets may be larger than memory.
                return reader(read_rows(path))
            return reader(np.load(file, allow_pickle=False))
    except Exception as error:
        # Any bytes at all may be given, and NumPy and zipfile have many errors for them.
        known = isinstance(error, OSError | ValueError)
        what = plain_message(error) if known else unexpected(error)
        if isinstance(error, FileNotFoundError):
            what = "there is no such file"
        if "pickle" in what:  # NumPy takes any other bytes for Python objects
            what = "it is neither .npy nor .npz, or holds Python objects"
        raise ExecutionError(
            f"{path}: cannot be read ({what}), expected {expected} as numpy saves it. "
            "Correct the path, or save it anew."
        ) from error


def _archive(content: Any, wanted: Collection[str | None] | None) -> dict[str, Array | None]:
    files = getattr(content, "files", None)
    if files is None:
        raise ValueError("it holds one array without a name")
    return {
        name: _member(content, name) if wanted is None or name in wanted else None for name in files
    }


def _member(content: Any, name: str) -> Array:
    """Return an array of an archive, after checking its header against the stored bytes."""
    key = f"{name}.npy" if f"{name}.npy" in content.zip.namelist() else name
    with content.zip.open(key) as file:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = _HEADERS[version](file)
        size = math.prod(shape) * dtype.itemsize
        there = content.zip.getinfo(key).file_size - file.tell()
    if size > there:
        raise ValueError(f"array {name!r} should have {size} bytes, and has {there}")
    return np.asarray(content[name])


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _single(content: Any) -> Array | FileRows:
    if hasattr(content, "files"):
        raise ValueError("it is an archive")
    rows: Array | FileRows = content
    return rows


class Archive:
    """An archive that grows: no more than one array, or one batch of one, is held at a time.

    A type that numpy lacks becomes a wider one with the same values; the elements of a sequence
    are numbered, ``name.0`` and on.
    """

    def __init__(self, file: zipfile.ZipFile, folder: Path, *, batched: bool) -> None:
        self._file = file
        self._folder = folder
        self._batched = batched
        self._members: dict[str, _Member] = {}
        self._written: set[str] = set()

    def add(self, name: str, value: Any) -> None:
        """Write a value; in a batched archive, append it along the first axis.

        In an archive that is not batched, only the first value of a name is written.

        Raises:
            UnsupportedError: it does not fit to the batches before it.
        """
        for key, array in tensors({name: value}).items():
            if self._batched:
                self._append(key, np.atleast_1d(common(array)))
            elif key not in self._written:
                self._written.add(key)
                with self._file.open(f"{key}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, common(array), allow_pickle=False)

    def finish(self) -> None:
        """Gather the batches of each array."""
        for name, member in self._members.items():
            with self._file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                member.write(entry)
            member.path.unlink()

    def _append(self, name: str, array: Array) -> None:
        if name not in self._members:
            path = self._folder / f"{len(self._members)}.batches"
            self._members[name] = _Member(path, array.dtype, array.shape[1:])
        self._members[name].append(name, array)


@contextmanager
def archive(
    path: str | os.PathLike[str], outputs: Outputs | None = None, *, batched: bool = False
) -> Iterator[Archive]:
    """Open an archive that appears as ``path`` when the block ends, unless the block fails.

    Batches wait in the same folder until the end. If ``batched``, the arrays of a name follow each
    other, and are one in the archive.

    Raises:
        QGraphError: the file cannot be written; an old one is untouched then.
    """
    with (
        joined(outputs) as together,
        together.open(path) as file,
        tempfile.TemporaryDirectory(dir=Path(file.name).parent) as folder,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as content,
    ):
        growing = Archive(content, Path(folder), batched=batched)
        yield growing
        growing.finish()


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], outputs: Outputs | None = None
) -> None:
    """Write an archive of arrays by name; see :func:`archive`."""
    with archive(path, outputs) as content:
        for name, array in arrays.items():
            content.add(name, array)


def tensors(results: Mapping[str, Any]) -> dict[str, Array]:
    """Return tensors by name; elements of a sequence are numbered, absent values are omitted."""
    flat: dict[str, Array] = {}
    for name, value in results.items():
        if isinstance(value, list | tuple):
            flat |= {f"{name}.{index}": np.asarray(part) for index, part in enumerate(value)}
        elif value is not None:
            flat[name] = np.asarray(value)
    return flat


def common(array: Array) -> Array:
    """Return the array in a type that every numpy reads, with the same values."""
    if array.dtype.kind == "O":
        return array.astype(np.str_)
    if array.dtype.kind != "V":
        return array
    real = ir.DataType.from_numpy(array.dtype).is_floating_point()
    return array.astype(np.float32 if real else np.int8)


@dataclass
class _Member:
    """The batches of one array, one after the other in a file of their own."""

    path: Path
    dtype: np.dtype[Any]
    sizes: tuple[int, ...]
    rows: int = 0

    def append(self, name: str, array: Array) -> None:
        same_kind = array.dtype == self.dtype or array.dtype.kind == self.dtype.kind == "U"
        if array.shape[1:] != self.sizes or not same_kind:
            raise UnsupportedError(
                f"Output {name!r} cannot be joined over the batches: one is "
                f"{self.dtype}[*,{','.join(map(str, self.sizes))}], another "
                f"{array.dtype}{list(array.shape)}, expected the same but for the first axis. "
                "Run one batch."
            )
        # Texts are as wide as the longest of their batch.
        self.dtype = np.promote_types(self.dtype, array.dtype)
        self.rows += len(array)
        with self.path.open("ab") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)

    def write(self, entry: IO[bytes]) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.rows, *self.sizes),
        }
        np.lib.format.write_array_header_1_0(entry, header)
        with self.path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while file.tell() < end:
                part = np.lib.format.read_array(file, allow_pickle=False)
                rows = np.ascontiguousarray(part, self.dtype).reshape(-1)
                entry.write(rows.view(np.uint8).data)

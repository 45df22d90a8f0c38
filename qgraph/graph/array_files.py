"""Arrays in files: one (.npy), or an archive of arrays by name (.npz)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.errors import ExecutionError, plain_message, require, unexpected
from qgraph.graph.tensors import FileRows, read_rows
from qgraph.numerics import Array

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

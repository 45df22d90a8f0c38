"""Arrays in files: inputs of a model, and labels of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qgraph.cli.inputs import InputOptions
from qgraph.cli.output import Talk
from qgraph.errors import ExecutionError, unexpected
from qgraph.graph.tensors import FileRows, read_rows
from qgraph.numerics import Array

if TYPE_CHECKING:
    from qgraph.comparison.check import Inputs
    from qgraph.model import Model


_ARCHIVE = "an archive of arrays (.npz)"
_MAGIC = np.lib.format.MAGIC_PREFIX


def feeds(
    talk: Talk, inputs: InputOptions, model: Model, *, besides: str | None = None
) -> dict[str, Array | FileRows] | None:
    """Return the arrays in the input files by input name; None if the inputs are random.

    Arrays of an archive under other names than those of inputs are left out, with a note; that
    called ``besides`` without one.

    Raises:
        ExecutionError: a file holds no such thing.
    """
    if not inputs.files and inputs.bundle is None:
        return None
    arrays: dict[str, Array | FileRows] = {}
    if inputs.bundle is not None:
        names = {value.name for value in model.ir.graph.inputs}
        bundle = _read(inputs.bundle, _ARCHIVE, lambda content: _archive(content, names))
        arrays = {name: array for name, array in bundle.items() if array is not None}
        if spare := [name for name in bundle if name not in names and name != besides]:
            talk.note(f"{inputs.bundle}: no inputs of the model, left out: {', '.join(spare)}")
    for name, path in inputs.files.items():
        arrays[name] = _read(path, "one array (.npy)", _single)
    return arrays


def checked(inputs: InputOptions, feeds: Any) -> Inputs:
    """Return the inputs of a check: given arrays, and what else the user asked for."""
    from qgraph.comparison.check import Inputs

    return Inputs(feeds, inputs.random, inputs.seed, inputs.shapes, inputs.batch, inputs.probes)


def labels(option: str, inputs: InputOptions) -> Array:
    """Return labels from a file, or from the archive of the inputs if ``given`` is a name in it.

    Raises:
        ExecutionError: there are none.
    """
    path = labels_file(option, inputs)
    if path is not None:
        return np.asarray(_read(path, "one array (.npy)", _single))
    bundle = {}
    if inputs.bundle is not None:
        bundle = _read(inputs.bundle, _ARCHIVE, lambda content: _archive(content, {option}))
    if option not in bundle:
        raise ExecutionError(
            f"{inputs.bundle}: has no array {option!r} with labels, expected a name among "
            f"{', '.join(bundle) or 'none'}, or a file. Correct the name."
        )
    return np.asarray(bundle[option])


def labels_file(option: str | None, inputs: InputOptions) -> Path | None:
    """Return the file of the labels; None if they are in the archive of the inputs."""
    if option is None or (inputs.bundle is not None and not Path(option).is_file()):
        return None
    return Path(option)


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
        what = str(error) if isinstance(error, OSError | ValueError) else unexpected(error)
        if isinstance(error, FileNotFoundError):
            what = "there is no such file"
        if "pickle" in what:  # NumPy takes any other bytes for Python objects
            what = "it is neither .npy nor .npz, or holds Python objects"
        raise ExecutionError(
            f"{path}: cannot be read ({what}), expected {expected} as numpy saves it. "
            "Correct the path, or save it anew."
        ) from error


def _archive(content: Any, wanted: Collection[str | None]) -> dict[str, Array | None]:
    """Return the arrays of an archive by name; None for those that are not wanted."""
    files = getattr(content, "files", None)
    if files is None:
        raise ValueError("it holds one array without a name")
    return {name: _member(content, name) if name in wanted else None for name in files}


def _member(content: Any, name: str) -> Array:
    """Return an array of an archive; its header must not promise more than there is."""
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

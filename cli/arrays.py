"""Arrays in files and on the screen: what a model is fed with, and what it returns."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.cli.options import Inputs
from qgraph.cli.output import Cell, Column, Talk, number_text, show_table
from qgraph.errors import ExecutionError, UnsupportedError
from qgraph.files import replacing

if TYPE_CHECKING:
    from qgraph.model import Model

Array = npt.NDArray[Any]


def feeds(talk: Talk, inputs: Inputs, model: Model) -> dict[str, Array] | None:
    """Return the arrays that files hold, by input name; None where the inputs are random.

    Arrays of an archive under other names than those of inputs are left out, with a note.

    Raises:
        ExecutionError: a file holds no such thing.
    """
    if not inputs.files and inputs.bundle is None:
        return None
    found: dict[str, Array] = {}
    if inputs.bundle is not None:
        bundle = _read(inputs.bundle, "an archive of arrays (.npz)", _archive)
        known = {value.name for value in model.ir.graph.inputs}
        found = {name: array for name, array in bundle.items() if name in known}
        if spare := [name for name in bundle if name not in known]:
            talk.note(f"{inputs.bundle}: no inputs of the model, left out: {', '.join(spare)}")
    for name, path in inputs.files.items():
        found[name] = _read(path, "one array (.npy)", _single)
    return found


def joined(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of several runs as one, joined along the first axis.

    Raises:
        UnsupportedError: they are no tensors, or differ in another axis.
    """
    if len(runs) == 1:
        return dict(runs[0])
    whole = {}
    for name in runs[0]:
        parts = [run[name] for run in runs]
        try:
            whole[name] = np.concatenate([np.atleast_1d(part) for part in parts])
        except ValueError as error:
            raise UnsupportedError(
                f"Output {name!r} cannot be joined over {len(runs)} batches ({error}), expected "
                "tensors of one shape. Run one batch."
            ) from error
    return whole


def save(path: Path, results: Mapping[str, Any]) -> None:
    """Write results as numpy's archive; a type that numpy lacks becomes a wider one, exactly."""
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, value in _flat(results).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _common(value), allow_pickle=False)


def show_all(results: Mapping[str, Any]) -> None:
    """Print a table of results."""
    columns = [
        Column("output", cut=True),
        Column("type"),
        Column("shape"),
        Column("min", right=True),
        Column("max", right=True),
        Column("mean", right=True),
    ]
    rows: list[list[Cell | str]] = []
    for name, value in _flat(results).items():
        array = _common(value)
        shape = f"[{','.join(map(str, array.shape))}]"
        numbers = array.astype(np.float64) if array.dtype.kind in "biuf" else np.empty(0)
        wrong = int(np.count_nonzero(np.isnan(numbers)))
        numbers = numbers[~np.isnan(numbers)]
        statistics = ["-"] * 3
        if numbers.size:
            with np.errstate(invalid="ignore"):
                ends = (numbers.min(), numbers.max(), numbers.mean())
            statistics = [number_text(float(end)) for end in ends]
        label = Cell(f"{name} ({wrong} NaN)", "yellow") if wrong else Cell(name)
        rows.append([label, str(value.dtype), shape, *statistics])
    show_table(columns, rows)


def _read(path: Path, expected: str, reader: Callable[[Any], Any]) -> Any:
    try:
        with path.open("rb") as file:
            return reader(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ExecutionError(
            f"{path}: cannot be read ({error}), expected {expected} as numpy saves it. "
            "Correct the path, or save it anew."
        ) from error


def _archive(content: Any) -> dict[str, Array]:
    files = getattr(content, "files", None)
    if files is None:
        raise ValueError("it holds one array without a name")
    return {name: content[name] for name in files}


def _single(content: Any) -> Array:
    if hasattr(content, "files"):
        raise ValueError("it is an archive")
    return np.asarray(content)


def _flat(results: Mapping[str, Any]) -> dict[str, Array]:
    """Return tensors by name; the elements of a sequence are numbered."""
    flat: dict[str, Array] = {}
    for name, value in results.items():
        if isinstance(value, list | tuple):
            flat |= {f"{name}.{place}": np.asarray(part) for place, part in enumerate(value)}
        elif value is not None:
            flat[name] = np.asarray(value)
    return flat


def _common(array: Array) -> Array:
    """Return the array in a type that every numpy reads."""
    if array.dtype.kind == "O":
        return array.astype(np.str_)
    if array.dtype.kind != "V":
        return array
    real = ir.DataType.from_numpy(array.dtype).is_floating_point()
    return array.astype(np.float32 if real else np.int8)

"""Arrays in files and on the screen: inputs and outputs of a model."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qgraph.cli.options import Inputs
from qgraph.cli.output import Talk, bar_marks, show_paragraph, show_table
from qgraph.errors import ExecutionError
from qgraph.graph.tensors import FileRows, read_rows
from qgraph.reporting.view import (
    NONE,
    Cell,
    Column,
    Columns,
    Row,
    Table,
    Tone,
    amount,
    numbers,
    percent,
)

if TYPE_CHECKING:
    from qgraph.inventory.statistics import QuantizerStatistics, TensorStatistics
    from qgraph.model import Model

Array = npt.NDArray[Any]

_ARCHIVE = "an archive of arrays (.npz)"
_MAGIC = np.lib.format.MAGIC_PREFIX

_MUCH_CLIPPED = 0.05
"""Clipping rates above it are highlighted."""


def feeds(
    talk: Talk, inputs: Inputs, model: Model, *, besides: str | None = None
) -> dict[str, Array | FileRows] | None:
    """Return the arrays in the input files by input name; None if the inputs are random.

    Arrays of an archive under other names than those of inputs are left out, with a note; that
    called ``besides`` without one.

    Raises:
        ExecutionError: a file holds no such thing.
    """
    if not inputs.files and inputs.bundle is None:
        return None
    found: dict[str, Array | FileRows] = {}
    if inputs.bundle is not None:
        bundle = _read(inputs.bundle, _ARCHIVE, _archive)
        known = {value.name for value in model.ir.graph.inputs}
        found = {name: array for name, array in bundle.items() if name in known}
        if spare := [name for name in bundle if name not in known and name != besides]:
            talk.note(f"{inputs.bundle}: no inputs of the model, left out: {', '.join(spare)}")
    for name, path in inputs.files.items():
        found[name] = _read(path, "one array (.npy)", _single)
    return found


def labels(given: str, inputs: Inputs) -> Array:
    """Return labels from a file, or from the archive of the inputs if ``given`` is a name in it.

    Raises:
        ExecutionError: there are none.
    """
    path = labels_file(given, inputs)
    if path is not None:
        return np.asarray(_read(path, "one array (.npy)", _single))
    bundle = {} if inputs.bundle is None else _read(inputs.bundle, _ARCHIVE, _archive)
    if given not in bundle:
        raise ExecutionError(
            f"{inputs.bundle}: has no array {given!r} with labels, expected a name among "
            f"{', '.join(bundle) or 'none'}, or a file. Correct the name."
        )
    return np.asarray(bundle[given])


def labels_file(given: str | None, inputs: Inputs) -> Path | None:
    """Return the file of the labels; None if they are in the archive of the inputs."""
    if given is None or (inputs.bundle is not None and not Path(given).is_file()):
        return None
    return Path(given)


def show_tensors(found: Sequence[TensorStatistics]) -> None:
    """Print a table of tensors."""
    rows: list[Row] = []
    for tensor in found:
        shape = "differs" if tensor.shape is None else f"[{','.join(map(str, tensor.shape))}]"
        label = Cell(tensor.name)
        if tensor.nan:
            label = Cell(f"{tensor.name} ({tensor.nan} NaN)", Tone.OPEN)
        rows.append(
            [label, tensor.dtype, shape, *map(amount, (tensor.min, tensor.max, tensor.mean))]
        )
    columns: Columns = [
        Column("output", code=True),
        "type",
        "shape",
        *numbers("min", "max", "mean"),
    ]
    show_table(Table("tensors", columns, rows))


def show_quantizers(found: Sequence[QuantizerStatistics]) -> None:
    """Print a table of quantizers with their clipping rates and used codes."""
    columns: Columns = [
        *(Column("quantizer", code=True), "of", "format"),
        *numbers("min", "max", "mean", spare=True),
        *numbers("clipped", "codes"),
        Column("histogram", spare=True),
    ]
    rows: list[Row] = []
    for each in found:
        if each.reason is not None:
            continue
        codes, tone = each.codes, Tone.PLAIN
        if each.clipped_share is not None and each.clipped_share > _MUCH_CLIPPED:
            tone = Tone.OPEN
        ends = each.values.min, each.values.max, each.values.mean
        rows.append(
            [
                *(each.node, "weight" if each.weight else "data", each.format or NONE),
                *(amount(end, 4) for end in ends),
                Cell(percent(each.clipped_share), tone),
                NONE if codes is None else f"{len(codes)}/{each.levels}",
                bars(codes or []),
            ]
        )
    if rows:
        show_table(Table("quantizers", columns, rows))
    for each in found:
        if each.reason is not None:
            show_paragraph(f"no statistics: {each.reason}", Tone.OPEN)


def bars(codes: Sequence[tuple[float, int]], width: int = 16) -> str:
    """Return a histogram of codes as a line of bars, from the smallest code to the largest.

    What occurs at all is visible.
    """
    if not codes:
        return ""
    low, high = codes[0][0], codes[-1][0]
    whole = all(isinstance(code, int) for code, _ in codes)
    count = int(min(width, high - low + 1)) if whole else min(width, len(codes))
    heights = [0] * count
    for code, times in codes:
        place = (
            (code - low) / ((high - low) or 1) * count
            if not whole
            else ((code - low) * count // (high - low + 1))
        )
        heights[min(int(place), count - 1)] += times
    marks = bar_marks()
    top = max(heights)
    return "".join(marks[-(-height * (len(marks) - 1) // top)] for height in heights)


def _read(path: Path, expected: str, reader: Callable[[Any], Any]) -> Any:
    try:
        with path.open("rb") as file:
            single = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            if single:
                # Datasets may be larger than memory.
                return reader(read_rows(path))
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


def _single(content: Any) -> Array | FileRows:
    if hasattr(content, "files"):
        raise ValueError("it is an archive")
    rows: Array | FileRows = content
    return rows

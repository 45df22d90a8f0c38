"""Arrays that the user names: inputs of a model, and labels of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qgraph.cli.inputs import InputOptions
from qgraph.cli.output import Talk
from qgraph.errors import ExecutionError
from qgraph.graph.tensors import FileRows
from qgraph.numerics import Array
from qgraph.storage.archive import read_archive, read_array

if TYPE_CHECKING:
    from qgraph.comparison.check import Inputs
    from qgraph.execution.prepare import Batches, RandomBatches
    from qgraph.model import Model


def feeds(
    talk: Talk, inputs: InputOptions, model: Model, *, besides: str | None = None
) -> dict[str, Array | FileRows] | None:
    """Return the arrays in the input files by input name; None if the inputs are random.

    Other arrays in an archive are ignored with a note; the one named ``besides`` is ignored without
    a note.

    Raises:
        ExecutionError: a file does not contain such an array.
    """
    if not inputs.files and inputs.bundle is None:
        return None
    arrays: dict[str, Array | FileRows] = {}
    if inputs.bundle is not None:
        names = {value.name for value in model.ir.graph.inputs}
        bundle = read_archive(inputs.bundle, names)
        arrays = {name: array for name, array in bundle.items() if array is not None}
        if spare := [name for name in bundle if name not in names and name != besides]:
            talk.note(
                f"{inputs.bundle}: arrays that are no inputs of the model are ignored: "
                f"{', '.join(spare)}"
            )
    for name, path in inputs.files.items():
        arrays[name] = read_array(path)
    return arrays


def batches(
    model: Model, arrays: Mapping[str, Any] | None, inputs: InputOptions
) -> Batches | RandomBatches:
    """Return the batches on which a command runs a model: arrays from files, or random ones."""
    from qgraph.execution.prepare import Batches, RandomBatches

    if arrays is None:
        return RandomBatches(model.inputs, inputs.random or 1, inputs.seed, inputs.shapes)
    return Batches(model.ir.graph, arrays, inputs.batch)


def checked(inputs: InputOptions, feeds: Any) -> Inputs:
    """Return the inputs of a check: arrays from files, random inputs and probes."""
    from qgraph.comparison.check import Inputs

    return Inputs(feeds, inputs.random, inputs.seed, inputs.shapes, inputs.batch, inputs.probes)


def labels(option: str, inputs: InputOptions) -> Array:
    """Return labels from a file, or the array ``given`` of the archive of the inputs.

    Raises:
        ExecutionError: there are none.
    """
    path = labels_file(option, inputs)
    if path is not None:
        return np.asarray(read_array(path))
    bundle = {} if inputs.bundle is None else read_archive(inputs.bundle, {option})
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

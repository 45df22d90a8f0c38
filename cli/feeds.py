"""Reading the arrays that a model is fed with from files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qgraph.cli.options import Inputs
from qgraph.cli.output import Talk
from qgraph.errors import ExecutionError

if TYPE_CHECKING:
    from qgraph.model import Model

Feeds = dict[str, npt.NDArray[Any]]


def given_feeds(talk: Talk, inputs: Inputs, model: Model) -> Feeds | None:
    """Return the arrays that files hold, by input name; None where the inputs are random.

    Arrays of an archive under other names than those of inputs are left out, with a note.

    Raises:
        ExecutionError: a file holds no such thing.
    """
    if not inputs.files and inputs.bundle is None:
        return None
    feeds: Feeds = {}
    if inputs.bundle is not None:
        bundle = _read(inputs.bundle, "an archive of arrays (.npz)", _archive)
        known = {value.name for value in model.ir.graph.inputs}
        feeds = {name: array for name, array in bundle.items() if name in known}
        if spare := [name for name in bundle if name not in known]:
            talk.note(f"{inputs.bundle}: no inputs of the model, left out: {', '.join(spare)}")
    for name, path in inputs.files.items():
        feeds[name] = _read(path, "an array (.npy)", _single)
    return feeds


def _read(path: Path, expected: str, reader: Callable[[Any], Any]) -> Any:
    try:
        with np.load(path, allow_pickle=False) as content:
            return reader(content)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError) as error:
        raise ExecutionError(
            f"{path}: cannot be read ({error}), expected {expected} as numpy saves it. "
            "Save it anew."
        ) from error


def _archive(content: Any) -> Feeds:
    if not isinstance(content, np.lib.npyio.NpzFile):
        raise ValueError("it holds a single array")
    return {name: content[name] for name in content.files}


def _single(content: Any) -> npt.NDArray[Any]:
    if not isinstance(content, np.ndarray):
        raise ValueError("it is an archive")
    return content

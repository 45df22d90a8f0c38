"""Find the models that the user names: files, and all models in folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qgraph.cli.output import Talk
from qgraph.errors import ModelError
from qgraph.storage.places import key_of

_SUFFIX = ".onnx"


@dataclass(frozen=True)
class FoundModel:
    """A model that the user named, or that lies in a folder that the user named.

    Attributes:
        path: its file.
        place: its path relative to the named folder, which is also its path in the folder for
            results.
    """

    path: Path
    place: Path


def found_models(
    named: Sequence[Path], talk: Talk, *, without: Path | None = None
) -> list[FoundModel]:
    """Return the files among ``named``, and all files ``*.onnx`` in the folders, in sorted order.

    Links to folders and hidden folders are not searched.

    Args:
        named: files and folders; files need not exist.
        talk: reports the links that were not followed.
        without: a folder that is not searched.

    Raises:
        ModelError: a folder holds no model, or cannot be read.
    """
    models = []
    left_out = None if without is None else key_of(without)
    for path in named:
        if not path.is_dir():
            models.append(FoundModel(path, Path(path.name)))
            continue
        files = []
        for folder, inner, names in os.walk(path, onerror=_unreadable):
            for link in sorted(name for name in inner if os.path.islink(Path(folder, name))):
                talk.note(f"{Path(folder, link)}: is a link to a folder, and is not searched")
            inner[:] = [
                name
                for name in inner
                if not name.startswith(".") and key_of(Path(folder, name)) != left_out
            ]
            files += [Path(folder, name) for name in names if name.endswith(_SUFFIX)]
        if not files:
            raise ModelError(
                f"{path}: is a folder without models, expected files *{_SUFFIX}. Name another "
                "folder, or the files themselves."
            )
        models += [FoundModel(file, file.relative_to(path)) for file in sorted(files)]
    return models


def _unreadable(error: OSError) -> None:
    raise ModelError(
        f"{error.filename}: cannot be read ({error.strerror}), expected a folder with models. "
        "Correct the permissions, or name the files themselves."
    ) from error

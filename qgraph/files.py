"""Files other than models that appear as a whole or not at all: reports and results."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from qgraph.errors import QGraphError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that takes the name ``path`` when the block ends, and vanishes if it fails.

    Raises:
        QGraphError: the file cannot be written; an old one is untouched then.
    """
    target = expect_place(path)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            scratch = Path(folder, target.name)
            with scratch.open("xb") as file:
                yield file
            if target.exists():
                shutil.copymode(target, scratch)
            os.replace(scratch, target)
    except OSError as error:
        raise QGraphError(
            f"{path}: cannot be written ({error}); what was there before is untouched. "
            "Free some space, mend the permissions, or choose another place."
        ) from error


def expect_place(path: str | os.PathLike[str]) -> Path:
    """Return where a file is to be written, if there is room for one of this name.

    Raises:
        QGraphError: its folder is not there, or something else has the name.
    """
    # A link keeps pointing to the file that is replaced.
    target = Path(os.path.realpath(path))
    if not os.path.isdir(target.parent):
        raise QGraphError(
            f"{path}: cannot be written, {str(target.parent)!r} is not a folder. Create it first."
        )
    if os.path.exists(target) and not os.path.isfile(target):
        raise QGraphError(f"{path}: is there and not a regular file. Choose another name.")
    return target


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, as :func:`replacing` does."""
    with replacing(path) as file:
        file.write(text.encode())


def is_same(path: Path, other: Path) -> bool:
    """Return whether two paths are one file, also by links, or would be if it were there."""
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def json_text(document: dict[str, Any]) -> str:
    """Return a JSON document; ``NaN``, ``Infinity`` and ``-Infinity`` become strings.

    JSON has no such numbers, and strict readers stop at them.
    """
    return json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    return node

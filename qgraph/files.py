"""Files other than models that appear as a whole or not at all: reports and results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from qgraph.outputs.outputs import Outputs, joined


@contextmanager
def replacing(path: str | os.PathLike[str], outputs: Outputs | None = None) -> Iterator[IO[bytes]]:
    """Open a file that takes the name ``path`` when the block ends, and vanishes if it fails.

    Args:
        path: the file to write.
        outputs: the outputs with which it appears; None for: alone, when the block ends.

    Raises:
        QGraphError: the file cannot be written; an old one is untouched then.
    """
    with joined(outputs) as together, together.open(path) as file:
        yield file


def write_text(path: str | os.PathLike[str], text: str, outputs: Outputs | None = None) -> None:
    """Write a text file in UTF-8, as :func:`replacing` does."""
    with replacing(path, outputs) as file:
        file.write(text.encode())


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

"""The files that a command writes: guarded and locked before any work is done for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qgraph.cli.output import flush_results
from qgraph.outputs.outputs import HOLDS_WEIGHTS, Outputs


@contextmanager
def planned(
    targets: Iterable[Path | None],
    *,
    models: Iterable[Path | None] = (),
    files: Iterable[Path | None] = (),
) -> Iterator[Outputs]:
    """Give the outputs of a command, which appear together when the block ends without an error.

    What the command shows is written before that, so that a full disk behind the standard output
    leaves no file.

    Args:
        targets: files to write; None for those that are not wanted.
        models: model files that the command reads; their data files are guarded too.
        files: other files that it reads.

    Raises:
        OptionError: an output would replace one of these, or another output.
        QGraphError: an output cannot be written, or another process is writing it.
    """
    wanted = [target for target in targets if target is not None]
    with Outputs() as outputs:
        outputs.protect(files)
        if wanted:
            protect_models(outputs, models)
        for target in wanted:
            outputs.reserve(target)
        yield outputs
        flush_results()


def protect_models(outputs: Outputs, models: Iterable[Path | None]) -> None:
    """Keep outputs away from model files and their data files."""
    from qgraph.storage.reading import files_of

    for model in models:
        if model is not None:
            own, *data = files_of(model)
            outputs.protect([own])
            outputs.protect(data, HOLDS_WEIGHTS)

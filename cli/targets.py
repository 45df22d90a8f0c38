"""Where results go: known to be free before any work is done for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qgraph.errors import OptionError
from qgraph.files import expect_place, is_same


def expect_targets(targets: Iterable[Path | None], sources: Iterable[Path | None]) -> None:
    """See that results can be written, before any work is done for them.

    Args:
        targets: files to write; None for those that are not wanted.
        sources: files that the command reads, or writes elsewhere.

    Raises:
        OptionError: a result would replace one of these, or another result.
        QGraphError: there is no room for one.
    """
    wanted = [target for target in targets if target is not None]
    refuse_overwriting(wanted, sources)
    for place, target in enumerate(wanted):
        if any(is_same(target, other) for other in wanted[:place]):
            raise OptionError(
                f"{target}: is named twice, expected one file for each result. Choose another name."
            )
    for target in wanted:
        expect_place(target)


def refuse_overwriting(targets: Iterable[Path], sources: Iterable[Path | None]) -> None:
    """Stop where a result would replace a file that the command uses.

    Raises:
        OptionError: it would.
    """
    used = [source for source in sources if source is not None]
    for target in targets:
        if any(is_same(target, source) for source in used):
            raise OptionError(
                f"{target}: is read by this command, or written already; expected another file. "
                "Choose another name."
            )

"""The entry points of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from qgraph.cli.tuning import end, tune


def program() -> NoReturn:
    """Run the command line with the arguments of this process, and end it with the exit status."""
    tune()
    end(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; ``argv`` is that of the process if None."""
    from qgraph.cli.group import run  # after tune(), so that unused modules are not loaded

    return run(argv)


if __name__ == "__main__":
    program()

"""The entry point of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qgraph.cli.tuning import tune


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; ``argv`` is that of the process if None."""
    if argv is None:
        tune()
    from qgraph.cli.group import run  # after tune(), so that unused modules are not loaded

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())

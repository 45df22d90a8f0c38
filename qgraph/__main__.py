"""The command ``qgraph`` as ``python -m qgraph``."""

from __future__ import annotations

import sys

from qgraph.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

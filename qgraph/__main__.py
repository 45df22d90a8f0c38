"""The command ``qgraph`` as ``python -m qgraph``."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("qgraph.cli.main", run_name="__main__", alter_sys=True)

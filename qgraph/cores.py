"""How many processor cores this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the number of cores, those excepted that the process is kept from."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

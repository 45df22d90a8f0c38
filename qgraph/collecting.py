"""Looking for garbage less often while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 200_000


@contextmanager
def seldom() -> Iterator[None]:
    """Let Python search for cyclic garbage only after many new objects.

    A graph of 100,000 nodes is some millions of objects, through which Python would go again and
    again in vain; the time per node would grow with the graph.
    """
    before = gc.get_threshold()
    if gc.isenabled():
        gc.set_threshold(max(before[0], _OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

"""The whole table, on all cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.conformance.cells import DIALECTS, Cell, cells
from tests.conformance.quantizers import Quantizer, Row
from tests.conformance.rows import rows

_SHARE = 128
"""Quantizers of one piece of work."""


def table(quantizers: Sequence[Quantizer]) -> dict[Row, dict[str, Cell]]:
    """Return the cells of all ``quantizers``."""
    found: dict[Row, dict[str, Cell]] = {quantizer.row: {} for quantizer in quantizers}
    for to in DIALECTS:
        for row, cell in cells(quantizers, to):
            found[row][to] = cell
    return found


def whole_table() -> dict[Row, dict[str, Cell]]:
    """Return the cells of all rows."""
    starts = range(0, sum(1 for _ in rows()), _SHARE)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        return {row: columns for part in pool.map(_share, starts) for row, columns in part.items()}


def _share(start: int) -> dict[Row, dict[str, Cell]]:
    return table(list(rows())[start : start + _SHARE])

"""The rules of the normal form, in the order in which they are tried on a node."""

from __future__ import annotations

from qgraph.matching.normal import hoisting, maxima
from qgraph.matching.normal.rewriter import Rule

RULES: tuple[tuple[str, Rule], ...] = (
    ("write movements in one way", hoisting.write_movements),
    ("join movements", hoisting.join_movements),
    ("move elements before functions of single elements", hoisting.hoist),
    ("take maxima before functions that never decrease", maxima.hoist_maximum),
    ("take the maximum of two data of one function", maxima.join_maximum),
)

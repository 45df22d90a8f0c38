"""Operators that give their data another shape, and the open sizes that they compute with."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from qgraph.graph.inference.dimensions import Size
from qgraph.graph.inference.rules import Fact

RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})

_FUNCTIONS = {"floor", "min"}
"""Names in the texts of sizes that are no sizes."""


def reshaped_sizes(facts: Mapping[ir.Value, Fact]) -> frozenset[str]:
    """Return the names of the open sizes of the results of operators that reshape."""
    texts = [
        str(size)
        for value, fact in facts.items()
        if (node := value.producer()) is not None and node.op_type in RESHAPING
        for size in fact.shape or ()
        if isinstance(size, Size)
    ]
    return frozenset().union(*map(names_in, texts))


def names_in(size: str) -> set[str]:
    """Return the names of open sizes in the text of a size."""
    return set(re.findall(r"[A-Za-z_]\w*", size)) - _FUNCTIONS

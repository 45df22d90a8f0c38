"""Operators whose results no operands determine."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.execution.executor import Imports
from qgraph.graph.constants import constant

_RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)

_RANDOM_OF_RUNTIME = frozenset({"Sampling"})
"""Those of com.microsoft."""

_DROPOUT_FOR_INFERENCE = 7
"""Before this version Dropout trains unless an attribute says otherwise."""

_MODE = {
    ("", "Dropout"): 2,
    ("com.microsoft", "BiasDropout"): 4,
    ("com.microsoft", "BitmaskBiasDropout"): 4,
    ("com.microsoft", "BitmaskDropout"): 2,
}
"""Which input of an operator that drops data says whether it trains."""


def is_random(node: ir.Node, imports: Imports) -> bool:
    """Return whether a node may give different results for equal operands."""
    place = _MODE.get((node.domain, node.op_type))
    if place is None:
        names = {"": _RANDOM, "com.microsoft": _RANDOM_OF_RUNTIME}.get(node.domain, frozenset())
        return node.op_type in names
    if node.domain == "" and imports.get("", _DROPOUT_FOR_INFERENCE) < _DROPOUT_FOR_INFERENCE:
        return not node.attributes.get_int("is_test", 0)
    mode = node.inputs[place] if len(node.inputs) > place else None
    known = constant(mode)
    return mode is not None and (known is None or bool(known.any()))

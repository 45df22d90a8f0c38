"""Operators whose results no operands determine."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.constants import constant
from qgraph.executor import Imports

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

_DROPOUT_FOR_INFERENCE = 7
"""Before this version Dropout trains unless an attribute says otherwise."""

_MODE = 2
"""Which input of Dropout says whether it trains."""


def is_random(node: ir.Node, imports: Imports) -> bool:
    """Return whether a node may give different results for equal operands."""
    if node.domain != "":
        return False
    if node.op_type != "Dropout":
        return node.op_type in _RANDOM
    if imports.get("", _DROPOUT_FOR_INFERENCE) < _DROPOUT_FOR_INFERENCE:
        return not node.attributes.get_int("is_test", 0)
    mode = node.inputs[_MODE] if len(node.inputs) > _MODE else None
    known = constant(mode)
    return mode is not None and (known is None or bool(known.any()))

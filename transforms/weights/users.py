"""Which operators take stored codes."""

from __future__ import annotations

from fnmatch import fnmatchcase

import onnx_ir as ir

from qgraph.quantizers.movement import MOVES
from qgraph.transforms.base import selects
from qgraph.transforms.drafts.choice import label

BIAS = 2
"""Place of the bias among the inputs of Conv, ConvTranspose and Gemm."""


def is_taken(decode: ir.Node, operators: str = "*", nodes: str = "*") -> bool:
    """Return whether some operator takes codes, moved or not, and not as its bias.

    Args:
        decode: what decodes the codes.
        operators: patterns of the types of operators.
        nodes: patterns of their names, see :func:`qgraph.transforms.base.selects`.
    """
    if operators == nodes == "*":
        return True
    users: list[ir.Node] = []
    pending = [decode]
    while pending:
        consumers = [use.node for use in pending.pop().outputs[0].uses() if use.idx != BIAS]
        pending += [node for node in consumers if node.op_type in MOVES]
        users += consumers
    patterns = operators.split("|")
    return any(
        any(fnmatchcase(user.op_type, each) for each in patterns) and selects(nodes, label(user))
        for user in users
    )

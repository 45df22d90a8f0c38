"""Where the sign of a zero would be seen that two models do not share.

Regions may be equal but for the sign of zero. That is equality for whatever follows, unless it
tells the two zeros apart: a division by them, a power, a look at the bits, or an operator that is
not known here.

Whether operators meet zeros of both signs, of which ONNX leaves open which one they take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.scopes import graphs_of, operands
from qgraph.proof.matching.normalise import inner_results, live_nodes
from qgraph.proof.matching.visible import distinguishes_signed_zeros, forgets


@dataclass(frozen=True, eq=False)
class Step:
    """A region of one model, as far as zeros go.

    Attributes:
        entry: the value that it begins with.
        exit: the value that it ends in.
        nodes: what lies between.
        tells_apart: whether it makes different values of -0 and +0.
    """

    entry: ir.Value
    exit: ir.Value
    nodes: frozenset[ir.Node]
    tells_apart: bool


def sightings(
    nodes: Sequence[ir.Node],
    outputs: Iterable[ir.Value],
    starts: Collection[ir.Value],
    steps: Sequence[Step],
) -> list[tuple[ir.Node, str]]:
    """Return the nodes of a model that see the sign of zeros, and how.

    Args:
        nodes: of the model, also those in graphs of attributes, each graph in order.
        outputs: of the model.
        starts: values that may be zeros of the other sign in the other model.
        steps: regions, which are looked at as a whole.
    """
    if not starts:
        return []
    live = live_nodes(outputs)
    inside = {node for step in steps for node in step.nodes if _serves_only(node, step)}
    spread = set(starts)
    found: dict[ir.Node, str] = {}
    before = 0
    while len(spread) > before:
        before = len(spread)
        for node in nodes:
            touched = [
                value for value in (*operands(node), *inner_results(node)) if value in spread
            ]
            if node not in live or not touched:
                continue
            if node not in inside and distinguishes_signed_zeros(node, touched):
                found[node] = (
                    f"{node.op_type} sees the sign of zeros, which the models do not share"
                )
            if not forgets(node):
                spread.update(_beyond(node))
        for step in steps:
            node_after = step.exit.producer()
            if step.tells_apart and step.entry in spread and node_after is not None:
                found[node_after] = "it tells zeros apart whose signs the models do not share"
    return list(found.items())


def _serves_only(node: ir.Node, step: Step) -> bool:
    """Return whether nothing outside of a region uses what a node in it computes."""
    values = [value for value in node.outputs if value is not step.exit]
    return not any(
        value.is_graph_output() or not step.nodes.issuperset(value.consumers()) for value in values
    )


def _beyond(node: ir.Node) -> list[ir.Value]:
    """Return what may differ in the sign of zero because an operand of ``node`` does."""
    values = [v for v in node.outputs if v.dtype is None or v.dtype.is_floating_point()]
    return values + [value for graph in graphs_of(node) for value in graph.inputs]


_PICKS = frozenset({"Clip", "Max", "Min", "Relu"})


def meets_both_zeros(node: ir.Node, known: Mapping[ir.Value, Any]) -> bool:
    """Return whether a node takes one of two zeros of different signs.

    Args:
        node: any node.
        known: its operands.
    """
    if node.domain != "" or node.op_type not in _PICKS:
        return False
    arrays = [np.asarray(known[value]) for value in node.inputs if value is not None]
    if any(array.dtype.kind in "iub" for array in arrays):
        return False
    if node.op_type == "Relu":
        arrays.append(np.zeros((), arrays[0].dtype))
    zeros = [array == 0 for array in arrays]
    signs = [np.signbit(array.astype(np.float32)) for array in arrays]
    minus = [np.asarray(zero & sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    plus = [np.asarray(zero & ~sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    return any(
        (minus[one] and plus[other]) or (plus[one] and minus[other])
        for one in range(len(arrays))
        for other in range(one)
    )

"""Where the sign of a zero would be seen that two models do not share.

Regions may be equal but for the sign of zero. That is equality for whatever follows, unless it
tells the two zeros apart: a division by them, a power, a look at the bits, or an operator that is
not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.graph.scopes import subgraphs
from qgraph.matching.liveness import inner_results, live_nodes, used
from qgraph.matching.zero_sight import forgets, sees


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
            touched = [value for value in (*used(node), *inner_results(node)) if value in spread]
            if node not in live or not touched:
                continue
            if node not in inside and sees(node, touched):
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
    for attribute in node.attributes.values():
        for graph in subgraphs(attribute):
            values = [*values, *graph.inputs]
    return values

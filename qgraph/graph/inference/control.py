"""Operators that run graphs: what holds of their results whichever branch or round made them.

The graphs of If see the values around them. The state that a Loop or a Scan carries is assumed to
have the form that it begins with; if a round gives it another form, only what both forms share is
assumed, and so on until a round keeps what is assumed. Then it holds in all rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.inference.facts import UNKNOWN, Fact, joined
from qgraph.graph.inference.rules import Call, Unknown

Body: TypeAlias = Callable[[ir.Graph, Sequence[Fact]], list[Fact]]
"""Infers a graph from facts of its inputs; returns those of its outputs."""

_ROUNDS = 4


def control(call: Call, body: Body) -> list[Fact]:
    """Return what is known of the results of an operator that runs graphs."""
    if call.node.op_type == "If":
        branches = [body(_graph(call, name), ()) for name in ("then_branch", "else_branch")]
        return [joined(a, b) for a, b in zip(*branches, strict=True)]
    graph = _graph(call, "body")
    if call.node.op_type == "Loop":
        first = [Fact(ir.DataType.INT64, ()), Fact(ir.DataType.BOOL, ())]
        start = [_form(call.optional(place)) for place in range(2, len(call.operands))]
        state, others = _settled(body, graph, first, start, (), 1)
        return [*state, *(Fact(other.dtype) for other in others)]
    if call.node.op_type == "Scan" and call.version >= 9:
        scanned = call.integer("num_scan_inputs", 0)
        carried = len(call.operands) - scanned
        start = [_form(call[place]) for place in range(carried)]
        parts = [Fact(call[place].dtype) for place in range(carried, len(call.operands))]
        state, others = _settled(body, graph, (), start, parts, 0)
        return [*state, *(Fact(other.dtype) for other in others)]
    # of other operators the graphs are inferred too, for what lies in them
    for attribute in call.node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
            inner = attribute.as_graph()
            body(inner, [UNKNOWN] * len(inner.inputs))
    raise Unknown


def _settled(
    body: Body,
    graph: ir.Graph,
    before: Sequence[Fact],
    start: Sequence[Fact],
    after: Sequence[Fact],
    skipped: int,
) -> tuple[list[Fact], list[Fact]]:
    """Return what all rounds keep of the state, and what they know of their other results."""
    state = list(start)
    for left in reversed(range(_ROUNDS)):
        results = body(graph, [*before, *state, *after])[skipped:]
        if len(results) < len(state):
            body(graph, [UNKNOWN] * len(graph.inputs))  # forget what was assumed
            raise Unknown
        common = [joined(a, _form(b)) for a, b in zip(state, results, strict=False)]
        if list(map(repr, common)) == list(map(repr, state)):
            return state, results[len(state) :]
        state = common if left > 1 else [UNKNOWN] * len(state)
    raise Unknown


def _form(fact: Fact) -> Fact:
    return Fact(fact.dtype, fact.shape)


def _graph(call: Call, name: str) -> ir.Graph:
    attribute = call.node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type is not ir.AttributeType.GRAPH:
        raise Unknown
    return attribute.as_graph()

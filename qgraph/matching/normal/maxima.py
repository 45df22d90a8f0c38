"""Maxima before functions that never decrease: ``max(f(x)) -> f(max(x))``.

    MaxPool, GlobalMaxPool, ReduceMax, ReduceMin of f(x)     -> f of it
    Max(f(a), f(b)), Min(f(a), f(b))                         -> f(Max(a, b)), f(Min(a, b))

``f`` is one node or several, with parameters that do not vary within a window. That it never
decreases is proved over all inputs by :mod:`qgraph.proof.monotone`. Equal in values: of zeros of
both signs, ONNX leaves open which one is the largest; and what a maximum makes of NaN, which the
condition on NaN excludes. From codes to numbers without -0 the results are equal bit for bit.

The padding of a MaxPool is no element: every window has to contain an element of the data. So has
a reduction: the maximum of nothing is the least number, whatever ``f`` makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.graph.topology import gates
from qgraph.matching.elementwise import operands
from qgraph.matching.normal.axes import reduced_axes
from qgraph.matching.normal.elementwise import data_of, is_on_elements, keeps_sizes
from qgraph.matching.normal.order import Order, order_of
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import Sizes, are_equal, has_elements, sizes_of
from qgraph.matching.normal.windows import is_never_empty

_MOST_NODES = 32
_MOST_GATES = 12


def hoist_maximum(graph: Rewriter, node: ir.Node) -> bool:
    """Take the maximum of the data of a function instead of its results."""
    axes = _axes(graph, node)
    value = node.inputs[0] if node.inputs else None
    sizes = None if value is None else sizes_of(value)
    if axes is None or value is None or sizes is None or graph.known.has(value):
        return False
    chain = gates(value, lambda v: operands(v, graph.known.has))[1:_MOST_GATES]
    for start in chain:
        nodes = _between(graph, start, value)
        if nodes is None:
            return False
        order = order_of(graph, nodes, start, value, axes, len(sizes))
        if order is None or not _may_exchange(graph, node, order):
            continue
        result = sizes_of(node.outputs[0])
        inputs = [start, *node.inputs[1:]]
        maximum = graph.node(
            node,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            dtype=start.dtype,
            sizes=result,
        )
        return graph.replace(
            node.outputs[0], _copied(graph, nodes, {start: maximum}, value, node, result)
        )
    return False


def join_maximum(graph: Rewriter, node: ir.Node) -> bool:
    """Take the maximum of two data of one function instead of that of its results."""
    if node.domain or node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return False
    pair = [value for value in node.inputs if value is not None and not graph.known.has(value)]
    inner = [value.producer() for value in pair]
    if len(pair) != 2 or inner[0] is None or inner[1] is None or pair[0] is pair[1]:
        return False
    found = common_function(graph, [inner[0], inner[1]])
    sizes = sizes_of(pair[0])
    if found is None or sizes is None or not are_equal(sizes, sizes_of(pair[1]) or (None,)):
        return False
    order = order_of(graph, [inner[0]], found[0], pair[0], (), len(sizes))
    if order is None or not _may_exchange(graph, node, order):
        return False
    maximum = graph.node(node, node.op_type, found, dtype=found[0].dtype, sizes=sizes)
    new = _copied(graph, [inner[0]], {found[0]: maximum}, pair[0], node, sizes)
    return graph.replace(node.outputs[0], new)


def common_function(graph: Rewriter, nodes: Sequence[ir.Node]) -> list[ir.Value] | None:
    """Return the data of nodes that do the same with the same parameters; None for others."""
    first = nodes[0]
    data: list[ir.Value] = []
    for node in nodes:
        own = data_of(graph, node)
        if not is_on_elements(node) or len(own) != 1 or node.inputs[0] is not own[0]:
            return None
        if node.op_identifier() != first.op_identifier() or len(node.inputs) != len(first.inputs):
            return None
        if {k: a.value for k, a in node.attributes.items()} != {
            k: a.value for k, a in first.attributes.items()
        }:
            return None
        for one, other in zip(node.inputs[1:], first.inputs[1:], strict=True):
            if one is not other and not _are_equal_constants(graph, one, other):
                return None
        if own[0].dtype is None or own[0].dtype is not data_of(graph, first)[0].dtype:
            return None
        if not keeps_sizes(graph, node, own[0]):
            return None
        data += own
    return data


def _are_equal_constants(graph: Rewriter, a: ir.Value | None, b: ir.Value | None) -> bool:
    one, other = graph.array(a), graph.array(b)
    if one is None or other is None:
        return False
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _may_exchange(graph: Rewriter, node: ir.Node, order: Order) -> bool:
    """Return whether the exchange keeps what has to be kept; take note of what it loses."""
    if order.keeps_bits:
        return True
    if not graph.may_lose_zero_sign(node.outputs[0]):
        return False
    graph.lose_zero_sign()
    graph.exchanged += 1
    return True


def _axes(graph: Rewriter, node: ir.Node) -> list[int] | None:
    """Return the axes along which a node takes maxima; None for other nodes."""
    if node.domain or not node.inputs or node.inputs[0] is None:
        return None
    sizes = sizes_of(node.inputs[0])
    if sizes is None or any(output.uses() for output in node.outputs[1:]):
        return None
    if node.op_type == "GlobalMaxPool":
        spatial = list(range(2, len(sizes)))
        return spatial if has_elements(sizes, spatial) else None
    if node.op_type == "MaxPool":
        if any(output.name for output in node.outputs[1:]) or not is_never_empty(node, sizes):
            return None
        return list(range(2, len(sizes)))
    if node.op_type not in ("ReduceMax", "ReduceMin"):
        return None
    axes = reduced_axes(graph, node, len(sizes))
    if not node.attributes.get_int("keepdims", 1):
        return None
    return axes if axes and has_elements(sizes, axes) else None


def _between(graph: Rewriter, start: ir.Value, end: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that make ``end`` of ``start``, operands first, if none enlarges it."""
    found: dict[ir.Node, None] = {}
    stack: list[tuple[ir.Value, bool]] = [(end, False)]
    while stack and len(found) < _MOST_NODES:
        value, ready = stack.pop()
        node = value.producer()
        if value is start or node is None or node in found:
            continue
        if not is_on_elements(node):
            return None
        if ready:
            found[node] = None
            continue
        stack.append((value, True))
        stack += [(operand, False) for operand in operands(value, graph.known.has)]
    one, other = sizes_of(start), sizes_of(end)
    if one is None or other is None or len(one) != len(other) or len(found) >= _MOST_NODES:
        return None
    if not are_equal(one, other) and not all(
        keeps_sizes(graph, node, data) for node in found for data in data_of(graph, node)
    ):
        return None
    return list(found)


def _copied(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    values: dict[ir.Value, ir.Value],
    end: ir.Value,
    before: ir.Node,
    sizes: Sizes | None,
) -> ir.Value:
    """Return ``end`` as copies of nodes compute it of other values."""
    for node in nodes:
        inputs = [value if value is None else values.get(value, value) for value in node.inputs]
        values[node.outputs[0]] = graph.node(
            before,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            domain=node.domain,
            of=node,
            dtype=node.outputs[0].dtype,
            sizes=sizes,
        )
    return values[end]

"""Movements before operators on single elements: ``M(f(a, b)) -> f(M(a), M(b))``.

Exact to the bit, NaN and signs of zeros included; see :mod:`qgraph.matching.normal.elementwise`.
Movements that meet become one:

    Transpose(Transpose(x, p), q)  -> Transpose(x, p[q])       the identity is removed
    Reshape(Reshape(x, s), t)      -> Reshape(x, t)
    Gather(Gather(x, i), j)        -> Gather(x, i[j])           along one axis
    Transpose(Gather(x, i))        -> Gather(Transpose(x), i)   also of Concat

Every movement is written in one way; a Split becomes one Gather for each part.
"""

from __future__ import annotations

import onnx_ir as ir

from qgraph.matching.normal.elementwise import data_of, is_on_elements, keeps_sizes, moved
from qgraph.matching.normal.movements import (
    Movement,
    Permutation,
    Rearrangement,
    Reshaping,
    Selection,
)
from qgraph.matching.normal.reading import is_written, read, write
from qgraph.matching.normal.rewriter import Rewriter
from qgraph.matching.normal.sizes import sizes_of


def write_movements(graph: Rewriter, node: ir.Node) -> bool:
    """Write a node that moves elements as the nodes of its movements."""
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    if not used or is_written(graph, node) or any(map(graph.known.has, used)):
        return False
    moves = [read(graph, value) for value in used]
    if any(move is None for move in moves):
        return False
    for value, move in zip(used, moves, strict=True):
        if move is None:
            continue
        result = move.data
        for step in move.steps:
            result = write(graph, step, result, node)
        graph.replace(value, result)
    return True


def join_movements(graph: Rewriter, node: ir.Node) -> bool:
    """Write two movements that follow each other as one, or in their order."""
    if not is_written(graph, node) or node.inputs[0] is None:
        return False
    last: Movement = graph.movements[node]
    before = read(graph, node.inputs[0])
    if before is None or len(before.steps) != 1:
        return _permute_concat(graph, node, last)
    (first,) = before.steps
    steps: list[Movement]
    match first, last:
        case Permutation(), Permutation():
            steps = [last.after(first)]
        case Reshaping(), Reshaping():
            steps = [Reshaping(first.source, last.target)]
            if Reshaping(first.source, last.target).shape is None:
                return False
        case Selection(), Selection() if first.axis == last.axis:
            steps = [last.after(first)]
        case Selection(), Selection() if last.axis < first.axis:
            steps = [last, first]
        case Selection(), Permutation():
            steps = [last, Selection(last.order.index(first.axis), first.chosen)]
        case _:
            return False
    result = before.data
    for step in steps:
        result = write(graph, step, result, node)
    return graph.replace(node.outputs[0], result)


def hoist(graph: Rewriter, node: ir.Node) -> bool:
    """Move operands instead of the result of an operator on single elements."""
    if not is_written(graph, node) or node.inputs[0] is None:
        return False
    movement: Movement = graph.movements[node]
    value = node.inputs[0]
    inner = value.producer()
    if inner is None or graph.known.has(value) or not is_on_elements(inner):
        return False
    sizes = sizes_of(value)
    data = data_of(graph, inner)
    if not data or (isinstance(movement, Rearrangement) and len(data) > 1):
        return False
    if isinstance(movement, Permutation):
        rank = len(movement.order)
        if sizes is None and len(data) == 1 and not _has_ranks(graph, inner):
            sizes = (None,) * rank
        ranks = {rank if sizes_of(x) is None else len(sizes_of(x) or ()) for x in data}
        if sizes is None or len(sizes) != rank or ranks != {rank}:
            return False
        if len(data) > 1 and any(sizes_of(x) is None for x in data):
            return False
    elif sizes is None or not all(keeps_sizes(graph, inner, x) for x in data):
        return False
    new = moved(
        graph,
        inner,
        node,
        lambda x: write(graph, movement, x, node),
        lambda array: movement.parameter(array, sizes),
        sizes,
        sizes_of(node.outputs[0]) or movement.result(sizes),
    )
    return new is not None and graph.replace(node.outputs[0], new)


def _has_ranks(graph: Rewriter, node: ir.Node) -> bool:
    """Return whether a constant of a node has dimensions, which might enlarge the data."""
    arrays = [graph.array(v) for v in node.inputs if v is not None and graph.known.has(v)]
    return any(array is None or array.ndim > 0 for array in arrays)


def _permute_concat(graph: Rewriter, node: ir.Node, last: Movement) -> bool:
    value = node.inputs[0]
    inner = None if value is None else value.producer()
    if not isinstance(last, Permutation) or inner is None or graph.known.has(inner.outputs[0]):
        return False
    if (inner.domain, inner.op_type) != ("", "Concat") or "axis" not in inner.attributes:
        return False
    rank, axis = len(last.order), inner.attributes["axis"].as_int()
    if not -rank <= axis < rank:
        return False
    parts = [write(graph, last, part, node) for part in inner.inputs if part is not None]
    new = graph.node(
        node,
        "Concat",
        parts,
        {"axis": last.order.index(axis % rank)},
        of=inner,
        dtype=inner.outputs[0].dtype,
        sizes=sizes_of(node.outputs[0]),
    )
    return graph.replace(node.outputs[0], new)

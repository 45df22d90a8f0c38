"""Elementwise neighbourhoods of a graph as expressions, and the regions that lie in them.

Every node that computes each element from one element of its inputs is lowered to primitives once;
what any other node computes is a variable. A quantizer, however many nodes spell it, is then a
part of one expression between two values of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from qgraph.constants import constant_tensor
from qgraph.dialects.definition import half_arguments
from qgraph.edit import HALF_TYPES
from qgraph.errors import OperatorError
from qgraph.folding import constant_expression
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY
from qgraph.proof.cone import Shape, lower_node, parameter_array
from qgraph.proof.expression import FLOAT, INPUT, Builder, Expr, Undecidable

_LARGEST_CONSTANT = 1 << 22
"""Elements up to which an operand of an elementwise operator is looked at."""
_MOST_NODES = 800
"""Nodes of a region: two for each of the binades of a minifloat of 8 exponent bits, and some."""
_MOST_FORWARD = 40
"""Nodes that are tried behind the core of a quantizer."""

_MOST_PARAMETERS = 1 << 16

_COMMUTATIVE = ("Add", "Mul", "Max", "Min")


class Terrain:
    """The elementwise nodes of one graph.

    Args:
        nodes: all nodes of the graph, in topological order, those of subgraphs included.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._builder = Builder()
        self._expressions: dict[ir.Value, Expr] = {}
        self._values: dict[int, list[ir.Value]] = {}
        self._shapes: dict[ir.Value, Shape] = {}
        self._order: dict[ir.Node, int] = {}
        for node in nodes:
            self._lower(node)

    def has(self, node: ir.Node) -> bool:
        """Return whether ``node`` is elementwise and was lowered."""
        return node in self._order

    def expression(self, value: ir.Value) -> Expr | None:
        """Return the expression of an output of an elementwise node."""
        return self._expressions.get(value) if value.producer() in self._order else None

    def values(self, expression: Expr) -> Iterator[ir.Value]:
        """Yield the values that have an expression, those computed last first."""
        yield from reversed(self._values.get(id(expression), []))

    def exits(self, node: ir.Node) -> list[ir.Value]:
        """Return the values through which everything computed from ``node`` goes, nearest first.

        Only elementwise nodes lie between ``node`` and them.
        """
        found = [node.outputs[0]]
        waiting: set[ir.Node] = set()
        value = node.outputs[0]
        for _ in range(_MOST_FORWARD):
            users = set(value.consumers())
            if value.is_graph_output() or not users or not users <= self._order.keys():
                break
            if any(user.graph is not node.graph for user in users):
                break
            waiting |= users
            following = min(waiting, key=self._order.__getitem__)
            waiting.discard(following)
            value = following.outputs[0]
            if not waiting:
                found.append(value)
        return found

    def region(self, x: ir.Value, y: ir.Value) -> tuple[ir.Node, ...] | None:
        """Return the nodes that compute ``y`` from ``x`` and constants, and serve nothing else."""
        nodes: dict[ir.Node, None] = {}
        pending, reached = [y], False
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or node not in self._order or len(nodes) > _MOST_NODES:
                return None
            if node in nodes:
                continue
            if node.graph is not y.producer().graph:  # type: ignore[union-attr]
                return None
            nodes[node] = None
            for operand in node.inputs:
                if operand is x:
                    reached = True
                elif operand is not None and constant_expression(operand) is None:
                    pending.append(operand)
        for node in nodes:
            value = node.outputs[0]
            if value is not y and (
                value.is_graph_output() or not all(user in nodes for user in value.consumers())
            ):
                return None
        return tuple(sorted(nodes, key=self._order.__getitem__)) if reached else None

    def _lower(self, node: ir.Node) -> None:
        if len(node.outputs) != 1 or not _is_elementwise(node) or _has_many_parameters(node):
            return
        known = {}
        for place in self._data_places(node):
            value = node.inputs[place]
            if value is not None:
                known[value] = self._of(value)
        # The longest shape is that of the data, unless parameters enlarge it, which none should.
        sizes = max((self._shapes.get(value, ()) for value in known), key=len, default=())
        try:
            if any(value.dtype in HALF_TYPES for value in node.inputs if value is not None):
                result = self._lower_half(node, known, sizes)
            else:
                result = lower_node(node, known, sizes, self._builder)
        except (Undecidable, OperatorError, ValueError):
            return
        output = node.outputs[0]
        self._order[node] = len(self._order)
        self._shapes[output] = _sizes(output) or sizes
        self._expressions[output] = result
        self._values.setdefault(id(result), []).append(output)

    def _lower_half(self, node: ir.Node, known: dict[ir.Value, Expr], sizes: Shape) -> Expr:
        """Lower a node on data of 16 bits as if it had 32: enough to see what is meant."""
        operator = operator_of(node)
        if operator is None:
            return lower_node(node, known, sizes, self._builder)
        operands = [
            known.get(value) or self._builder.constant(parameter_array(node, value, sizes))
            if value is not None
            else None
            for value in operator.schema.values(node)
        ]
        arguments = half_arguments(operator, node)
        result: Expr = operator.define(self._builder, *operands, **arguments)
        return result

    def _of(self, value: ir.Value) -> Expr:
        found = self._expressions.get(value)
        if found is None:
            kind = None if value.dtype in HALF_TYPES else value.dtype
            found = Expr(INPUT, dtype=FLOAT if kind is None else kind.name)
            self._expressions[value] = found
            self._shapes[value] = _sizes(value)
            self._values.setdefault(id(found), []).append(value)
        return found

    @staticmethod
    def _data_places(node: ir.Node) -> list[int]:
        """Return which inputs of ``node`` are data; of constants, the one that is rounded."""
        inputs = [value for value in node.inputs if value is not None]
        if operator_of(node) is not None and node.op_type != "Clip":
            return [0]
        varying = [i for i, value in enumerate(node.inputs) if _varies(value)]
        if varying or not inputs:
            return varying
        if node.op_type in _COMMUTATIVE:
            sizes = [0 if value.shape is None else _size(value) for value in inputs]
            return [max(range(len(sizes)), key=sizes.__getitem__)]
        return [0]


def _has_many_parameters(node: ir.Node) -> bool:
    """Return whether a parameter has a value for each of very many blocks, as those of weights.

    Such a node is read by itself: its parameters are copied for each expression they occur in.
    """
    tensors = [constant_tensor(value) for value in node.inputs[1:]]
    return any(tensor is not None and tensor.size > _MOST_PARAMETERS for tensor in tensors)


def _is_elementwise(node: ir.Node) -> bool:
    try:
        if operator_of(node) is not None:
            return True
    except OperatorError:
        return False
    return node.domain == "" and node.op_type in NUMPY and node.op_type != "Gather"


def _varies(value: ir.Value | None) -> bool:
    if value is None:
        return False
    return _size(value) > _LARGEST_CONSTANT or constant_expression(value) is None


def _size(value: ir.Value) -> int:
    return math.prod(size or 1 for size in _sizes(value))


def _sizes(value: ir.Value) -> Shape:
    shape = () if value.shape is None else tuple(value.shape)
    return tuple(size if isinstance(size, int) else None for size in shape)

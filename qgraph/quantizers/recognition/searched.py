"""Select the nodes among which quantizers of several nodes are searched.

A quantizer of one node, or a plain Q/DQ pair, is skipped with all connected nodes if none of these
can be part of a larger quantizer. Its scale divides the data and multiplies the codes, and no
formula of a quantizer has another factor, a limit on one side only, or a second rounding after a
product and a quotient. So Neg, Relu, other quantizers, sums of data, and products of what two
quantizers give are not part of it. If only such operators are connected to it, nothing is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_stream
from qgraph.graph.schema import QONNX_DOMAINS
from qgraph.graph.scopes import input_of, producer_of
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import is_defined

_UNCHANGING = ("Abs", "Neg", "Relu")
"""Operators on data that have no constant."""

_QUANTS = ("Quant", "IntQuant")


def is_elementwise(node: ir.Node) -> bool:
    """Return whether an operator computes each element from one element of its inputs."""
    is_primitive = node.domain == "" and node.op_type in NUMPY.keys() - {"Gather"}
    return is_primitive or is_defined(node)


class Elementwise:
    """Cache of :func:`is_elementwise`, by the operator and the number of inputs of a node."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], bool] = {}

    def __call__(self, node: ir.Node) -> bool:
        """Return whether a node is elementwise, as :func:`is_elementwise` does."""
        key = node.domain, node.op_type, len(node.inputs)
        if key not in self._known:
            self._known[key] = is_elementwise(node)
        return self._known[key]


def searched(nodes: Iterable[ir.Node], alone: Container[str]) -> list[ir.Node]:
    """Return the elementwise nodes that a quantizer of several nodes may contain, in their order.

    The nodes are all of a graph, in topological order, those of subgraphs included; operators
    ``alone`` are quantizers by themselves.
    """
    connects = Elementwise()
    elementwise = [node for node in nodes if connects(node)]
    separate = set(_separate(elementwise))
    starts = [
        node
        for node in elementwise
        if node not in separate
        and not (node.op_type in alone and not any(map(connects, neighbours(node))))
    ]
    reached = connected(starts, connects)
    return [node for node in elementwise if node in reached]


def _separate(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield nodes that cannot extend a quantizer next to them, and quantizers without others."""
    for node in nodes:
        if node.op_type == "DequantizeLinear":
            yield from _plain_pair(node)
        elif node.domain in QONNX_DOMAINS:
            if node.op_type in _QUANTS and _has_scale(node):
                yield node
        elif not node.domain and not _is_code(node.inputs[0]):
            is_sum = node.op_type == "Add" and all(map(_is_data, node.inputs))
            is_product = node.op_type == "Mul" and all(map(_is_decoded, node.inputs))
            if is_sum or is_product or node.op_type in _UNCHANGING:
                yield node


def _plain_pair(node: ir.Node) -> tuple[ir.Node, ...]:
    """Return the QuantizeLinear, the Clip of its codes and the DequantizeLinear that end here.

    Nothing else uses the codes. Of constant codes, there is no QuantizeLinear.
    """
    if not _has_scale(node):
        return ()
    pair: tuple[ir.Node, ...] = (node,)
    before = producer_of(node.inputs[0])
    if before is not None and before.op_type == "Clip":
        pair = before, node
        before = producer_of(before.inputs[0])
    if before is not None:
        if before.op_type != "QuantizeLinear" or not _has_scale(before):
            return ()
        pair = before, *pair
    codes = [each.outputs[0] for each in pair[:-1]]
    return pair if all(_is_code(value) and len(value.uses()) == 1 for value in codes) else ()


def _has_scale(node: ir.Node) -> bool:
    """Return whether the scale of a quantizer is a constant other than 1."""
    scale = constant_expression(input_of(node, 1))
    if scale is None:
        return False
    return bool((scale != 1).any() if scale.shape else scale != 1)


def _is_code(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_integer()


def _is_decoded(value: ir.Value | None) -> bool:
    return producer_of(value, "DequantizeLinear") is not None


def _is_data(value: ir.Value | None) -> bool:
    return value is not None and constant_expression(value) is None


def connected_to_constants(
    nodes: Sequence[ir.Node], connects: Callable[[ir.Node], bool]
) -> list[ir.Node]:
    """Return the nodes connected to a node whose first input is constant, in order.

    A quantizer consists of connected elementwise nodes, or of nodes that are quantizers themselves.
    If none of the connected nodes has a constant as its first input, none of them quantizes a
    constant.
    """
    reached = connected([n for n in nodes if _takes_constant(n) and connects(n)], connects)
    return [node for node in nodes if node in reached]


def connected(starts: Sequence[ir.Node], connects: Callable[[ir.Node], bool]) -> set[ir.Node]:
    """Return some nodes and all nodes connected to them."""
    pending = list(starts)
    reached = set(pending)
    while pending:
        for node in neighbours(pending.pop()):
            if node not in reached and connects(node):
                reached.add(node)
                pending.append(node)
    return reached


def _takes_constant(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    return constant_stream(x) is not None or constant_expression(x) is not None


def neighbours(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the producers of a node's operands and the users of its results."""
    for value in node.inputs:
        producer = producer_of(value)
        if producer is not None:
            yield producer
    for value in node.outputs:
        yield from value.consumers()


_ROUNDING = ("Round", "Floor", "Ceil")
_BETWEEN = ("Add", "Cast", "Div", "Mul", "Identity")
_FURTHEST = 6
"""Maximum number of operators between the rounding and the offset."""


def wraps_around(node: ir.Node) -> bool:
    """Return whether a node is the Floor of a quantizer of HGQ2 whose codes wrap around.

        v = round(x * 2**f) / 2**f
        a = v + offset
        y = a - floor(a / m) * m - offset           m = 2**b, the number of codes by their step

    Source: fixed-point quantizers of ``quantizers`` 1.2, overflow mode WRAP, in Keras' export.
    """
    quotient = producer_of(node.inputs[0], "Div") if _is(node, "Floor") else None
    if quotient is None:
        return False
    a, m = quotient.inputs
    product = _user(node.outputs[0], "Mul")
    if product is None or not {node.outputs[0], m} <= set(product.inputs):
        return False
    rest = _user(product.outputs[0], "Sub")
    if rest is None or list(rest.inputs) != [a, product.outputs[0]]:
        return False
    moved, back = producer_of(a, "Add"), _user(rest.outputs[0], "Sub")
    if moved is None or back is None or back.inputs[1] not in moved.inputs:
        return False
    return any(_is_rounded(value) for value in moved.inputs if value is not back.inputs[1])


def _is_rounded(value: ir.Value | None) -> bool:
    """Return whether a value is rounded by Round, Floor or Ceil, followed by scaling and sums."""
    values = [value]
    for _ in range(_FURTHEST):
        makers = [maker for each in values if each is not None and (maker := each.producer())]
        if any(_is(maker, *_ROUNDING) for maker in makers):
            return True
        values = [each for maker in makers if _is(maker, *_BETWEEN) for each in maker.inputs]
    return False


def _is(node: ir.Node, *names: str) -> bool:
    return not node.domain and node.op_type in names


def _user(value: ir.Value, name: str) -> ir.Node | None:
    users = value.consumers()
    return users[0] if len(users) == 1 and _is(users[0], name) else None

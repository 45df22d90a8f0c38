"""Select nodes that quantizers of several nodes may consist of, and lower them to expressions.

**Selected nodes.** A quantizer of one node, or a plain Q/DQ pair, is skipped with all connected
nodes if none of these can be part of a larger quantizer. Its scale divides the data and multiplies
the codes, and no formula of a quantizer has another factor, a limit on one side only, or a second
rounding after a product and a quotient. So Neg, Relu, other quantizers, sums of data, and products
of what two quantizers give are not part of it. If only such operators are connected to it, nothing
is searched.

**Expressions.** Each elementwise node is lowered to primitives once; the result of any other node
is a variable. Then a quantizer of any number of nodes is a part of one expression, between two
values of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of, constant_expression, constant_stream, constant_tensor
from qgraph.graph.edit import HALF_TYPES
from qgraph.graph.schema import QONNX_DOMAINS
from qgraph.graph.scopes import input_of, producer_of
from qgraph.graph.sizes import fixed_sizes
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import is_defined, operator_of
from qgraph.proof.functions.expression import CONSTANT, FLOAT, INPUT, Builder, Expr
from qgraph.proof.functions.lowering import (
    Form,
    Forms,
    Shape,
    Template,
    lower_node,
    parameter_array,
)
from qgraph.proof.functions.pair import AnyScale
from qgraph.reasons import Undecidable

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
    return scale is not None and bool((scale != 1).any())


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
    yield from filter(None, map(producer_of, node.inputs))
    for value in node.outputs:
        yield from value.consumers()


_LARGEST_CONSTANT = 1 << 22
"""Maximum number of elements of a constant operand that is a parameter, not data."""
_MOST_NODES = 800
"""Maximum number of nodes of a region: two per binade of a minifloat of 8 exponent bits, and
more."""
_MOST_PARAMETERS = 1 << 16

_COMMUTATIVE = ("Add", "Mul", "Max", "Min")


class UseDefGraph:
    """Elementwise nodes of one graph with their expressions.

    Args:
        nodes: the nodes, in topological order.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._builder = Builder()
        self._forms = Forms()
        self._templates: dict[Form, tuple[Template, list[Expr]]] = {}
        self._scales = AnyScale(self._builder, self._forms)
        self._fixed: dict[ir.Value, bool] = {}
        self._large: dict[ir.Value | None, bool] = {}
        self._expressions: dict[ir.Value, Expr] = {}
        self._values: dict[int, list[ir.Value]] = {}
        self._shapes: dict[ir.Value, Shape] = {}
        self._order: dict[ir.Node, int] = {}
        for node in nodes:
            self._lower(node)

    @cached_property
    def has_signs(self) -> bool:
        """Whether any node computes a sign."""
        return self._builder.uses("Sign")

    @property
    def nodes(self) -> Iterable[ir.Node]:
        """The nodes that were lowered, in topological order; each has one output."""
        return self._order

    def expression(self, value: ir.Value) -> Expr | None:
        """Return the expression of an output of an elementwise node."""
        return self._expressions.get(value) if value.producer() in self._order else None

    def values(self, expression: Expr) -> Iterator[ir.Value]:
        """Yield the values that have an expression, in reverse order of computation."""
        yield from reversed(self._values.get(id(expression), []))

    def region(self, x: ir.Value, y: ir.Value) -> tuple[ir.Node, ...] | None:
        """Return the nodes that compute ``y`` from ``x`` and constants and have no other users."""
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
                elif operand is not None and not self._is_fixed(operand):
                    pending.append(operand)
        for node in nodes:
            value = node.outputs[0]
            if value is not y and (
                value.is_graph_output() or not all(user in nodes for user in value.consumers())
            ):
                return None
        return tuple(sorted(nodes, key=self._order.__getitem__)) if reached else None

    def _lower(self, node: ir.Node) -> None:
        # The parameters of a node are copied for each expression they occur in: one with very many,
        # as for the blocks of weights, is read by itself.
        if len(node.outputs) != 1 or any(map(self._has_many_elements, node.inputs[1:])):
            return
        data = (node.inputs[index] for index in self._data_indices(node))
        expressions = {value: self._of(value) for value in data if value is not None}
        # The longest shape is that of the data, unless parameters enlarge it, which none should.
        sizes = max((self._shapes.get(value, ()) for value in expressions), key=len, default=())
        try:
            result = self._lowered(node, expressions, sizes)
        except (Undecidable, OperatorError, ValueError):
            return
        output = node.outputs[0]
        self._order[node] = len(self._order)
        self._shapes[output] = fixed_sizes(output) or sizes
        self._expressions[output] = result
        self._values.setdefault(id(result), []).append(output)

    def _lowered(self, node: ir.Node, expressions: dict[ir.Value, Expr], sizes: Shape) -> Expr:
        """Return the expression of a node; nodes of one form are lowered once."""
        operands = list(dict.fromkeys(expressions.values()))
        places = {
            value: (operands.index(e), e.dtype, e.shape, e.op == CONSTANT)
            for value, e in expressions.items()
        }
        form = self._forms.of(node, places)
        key = None if form is None else (*form, sizes)
        if key is not None and key in self._templates:
            template, scales = self._templates[key]
            return template.over(self._builder, operands + scales)
        if any(value.dtype in HALF_TYPES for value in node.inputs if value is not None):
            result = self._lower_half(node, expressions, sizes)
        elif (shared := self._scales.shared(node, expressions, sizes)) is not None:
            template, arguments = shared
            if key is not None:
                self._templates[key] = template, arguments[1:]
            return template.over(self._builder, arguments)
        else:
            result = lower_node(node, expressions, sizes, self._builder)
        # Of several steps, one may be what another operand is: Clip(x, lo, Max(x, lo)).
        one_step = len(node.inputs) < 3 or node.op_type == "Where"
        is_open = len(operands) == 1 or one_step
        if key is not None and is_open and not any(e.op == CONSTANT for e in operands):
            self._templates[key] = Template.of(result, operands), []
        return result

    def _lower_half(self, node: ir.Node, expressions: dict[ir.Value, Expr], sizes: Shape) -> Expr:
        """Lower a node on 16-bit data like one on float32 data: the parameters are equal."""
        operator = operator_of(node)
        if operator is None:
            return lower_node(node, expressions, sizes, self._builder, _widened)
        operands = [
            expressions.get(value) or self._builder.constant(parameter_array(node, value, sizes))
            if value is not None
            else None
            for value in operator.schema.values(node)
        ]
        result: Expr = operator.define(self._builder, *operands, **operator.half_arguments(node))
        return result

    def _of(self, value: ir.Value) -> Expr:
        if value not in self._expressions:
            dtype = None if value.dtype in HALF_TYPES else value.dtype
            variable = Expr(INPUT, dtype=FLOAT if dtype is None else dtype.name)
            self._expressions[value] = variable
            self._shapes[value] = fixed_sizes(value) or ()
            self._values.setdefault(id(variable), []).append(value)
        return self._expressions[value]

    def _data_indices(self, node: ir.Node) -> list[int]:
        """Return the indices of data inputs; if all are constant, of the one that is rounded."""
        inputs = [value for value in node.inputs if value is not None]
        if operator_of(node) is not None and node.op_type != "Clip":
            return [0]
        varying = [i for i, value in enumerate(node.inputs) if self._varies(value)]
        if varying and node.op_type == "Where":
            # A constant that is compared with its limits is data.
            test = self._expressions.get(inputs[0])
            compared = () if test is None else test.inputs
            others = (i for i, value in enumerate(inputs) if i not in varying)
            varying += [i for i in others if self._expressions.get(inputs[i]) in compared]
        if varying or not inputs:
            return varying
        if node.op_type in _COMMUTATIVE:
            sizes = [0 if value.shape is None else _size(value) for value in inputs]
            return [max(range(len(sizes)), key=sizes.__getitem__)]
        return [0]

    def _varies(self, value: ir.Value | None) -> bool:
        if value is None:
            return False
        return _size(value) > _LARGEST_CONSTANT or not self._is_fixed(value)

    def _is_fixed(self, value: ir.Value) -> bool:
        """Return whether a value is a constant, possibly after operators on shapes."""
        if value not in self._fixed:
            is_constant = constant_tensor(value) is not None
            self._fixed[value] = is_constant or constant_expression(value) is not None
        return self._fixed[value]

    def _has_many_elements(self, value: ir.Value | None) -> bool:
        if value not in self._large:
            tensor = constant_tensor(value)
            self._large[value] = tensor is not None and tensor.size > _MOST_PARAMETERS
        return self._large[value]


def _widened(value: ir.Value | None) -> Array | None:
    """Return a constant; 16-bit floats are converted to float32."""
    array = array_of(value)
    is_half = value is not None and array is not None and value.dtype in HALF_TYPES
    return array.astype(np.float32) if array is not None and is_half else array


def _size(value: ir.Value) -> int:
    return math.prod(size or 1 for size in fixed_sizes(value) or ())

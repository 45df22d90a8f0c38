"""Float weights of a model, and which of their axes is what to the operators that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from qgraph.choices import Choice
from qgraph.graph.constants import constant_tensor
from qgraph.graph.scopes import Body, bodies, subgraphs
from qgraph.model import Model

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""Types of weights that are quantized: DequantizeLinear gives them back."""


class UseKind(Choice):
    """Operators that have weights."""

    MATMUL = "MatMul"
    GEMM = "Gemm"
    CONV = "Conv"
    CONV_TRANSPOSE = "ConvTranspose"
    GATHER = "Gather"


@dataclass(frozen=True)
class Axes:
    """What the axes of a weight are to an operator.

    Attributes:
        reduced: the axis over which products are summed, or that is read together: blocks lie in
            it. None if there is no other axis than ``channel``.
        channel: the axis of what is independent, such as output channels; None if there is none.
    """

    reduced: int | None
    channel: int | None


@dataclass(frozen=True, eq=False)
class Use:
    """A node that uses a weight.

    Attributes:
        node: the node.
        axes: what the axes of the weight, as it is stored, are to it.
    """

    node: ir.Node
    axes: Axes


@dataclass(frozen=True, eq=False)
class FloatWeight:
    """A constant of real numbers and the nodes that use it as their weight.

    Attributes:
        value: an initializer, or the output of a Constant node.
        tensor: what it holds.
        uses: the nodes that were asked for.
        others: names of nodes that use it otherwise, or were not asked for.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    uses: tuple[Use, ...]
    others: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(int(size) for size in self.tensor.shape.numpy())


@dataclass(frozen=True)
class Wanted:
    """Which nodes are asked for.

    Attributes:
        types: operators.
        nodes: patterns of node names, as file names have them (``*``, ``?``, ``[abc]``).
        exclude: patterns of those that are left out all the same.
    """

    types: Sequence[UseKind]
    nodes: Sequence[str]
    exclude: Sequence[str]

    def has(self, node: ir.Node) -> bool:
        """Return whether ``node`` is asked for."""
        name = label(node)
        return (
            not node.domain
            and node.op_type in self.types
            and any(fnmatchcase(name, pattern) for pattern in self.nodes)
            and not any(fnmatchcase(name, pattern) for pattern in self.exclude)
        )


def label(node: ir.Node) -> str:
    """Return the name of a node; of one without a name, that of its first output."""
    return node.name or (node.outputs[0].name if node.outputs else None) or node.op_type


def float_weights(model: Model, wanted: Wanted) -> Iterator[FloatWeight]:
    """Yield the weights of all nodes asked for, each once, in the order of their first use."""
    seen: set[ir.Value] = set()
    for node in model.nodes():
        if not wanted.has(node):
            continue
        for operand in _weight_operands(node):
            value = _root(operand)
            tensor = constant_tensor(value)
            if value in seen or tensor is None or tensor.dtype not in FLOATS:
                continue
            seen.add(value)
            yield _weight(value, tensor, wanted)


def _weight(value: ir.Value, tensor: ir.TensorProtocol, wanted: Wanted) -> FloatWeight:
    rank = len(tensor.shape)
    uses, others = [], []
    for node, place, order in _users(value, tuple(range(rank))):
        axes = _axes(node, place, order) if wanted.has(node) else None
        if axes is None:
            others.append(label(node))
        else:
            uses.append(Use(node, axes))
    if value.is_graph_output():
        others.append("the outputs of the graph")
    return FloatWeight(value, tensor, tuple(uses), tuple(others))


def _weight_operands(node: ir.Node) -> list[ir.Value]:
    places = {UseKind.MATMUL: (1, 0), UseKind.GATHER: (0,)}.get(UseKind(node.op_type), (1,))
    found = [node.inputs[place] for place in places if place < len(node.inputs)]
    return [value for value in found if value is not None]


def _root(value: ir.Value) -> ir.Value:
    """Follow Transpose and Identity back to where the value is stored."""
    while (node := value.producer()) is not None and _is_view(node):
        source = node.inputs[0]
        if source is None:
            break
        value = source
    return value


def _is_view(node: ir.Node) -> bool:
    return not node.domain and node.op_type in ("Transpose", "Identity")


def _users(
    value: ir.Value, order: tuple[int, ...]
) -> Iterator[tuple[ir.Node, int, tuple[int, ...]]]:
    """Yield node, place and order of axes of whoever uses ``value``, also transposed."""
    for use in value.uses():
        node = use.node
        if not _is_view(node):
            yield node, use.idx, order
            continue
        inner = order
        if node.op_type == "Transpose":
            given = node.attributes.get("perm")
            perm = range(len(order))[::-1] if given is None else given.as_ints()
            inner = tuple(order[axis] for axis in perm)
        output = node.outputs[0]
        if output.is_graph_output():
            yield node, use.idx, order
        yield from _users(output, inner)


def _axes(node: ir.Node, place: int, order: tuple[int, ...]) -> Axes | None:
    """Return what the axes are, in terms of the weight as stored; None if it is no weight here."""
    rank = len(order)
    reduced: int | None
    channel: int | None
    match node.op_type:
        case UseKind.MATMUL:
            left = place == 0
            reduced = rank - 1 if left or rank == 1 else rank - 2
            channel = None if rank == 1 else rank - 2 if left else rank - 1
        case UseKind.GEMM if place == 1 and rank == 2:
            transposed = node.attributes.get_int("transB", 0) != 0
            reduced, channel = (1, 0) if transposed else (0, 1)
        case UseKind.CONV if place == 1 and rank > 2:
            reduced, channel = 1, 0
        case UseKind.CONV_TRANSPOSE if place == 1 and rank > 2:
            reduced, channel = 0, 1
        case UseKind.GATHER if place == 0 and rank > 0:
            channel = node.attributes.get_int("axis", 0) % rank
            reduced = rank - 1 if channel != rank - 1 else None
        case _:
            return None
    return Axes(
        None if reduced is None else order[reduced], None if channel is None else order[channel]
    )


class Places:
    """Where in the bodies of a model a value can be decoded: before whatever uses it.

    Args:
        model: its nodes may be added to meanwhile, but not moved.
    """

    def __init__(self, model: Model) -> None:
        self._holder: dict[Body, ir.Node] = {}
        self._order: dict[ir.Node, int] = {}
        for body in bodies(model.ir):
            for node in body:
                self._order[node] = len(self._order)
                for attribute in node.attributes.values():
                    self._holder.update(dict.fromkeys(subgraphs(attribute), node))

    def first_user(self, value: ir.Value) -> ir.Node:
        """Return the first node, in the body that owns ``value``, that uses it somehow."""
        producer = value.producer()
        body = value.graph if producer is None else producer.graph
        users = []
        for use in value.uses():
            node = use.node
            while node.graph is not body and node.graph in self._holder:
                node = self._holder[node.graph]
            users.append(node)
        return min(users, key=self._order.__getitem__)

"""One of the two models of a certificate: values by name, constants, and what equals what."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.graph.scopes import subgraphs
from qgraph.matching.canonical import is_identity, label
from qgraph.matching.known_values import KnownValues
from qgraph.matching.plain import Plain
from qgraph.matching.randomness import is_random
from qgraph.numerics.values import fingerprint
from qgraph.verification.statements import Statement

Pair = tuple[ir.Value, ir.Value]
Array = npt.NDArray[Any]

_JOINS = frozenset({"QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid"})
"""Operators of com.microsoft that make each code of one code of each of two tensors."""


@dataclass
class Side:
    """A model.

    Attributes:
        plain: its private copy.
        known: its constants.
        values: its values by name; names may be used again in the graphs of attributes.
        order: the place of each node, operands first.
    """

    plain: Plain
    known: KnownValues = field(init=False)
    values: dict[str, list[ir.Value]] = field(default_factory=dict)
    order: dict[ir.Node, int] = field(default_factory=dict)
    _forms: dict[ir.Value, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = KnownValues(self.plain.imports)
        self._enter(self.plain.graph)

    def _enter(self, graph: ir.Graph) -> None:
        for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())):
            self.values.setdefault(str(value.name), []).append(value)
        for node in graph:
            self.order[node] = len(self.order)
            self.known.enter([node])
            for value in node.outputs:
                self.values.setdefault(str(value.name), []).append(value)
            for attribute in node.attributes.values():
                for inner in subgraphs(attribute):
                    self._enter(inner)

    def named(self, name: str) -> list[ir.Value]:
        """Return the values of a name."""
        return self.values.get(name, [])

    def form(self, value: ir.Value) -> int:
        """Return a number that two values of the model share only if they are equal."""
        stack = [value]
        while stack:
            top = self.origin(stack[-1])
            node = top.producer()
            if top in self._forms or node is None or self._is_apart(node):
                pending = []
            else:
                operands = (self.origin(v) for v in node.inputs if v is not None)
                pending = [operand for operand in operands if operand not in self._forms]
            if pending:
                stack += pending
                continue
            if top not in self._forms:
                self._forms[top] = self._numbers.setdefault(self._key(top), len(self._numbers))
            stack.pop()
        return self._forms[self.origin(value)]

    def origin(self, value: ir.Value) -> ir.Value:
        """Return what a value is handed on from unchanged."""
        node = value.producer()
        while node is not None and is_identity(node, self.plain.imports):
            if node.inputs[0] is None or value is not node.outputs[0]:
                break
            value = node.inputs[0]
            node = value.producer()
        return value

    def _is_apart(self, node: ir.Node) -> bool:
        graphs = any(subgraphs(attribute) for attribute in node.attributes.values())
        return graphs or is_random(node, self.plain.imports)

    def _key(self, value: ir.Value) -> Hashable:
        node = value.producer()
        if node is None or self._is_apart(node) or node.op_type == "Constant":
            array = self.known.array(value) if self.known.has(value) else None
            return id(value) if array is None else fingerprint(array)
        operands = (self.origin(v) for v in node.inputs if v is not None)
        numbers = tuple(self._forms[operand] for operand in operands)
        return label(node, self.plain.imports), node.outputs.index(value), numbers

    def sources(self, node: ir.Node) -> list[ir.Value]:
        """Return the operands of a node that are not constant."""
        known = self.known.has
        return list(dict.fromkeys(v for v in node.inputs if v is not None and not known(v)))

    def between(self, end: ir.Value, starts: Collection[ir.Value]) -> list[ir.Node]:
        """Return the nodes that make ``end`` of ``starts`` and constants, operands first.

        None are needed where ``end`` is the only start.

        Raises:
            UnsupportedError: something else takes part, or one of ``starts`` does not; or a node
                runs graphs, is random, or makes its parameters of data.
        """
        found: set[ir.Node] = set()
        met: set[ir.Value] = set()
        pending = [end]
        while pending:
            value = pending.pop()
            if value in starts:
                met.add(value)
                continue
            node = value.producer()
            if node is None or self.known.has(value) or self._is_apart(node):
                told = sorted(str(start.name) for start in starts)
                raise UnsupportedError(f"{end.name!r} is not made of {', '.join(told)} alone")
            if node not in found:
                found.add(node)
                pending += self.sources(node)
        if len(met) < len(starts):
            raise UnsupportedError(f"{end.name!r} is not made of all that is said to begin it")
        return sorted(found, key=self.order.__getitem__)

    def is_join(self, node: ir.Node) -> bool:
        """Return whether a node makes each code of one code of each of one or two tensors."""
        return node.domain == "com.microsoft" and node.op_type in _JOINS


def check_nodes(statement: Statement, parts: list[list[ir.Node]]) -> None:
    """See that a region consists of the nodes that the certificate names.

    Raises:
        EquivalenceError: it does not.
    """
    for nodes, names in zip(parts, statement.nodes, strict=True):
        if sorted(node_name(node) for node in nodes) != sorted(names):
            raise statement.fails("it does not consist of the nodes that are named")


def node_name(node: ir.Node) -> str:
    """Return the name of a node; an unnamed one is named after its first output."""
    return node.name or str(node.outputs[0].name)


def shape_of(entry: Pair) -> tuple[int | None, ...] | None:
    """Return the shape of two equal values as far as the models state it; None without a rank.

    Raises:
        UnsupportedError: the models contradict each other.
    """
    stated = [value.shape for value in entry if value.shape is not None]
    sizes = [tuple(d if isinstance(d, int) else None for d in shape.dims) for shape in stated]
    if len(sizes) < 2:
        return sizes[0] if sizes else None
    fits = len(sizes[0]) == len(sizes[1])
    if not fits or any(
        None not in both and len(set(both)) > 1 for both in zip(*sizes, strict=True)
    ):
        raise UnsupportedError(f"the shapes of {entry[0].name!r} and {entry[1].name!r} differ")
    return tuple(a if a is not None else b for a, b in zip(*sizes, strict=True))


def type_of(entry: Pair) -> ir.DataType:
    """Return the element type of two equal values.

    Raises:
        UnsupportedError: it is not known, or the models contradict each other.
    """
    kinds = {value.dtype for value in entry} - {None}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    if kind is None:
        raise UnsupportedError(f"the type of {entry[0].name!r} is not known")
    return kind

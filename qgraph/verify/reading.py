"""Read a model for the checker: functions inlined, constants frozen, definitions written out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import freeze_inputs
from qgraph.graph.inference.walk import RESHAPING, infer, open_interface
from qgraph.graph.schema import OpKey, versions_of
from qgraph.graph.scopes import inline_functions, nodes_of
from qgraph.graph.slices import between
from qgraph.numerics import Array
from qgraph.ops.integer.definitions import with_definitions
from qgraph.ops.known_values import KnownValues
from qgraph.ops.moved_elements import Sizes, primes_of
from qgraph.ops.operator import OPERATORS
from qgraph.verify import shapes
from qgraph.verify.operators import graphs_of, is_apart, meaning, names

QUANTIZERS = names("FakeQuantize IntQuant Quant QuantizeLinear")
MOVING = RESHAPING | names(
    "Compress DepthToSpace Expand Gather GatherElements GatherND Resize Slice SpaceToDepth Split "
    "Tile Transpose"
)
"""Operators whose results are elements of their first operand."""


class Reading:
    """A private copy of a model.

    Args:
        model: the model.
        keep_inputs: do not treat initializers that are also graph inputs as constants.
        defined: operators to replace by their definitions.

    Attributes:
        model: the copy, without definitions of operators.
        graph: the main graph. Its values have the types and shapes that the checker reads.
        imports: domains and their versions.
        frozen: number of initializers that are also graph inputs and count as constants.
        nodes: all nodes, with those of subgraphs.
    """

    def __init__(
        self, model: ir.Model, *, keep_inputs: bool, defined: Collection[OpKey] = ()
    ) -> None:
        OPERATORS.names()  # loads the operators
        copy = model.clone()
        inline_functions(copy)
        self.frozen = 0 if keep_inputs else freeze_inputs(copy)
        self.model = copy
        copy = with_definitions(copy, defined) if defined else copy
        self.graph = copy.graph
        self.imports = versions_of(copy.opset_imports)
        self.nodes = list(nodes_of(self.graph))
        self._values: dict[str, list[ir.Value]] = {}
        self._known = KnownValues(self.imports, has_functions=False)
        self._enter(self.graph)

    def _enter(self, graph: ir.Graph) -> None:
        """Read the types and shapes of all values of a graph."""
        for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())):
            self._values.setdefault(str(value.name), []).append(value)
            if value.const_value is not None and not value.is_graph_input():
                tensor = value.const_value
                shapes.write(value, tensor.dtype, tuple(tensor.shape.numpy()))
            elif graph is not self.graph:
                shapes.write(value, None, None)
        for node in graph:
            self._known.enter([node])
            shapes.infer(node, self.imports, self.array)
            for value in node.outputs:
                self._values.setdefault(str(value.name), []).append(value)
            for inner in graphs_of(node):
                self._enter(inner)

    def shapes(self, primes: Sequence[int]) -> tuple[dict[ir.Value, Sizes], dict[str, int]]:
        """Return the inferred shapes, and primes used in place of open sizes of the inputs.

        Open sizes of one name are distinguished, because runtimes do not check that they are equal.
        """
        interface = open_interface(self.model)
        facts = infer(self.model, interface)
        shapes = {value: fact.shape for value, fact in facts.items() if fact.shape is not None}
        return shapes, primes_of(interface.values(), primes)

    def named(self, name: str) -> list[ir.Value]:
        """Return the values of a name; subgraphs may use the same name."""
        return self._values.get(name, [])

    def has(self, value: ir.Value) -> bool:
        """Return whether a value is constant, and IEEE 754 determines all its bits."""
        return self._known.has(value)

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a constant, computed if necessary; None for other values."""
        return None if value is None else self._known.array(value)

    def sources(self, node: ir.Node) -> list[ir.Value]:
        """Return the operands of a node that are not constant."""
        return list(dict.fromkeys(v for v in node.inputs if v is not None and not self.has(v)))

    def between(self, end: ir.Value, starts: Collection[ir.Value]) -> list[ir.Node] | None:
        """Return the nodes that compute ``end`` from ``starts`` and constants, operands first.

        Returns: None if ``end`` depends on other values, or on none of these.
        """
        return between(end, starts, self._operands)

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or self.has(value) or is_apart(node, self.imports):
            return []
        return self.sources(node)


def agree(one: ir.Node | None, other: ir.Node | None, sides: tuple[Reading, Reading]) -> bool:
    """Return whether two nodes have one operator and equal operands from the second one on."""
    if one is None or other is None:
        return False
    for a, b in list(zip(one.inputs, other.inputs, strict=False))[1:]:
        x, y = sides[0].array(a), sides[1].array(b)
        if a is b is None:
            continue
        if x is None or y is None or x.dtype != y.dtype or not np.array_equal(x, y):
            return False
    return bool(meaning(one, sides[0].imports) == meaning(other, sides[1].imports))

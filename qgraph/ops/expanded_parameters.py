"""Constants that are expanded to the shape of data before an elementwise operator takes them.

Keras writes the parameters of a quantizer so, and computes its limits after the Expand, since the
number of rows is open::

    data -- Shape -- ... -- Expand(bits) -- Pow(2, .) -- Sub(., step) -- Less(data, .)

Every operator between Expand and ``Less`` is elementwise, so the array before the Expand gives the
same result by broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, ModelError, OperatorError, UnsupportedError
from qgraph.graph.constants import constant
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.schema import versions_of
from qgraph.graph.scopes import nodes_of
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import compute

_EXPANDING = frozenset({"ConstantOfShape", "Expand"})
_ELEMENTWISE = frozenset(NUMPY) - {"Gather"}
_OF_PARAMETERS = frozenset({"Add", "Cast", "Identity", "Neg", "Round", "Sub"})
"""What computes a parameter before it is expanded; no quantizer of a constant is among these."""

_MOST_ELEMENTS = 1 << 20


def expanded_parameters(model: ir.Model) -> dict[ir.Value, Array]:
    """Return values that the operators on data take expanded, with what they hold before.

    All users of a value compute the same if it is replaced by a constant of that array.
    """
    nodes = list(nodes_of(model.graph))
    if not any(node.op_type in _EXPANDING and not node.domain for node in nodes):
        return {}
    finder = _Finder(model)
    for node in nodes:
        finder.enter(node)
    return finder.replaceable(nodes)


class _Finder:
    """Follows expanded constants through elementwise operators.

    Args:
        model: the model.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._facts: Facts = infer(model)
        self._imports = versions_of(model.opset_imports)
        self._expanded: dict[ir.Value, Array] = {}
        self._before: dict[ir.Value, Array | None] = {}

    def enter(self, node: ir.Node) -> None:
        """Note what a node gives, if that is an expanded constant."""
        if node.domain or len(node.outputs) != 1 or node.graph is not self._graph:
            return
        rank = self._facts.get(node.outputs[0], UNKNOWN).rank
        if rank is None:
            return
        array = None
        if node.op_type == "Expand" and (before := self._parameter(node.inputs[0])) is not None:
            array = before
        elif node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            number = np.zeros((), np.float32) if fill is None else fill.as_tensor().numpy()
            array = number.reshape(())  # ONNX stores a list of one
        elif node.op_type in _ELEMENTWISE and any(v in self._expanded for v in node.inputs):
            array = self._computed(node, self._operand)
        # Integers belong to computations of shapes.
        if array is not None and array.dtype.kind in "fb" and array.size <= _MOST_ELEMENTS:
            self._expanded[node.outputs[0]] = array.reshape(
                (1,) * (rank - array.ndim) + array.shape
            )

    def replaceable(self, nodes: list[ir.Node]) -> dict[ir.Value, Array]:
        """Return the expanded constants that operators on data take."""
        kept: set[ir.Value] = set()
        taken: dict[ir.Value, Array] = {}
        for node in reversed(nodes):
            value = node.outputs[0] if node.outputs else None
            if value is None or value not in self._expanded or value.is_graph_output():
                continue
            users = value.consumers()
            inner = [user for user in users if user.outputs[0] in kept]
            if all(user in inner or self._is_broadcast(user) for user in users):
                kept.add(value)
                if len(inner) < len(users):
                    taken[value] = self._expanded[value]
        return taken

    def _is_broadcast(self, user: ir.Node) -> bool:
        """Return whether the other operands alone give a result its shape."""
        if user.op_type not in _ELEMENTWISE or user.domain or user.graph is not self._graph:
            return False
        own = self._facts.get(user.outputs[0], UNKNOWN).shape
        data = [v for v in user.inputs if v is not None and v not in self._expanded]
        shapes = [self._facts.get(value, UNKNOWN).shape for value in data]
        return own is not None and None not in own and own in shapes

    def _operand(self, value: ir.Value) -> Array | None:
        """Return an expanded constant, or a single number."""
        if value in self._expanded:
            return self._expanded[value]
        number = constant(value)
        return number if number is not None and not number.ndim else None

    def _parameter(self, value: ir.Value | None) -> Array | None:
        """Return what a value holds that is computed from constants as parameters are."""
        if value is None:
            return None
        if value not in self._before:
            node = value.producer()
            array = constant(value)
            if array is None and node is not None and node.op_type in _OF_PARAMETERS:
                array = self._computed(node, self._parameter)
            self._before[value] = array
        return self._before[value]

    def _computed(self, node: ir.Node, operand: Callable[[ir.Value], Array | None]) -> Array | None:
        values = {value: operand(value) for value in node.inputs if value is not None}
        if node.domain or any(array is None for array in values.values()):
            return None
        try:
            with np.errstate(all="ignore"):
                return np.asarray(compute(node, self._imports, values))
        except (ExecutionError, ModelError, OperatorError, UnsupportedError):
            return None

"""Read a model for the checker: functions are inlined, constants frozen, nothing is rewritten."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from qgraph.errors import QGraphError, UnsupportedError
from qgraph.graph.constants import constant, constant_tensor, overridable
from qgraph.graph.scopes import nodes_of
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import OPERATORS, operator_of
from qgraph.verify import shapes
from qgraph.verify.operators import graphs_of, is_apart

Array = npt.NDArray[Any]
Pair = tuple[ir.Value, ir.Value]

_COMPUTED = frozenset(NUMPY) - {"Cast", "Gather", "Pow"}
_KEPT_BYTES = 1 << 16
"""Maximum size of computed constants that are kept in memory."""


class Reading:
    """A private copy of a model.

    Args:
        model: the model.
        keep_inputs: do not treat initializers that are also graph inputs as constants.

    Attributes:
        graph: the main graph. Its values have the types and shapes that the checker reads.
        imports: domains and their versions.
        frozen: number of initializers that are also graph inputs and count as constants.
        order: index of each node in topological order.

    Raises:
        UnsupportedError: functions cannot be inlined.
    """

    def __init__(self, model: ir.Model, *, keep_inputs: bool) -> None:
        OPERATORS.names()  # loads the operators
        copy = model.clone()
        if copy.functions:
            _inline(copy)
        self.graph = copy.graph
        versions = copy.opset_imports.items()
        self.imports = {("" if domain == "ai.onnx" else domain): n for domain, n in versions}
        fed = [] if keep_inputs else overridable(self.graph)
        for value in fed:
            self.graph.inputs.remove(value)
        self.frozen = len(fed)
        self.order = {node: place for place, node in enumerate(nodes_of(self.graph))}
        self._values: dict[str, list[ir.Value]] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        self._computed: set[ir.Value] = set()
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
            operands = [value for value in node.inputs if value is not None]
            if operands and all(map(self.has, operands)) and not is_apart(node):
                self._computed.update(node.outputs)
            kind, shape = shapes.read(node)
            for place, value in enumerate(node.outputs):
                self._values.setdefault(str(value.name), []).append(value)
                is_read = place == 0 or node.op_type == "Split"
                shapes.write(value, kind if is_read else None, shape if is_read else None)
            for inner in graphs_of(node):
                self._enter(inner)

    def named(self, name: str) -> list[ir.Value]:
        """Return the values of a name; subgraphs may use the same name."""
        return self._values.get(name, [])

    def has(self, value: ir.Value) -> bool:
        """Return whether a value depends on constants alone."""
        return value in self._computed or constant_tensor(value) is not None

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a constant, computed if necessary; None if it is unknown."""
        if value is None or not self.has(value):
            return None
        if value in self._constants:
            return self._constants[value]
        found = constant(value)
        if found is not None:
            return found
        node = value.producer()
        with np.errstate(all="ignore"), contextlib.suppress(QGraphError, ValueError, TypeError):
            found = None if node is None else self._compute(node)
        if found is None or found.nbytes <= _KEPT_BYTES:
            self._constants[value] = found
        return found

    def _compute(self, node: ir.Node) -> Array | None:
        """Return the result of a node on constants, if IEEE 754 determines all its bits."""
        operands = [self.array(operand) for operand in node.inputs]
        if any(a is None and v is not None for a, v in zip(operands, node.inputs, strict=True)):
            return None
        operator = operator_of(node)
        if operator is not None:
            return operator.run(node, operands)
        arrays = [array for array in operands if array is not None]
        if node.domain == "" and node.op_type == "Transpose":
            axes = list(range(arrays[0].ndim))[::-1]
            return arrays[0].transpose(node.attributes.get_ints("perm", axes))
        if node.domain == "" and node.op_type == "Reshape":
            sizes = [arrays[0].shape[i] if n == 0 else n for i, n in enumerate(arrays[1].tolist())]
            return None if "allowzero" in node.attributes else arrays[0].reshape(sizes)
        kinds = {array.dtype for array in (arrays[1:] if node.op_type == "Where" else arrays)}
        is_known = node.domain == "" and node.op_type in _COMPUTED and not node.attributes
        if not is_known or len(kinds) > 1:
            return None
        found = np.asarray(NUMPY[node.op_type](*arrays))
        return found if found.dtype == np.bool_ else found.astype(kinds.pop())

    def sources(self, node: ir.Node) -> list[ir.Value]:
        """Return the operands of a node that are not constant."""
        return list(dict.fromkeys(v for v in node.inputs if v is not None and not self.has(v)))

    def between(self, end: ir.Value, start: ir.Value) -> list[ir.Node] | None:
        """Return the nodes that compute ``end`` from ``start`` and constants, operands first.

        Returns: None if ``end`` depends on other values, or does not depend on ``start``.
        """
        found: set[ir.Node] = set()
        met, pending = False, [end]
        while pending:
            value = pending.pop()
            if value is start:
                met = True
                continue
            node = value.producer()
            if node is None or self.has(value) or is_apart(node):
                return None
            if node not in found:
                found.add(node)
                pending += self.sources(node)
        return sorted(found, key=self.order.__getitem__) if met else None


def _inline(model: ir.Model) -> None:
    own = model.opset_imports.items()
    imports = [function.opset_imports for function in model.functions.values()]
    try:
        if any(other.get(domain, n) != n for other in imports for domain, n in own):
            raise ValueError("functions of another opset")  # noqa: TRY301
        InlinePass()(model)
    except (ir.passes.PassError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"The functions of the model cannot be inlined here ({error}), expected functions of "
            "the opsets of the model. Inline them with the tool that wrote them."
        ) from error

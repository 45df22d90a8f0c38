"""Pair the quantizers of two models with the same other operators on the same operands, in order.

Then each quantizer has one counterpart, and no matching is needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import graphs_of
from qgraph.inventory.description import Described, descriptions
from qgraph.ops.static_parameters import settled
from qgraph.quantizers.on_codes import coded_tensors
from qgraph.quantizers.recognition.searched import Elementwise


def pairs_of_alike(
    reference: ir.Model, candidate: ir.Model
) -> list[tuple[Described, Described]] | None:
    """Return the quantizers of two models in pairs, in the order of the reference.

    None if the models have other differences, or if they must be normalised first.
    """
    others = _others(reference)
    if others is None or others != _others(candidate):
        return None
    ours, theirs = (list(descriptions(model)) for model in (reference, candidate))
    one, other = _Outline(reference.graph, ours), _Outline(candidate.graph, theirs)
    if one.operators != other.operators:
        return None
    if len(one.quantizers) < len(ours) or len(other.quantizers) < len(theirs):
        return None
    partners = dict(zip(one.quantizers, other.quantizers, strict=True))
    return [(each, partners[each]) for each in ours]


def _others(model: ir.Model) -> list[Hashable] | None:
    """Return inputs, outputs, and the operators that certainly belong to no quantizer.

    None if functions, subgraphs, operators on codes or of vendors, or inputs with a default must be
    normalised first.
    """
    if model.functions or settled(model) is not model:
        return None
    is_elementwise = Elementwise()
    inputs = [(each.name, each.dtype, stated_shape(each)) for each in model.graph.inputs]
    others: list[Hashable] = [*inputs, *(each.name for each in model.graph.outputs)]
    for node in model.graph:
        if graphs_of(node) or any(coded_tensors(node)):
            return None
        if not is_elementwise(node) and node.op_type != "Constant":
            if node.domain:
                return None
            others.append(node.op_type)
    return others


class _Outline:
    """The operators of a graph and the numbers of their operands; each quantizer is one operator.

    Constants have no number; quantizers of constants are in order at their first use.
    """

    def __init__(self, graph: ir.Graph, described: Sequence[Described]) -> None:
        self.operators: list[Hashable] = []
        self.quantizers: list[Described] = []
        self._numbers: dict[ir.Value, int] = {}
        self._weights = {each.y: each for each in described if each.description.of != "data"}
        within = {node: each for each in described for node in each.nodes}
        for value in graph.inputs:
            self._number(value)
        for node in graph:
            if node.op_type == "Constant":
                continue
            quantizer = within.get(node)
            if quantizer is None:
                self.operators.append((node.op_type, *map(self._operand, node.inputs)))
                for value in node.outputs:
                    self._number(value)
            elif quantizer.description.of == "data" and quantizer.y is node.outputs[0]:
                self.operators.append(("quantizer", self._operand(quantizer.x)))
                self.quantizers.append(quantizer)
                self._number(quantizer.y)
        self.operators.append(tuple(map(self._operand, graph.outputs)))

    def _number(self, value: ir.Value) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _operand(self, value: ir.Value | None) -> int | None:
        """Return the number of an operand; None for constants."""
        if value is None:
            return None
        if value in self._weights and value not in self._numbers:
            self.quantizers.append(self._weights[value])
            return self._number(value)
        return self._numbers.get(value)

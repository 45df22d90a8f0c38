"""Executors that are kept with a model until it changes."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.executor import Executor, prepare
from qgraph.scopes import Body, owners


class Prepared:
    """Executors of one model by backend; the plan is made once, as long as the model is the same.

    A model may be edited between two runs in many ways, so each time its parts are compared with
    those that were planned, by identity: a few microseconds for a small model.
    """

    def __init__(self) -> None:
        self._owners: list[int] = []
        self._graphs: list[ir.Graph] = []
        self._parts: list[object] = []
        self._ids: list[int] = []
        self._executors: dict[str, Executor] = {}

    def executor(self, model: ir.Model, backend: str) -> Executor:
        """Return what runs ``model`` as it is now; see :func:`qgraph.executor.prepare`."""
        if self._changed(model):
            self._owners = list(map(id, owners(model)))
            self._graphs = [graph for owner in owners(model) for graph in _graphs(owner)]
            # The parts are held, so that no new object gets the identity of an old one.
            self._parts = _parts(self._graphs)
            self._ids = list(map(id, self._parts))
            self._executors.clear()
        if backend not in self._executors:
            self._executors[backend] = prepare(model, backend)
        return self._executors[backend]

    def _changed(self, model: ir.Model) -> bool:
        if not self._graphs or self._owners != list(map(id, owners(model))):
            return True
        # A subgraph that comes or goes is seen by the attribute that has it.
        return self._ids != list(map(id, _parts(self._graphs)))


def _graphs(owner: Body) -> list[ir.Graph]:
    graph = owner if isinstance(owner, ir.Graph) else owner.graph
    return [graph, *owner.subgraphs()]


def _parts(graphs: list[ir.Graph]) -> list[object]:
    parts: list[object] = []
    for graph in graphs:
        parts.extend(graph.inputs)
        parts.extend(graph.outputs)
        for value in graph.initializers.values():
            parts.append(value)
            parts.append(value.const_value)
        for node in graph:
            parts += (node, node.inputs, node.op_type, node.domain)
            attributes = node.attributes
            if attributes:
                parts.extend(attributes.values())
    return parts

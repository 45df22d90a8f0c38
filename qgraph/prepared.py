"""Executors that are kept with a model until it changes."""

from __future__ import annotations

from operator import attrgetter

import onnx_ir as ir

from qgraph.choices import member
from qgraph.execution.executor import Backend, Executor, prepare
from qgraph.graph.scopes import Body, owners

_NODE = attrgetter("inputs", "op_type", "domain", "attributes.data")
_TENSOR = attrgetter("const_value")


class Prepared:
    """Executors of one model by backend; the plan is made once, as long as the model is the same.

    A model may be edited between two runs in many ways, so each time its parts are compared with
    those that were planned: a few microseconds for a small model.
    """

    def __init__(self) -> None:
        self._model: ir.Model | None = None
        self._owners: list[Body] = []
        self._graphs: list[ir.Graph] = []
        self._parts: list[object] = []
        self._executors: dict[str, Executor] = {}

    def executor(self, model: ir.Model, backend: str, *, unseen: bool = False) -> Executor:
        """Return what runs ``model`` as it is now; see :func:`qgraph.execution.executor.prepare`.

        Args:
            model: the model.
            backend: what computes.
            unseen: nobody can have edited ``model`` since it came.
        """
        if not (unseen and model is self._model) and self._changed(model):
            self._model = model
            self._owners = list(owners(model))
            self._graphs = [graph for owner in self._owners for graph in _graphs(owner)]
            # Attributes are held in a copy of their dictionary, everything else by itself.
            self._parts = [
                (*part[:-1], dict(part[-1])) if isinstance(part, tuple) else part
                for part in _parts(self._graphs)
            ]
            self._executors.clear()
        chosen = member(Backend, backend, "backend")
        if chosen not in self._executors:
            self._executors[chosen] = prepare(model, chosen)
        return self._executors[chosen]

    def _changed(self, model: ir.Model) -> bool:
        if not self._graphs or self._owners != list(owners(model)):
            return True
        # A subgraph that comes or goes is seen by the attribute that has it.
        return self._parts != _parts(self._graphs)


def _graphs(owner: Body) -> list[ir.Graph]:
    graph = owner if isinstance(owner, ir.Graph) else owner.graph
    return [graph, *owner.subgraphs()]


def _parts(graphs: list[ir.Graph]) -> list[object]:
    parts: list[object] = []
    for graph in graphs:
        nodes, values = list(graph), graph.initializers.values()
        for found in (graph.inputs, graph.outputs, nodes, values):
            parts.extend(found)
        parts.extend(map(_NODE, nodes))
        parts.extend(map(_TENSOR, values))
    return parts

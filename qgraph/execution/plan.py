"""A graph as a list of steps over an environment of known values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, ModelError, QGraphError, forms, where
from qgraph.graph.constants import constant
from qgraph.kernels.standard import Kernel

Environment = dict[ir.Value, Any]
"""What is known so far. Subgraphs add to that of their outer graph: values are told apart by
identity, so equal names do no harm."""

Observer = Callable[[ir.Value, Any], None]
"""What is told of a value when it is known."""


class Step(Protocol):
    """A part of the computation."""

    @property
    def reads(self) -> Sequence[ir.Value]:
        """Values that have to be known before, those that subgraphs capture included."""

    @property
    def outputs(self) -> Sequence[ir.Value]:
        """Values that are known after."""

    def run(self, known: Environment, keep: frozenset[ir.Value]) -> None:
        """Compute; values in ``keep`` are asked for from outside and have to be known after."""


class NodeStep:
    """One node and the kernel that computes it."""

    def __init__(self, node: ir.Node, kernel: Kernel) -> None:
        self.node = node
        self.reads = [value for value in node.inputs if value is not None]
        self.outputs = [value for value in node.outputs if value.name != ""]
        self._kernel = kernel

    def run(self, known: Environment, keep: frozenset[ir.Value]) -> None:
        """Compute the outputs, contiguous: sums must not depend on the layout of operands."""
        arrays = [None if value is None else known[value] for value in self.node.inputs]
        try:
            results = [_settled(result) for result in self._compute(known, arrays)]
            known.update(zip(self.outputs, results, strict=True))
        except QGraphError:
            raise
        except Exception as error:
            raise ExecutionError(
                f"{where(self.node)} failed on inputs {forms(arrays)}: {error}. Expected types and "
                "shapes that the operator accepts: check what is fed and the nodes before this one."
            ) from error

    def _compute(self, known: Environment, arrays: Sequence[Any]) -> Sequence[Any]:
        return self._kernel(*arrays)


class Plan:
    """The steps of one graph, in order, with the values that nothing needs after each of them."""

    def __init__(self, graph: ir.Graph, steps: Sequence[Step]) -> None:
        self._graph = graph
        self.steps = steps
        outputs = set(graph.outputs)
        last = dict.fromkeys(graph.inputs, -1)
        for place, step in enumerate(steps):
            last.update(dict.fromkeys((*step.reads, *step.outputs), place))
        self._drops: list[list[ir.Value]] = [[] for _ in steps]
        for value, place in last.items():
            if place >= 0 and self._owns(value) and value not in outputs:
                self._drops[place].append(value)

    def run(
        self,
        known: Environment,
        keep: frozenset[ir.Value] = frozenset(),
        observe: Observer | None = None,
    ) -> None:
        """Run all steps; of the graph's own values only outputs and ``keep`` stay known.

        With ``observe`` the values in ``keep`` are handed over when they are computed, and do not
        stay longer than others.
        """
        for step, drops in zip(self.steps, self._drops, strict=True):
            for value in step.reads:
                if value not in known:
                    known[value] = initial(value)
            step.run(known, keep)
            if observe is not None:
                for value in step.outputs:
                    if value in keep:
                        observe(value, known[value])
            for value in drops:
                if observe is not None or value not in keep:
                    known.pop(value, None)

    def call(self, known: Environment, arguments: Iterable[Any]) -> list[Any]:
        """Run with ``arguments`` as the graph's inputs; return its outputs and leave no trace."""
        known.update(zip(self._graph.inputs, arguments, strict=True))
        self.run(known)
        outputs = self._graph.outputs
        results = [known[value] if value in known else initial(value) for value in outputs]
        for value in (*self._graph.inputs, *outputs):
            if self._owns(value):
                known.pop(value, None)
        return results

    def _owns(self, value: ir.Value) -> bool:
        return value.graph is self._graph


def initial(value: ir.Value) -> Any:
    """Return what ``value`` is before anything has run: a constant, or the default of an input.

    Raises:
        ModelError: nothing defines it.
    """
    known = constant(value)
    if known is None and value.const_value is not None:
        known = value.const_value.numpy()
    if known is None:
        raise ModelError(
            f"Value {value.name!r} is used, but no node produces it and it is neither an input nor "
            "an initializer of its graph or of a graph around it. Export the model again."
        )
    # Text is bytes in the file, and str while it is computed with.
    return np.char.decode(known, "utf-8").astype(object) if known.dtype.kind == "S" else known


def _settled(result: Any) -> Any:
    return np.asarray(result, order="C") if isinstance(result, np.ndarray | np.generic) else result

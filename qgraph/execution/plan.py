"""Plans: graphs as lists of steps over known values, and the nodes that run plans.

A plan drops each value after the last step that reads it. If, Loop, Scan, SequenceMap and calls of
the model's functions run plans of their own; subgraphs see the values around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError, OperatorError, UnsupportedError, where
from qgraph.execution.inputs import numpy_type
from qgraph.graph.constants import constant
from qgraph.graph.scopes import captured, nodes_of
from qgraph.ops.dispatch import Environment, NodeStep
from qgraph.ops.kernels.kernel import Kernel


class Step(Protocol):
    """A part of the computation."""

    @property
    def reads(self) -> Sequence[ir.Value]:
        """Values that must be known before, those that subgraphs capture included."""

    @property
    def outputs(self) -> Sequence[ir.Value]:
        """Values that are known after."""

    def run(self, environment: Environment, keep: frozenset[ir.Value]) -> None:
        """Compute the step; the caller wants the values in ``keep``, too."""


class Plan:
    """The steps of one graph, in order, with the values that nothing needs after each of them."""

    def __init__(self, graph: ir.Graph, steps: Sequence[Step]) -> None:
        self._graph = graph
        self.steps = steps
        outputs = set(graph.outputs)
        last = dict.fromkeys(graph.inputs, -1)
        for index, step in enumerate(steps):
            last.update(dict.fromkeys((*step.reads, *step.outputs), index))
        self._drops: list[list[ir.Value]] = [[] for _ in steps]
        for value, index in last.items():
            if index >= 0 and self._owns(value) and value not in outputs:
                self._drops[index].append(value)

    def run(self, environment: Environment, keep: frozenset[ir.Value] = frozenset()) -> None:
        """Run all steps; of the graph's own values only outputs and ``keep`` stay known."""
        for step, drops in zip(self.steps, self._drops, strict=True):
            _run(step, environment, keep)
            for value in drops:
                if value not in keep:
                    environment.pop(value, None)

    def stream(
        self, environment: Environment, keep: frozenset[ir.Value]
    ) -> Iterator[tuple[ir.Value, Any]]:
        """Run all steps, and yield the values in ``keep`` when they are known.

        They do not stay known longer than others. The caller ignores floating-point errors.
        """
        for step, drops in zip(self.steps, self._drops, strict=True):
            _run(step, environment, keep)
            for value in step.outputs:
                if value in keep:
                    yield value, environment[value]
            for value in drops:
                environment.pop(value, None)

    def call(self, environment: Environment, arguments: Iterable[Any]) -> list[Any]:
        """Run with ``arguments`` as the graph's inputs; return its outputs and keep nothing."""
        environment.update(zip(self._graph.inputs, arguments, strict=True))
        self.run(environment)
        outputs = self._graph.outputs
        results = [
            environment[value] if value in environment else initial(value) for value in outputs
        ]
        for value in (*self._graph.inputs, *outputs):
            if self._owns(value):
                environment.pop(value, None)
        return results

    def _owns(self, value: ir.Value) -> bool:
        return value.graph is self._graph


def _run(step: Step, environment: Environment, keep: frozenset[ir.Value]) -> None:
    for value in step.reads:
        if value not in environment:
            environment[value] = initial(value)
    step.run(environment, keep)


def initial(value: ir.Value) -> Any:
    """Return the array of ``value`` before a run: a constant, or the default of an input.

    Raises:
        ModelError: nothing defines it.
    """
    array = constant(value)
    if array is None and value.const_value is not None:
        array = value.const_value.numpy()
    if array is None:
        raise ModelError(
            f"Value {value.name!r} is used, but no node produces it and it is neither an input nor "
            "an initializer of its graph or of a graph around it. Export the model again."
        )
    if array.dtype.kind != "S":
        return array
    try:
        # Text is bytes in the file, and str while it is computed with.
        return np.char.decode(array, "utf-8").astype(object)
    except UnicodeDecodeError as error:
        raise ModelError(
            f"Constant {value.name!r}: a text in it is not UTF-8 ({error}). Export the model again."
        ) from error


def is_constant(node: ir.Node) -> bool:
    """Return whether ``node`` is a Constant, so that nothing has to run."""
    is_literal = node.domain == "" and node.op_type == "Constant"
    return is_literal and constant(node.outputs[0]) is not None


def is_fixed(value: ir.Value) -> bool:
    """Return whether a session can hold ``value``: it is constant and cannot be fed."""
    producer = value.producer()
    if producer is not None:
        return is_constant(producer)
    return value.is_initializer() and not value.is_graph_input()


Planner = Callable[[ir.Graph], Plan]
Control = Callable[..., list[Any]]
"""Environment and input arrays to outputs."""


class ControlStep(NodeStep):
    """An If, Loop, Scan or SequenceMap node; its subgraphs see the environment around them."""

    def __init__(self, node: ir.Node, version: int, planner: Planner) -> None:
        super().__init__(node, _no_kernel)
        self.reads += captured(node)
        if node.op_type == "Scan" and version < 9:
            raise UnsupportedError(
                f"{where(node)}: Scan of opset {version} runs over a batch axis, expected opset 9 "
                "or later. Convert the model to a later opset."
            )
        self._control = _CONTROL[node.op_type](node, planner)

    def _compute(self, environment: Environment, arrays: Sequence[Any]) -> list[Any]:
        return self._control(environment, *arrays)


def function_kernel(node: ir.Node, function: ir.Function, planner: Planner) -> Kernel:
    """Return a kernel that runs the body of ``function`` with the attributes of the call."""
    body = _bind(node, function)
    plan = planner(body)
    missing = len(body.inputs) - len(node.inputs)
    if missing < 0:
        raise ModelError(
            f"{where(node)}: it has {len(node.inputs)} inputs, expected at most "
            f"{len(body.inputs)}, as function {function.name!r} has. Export the model again."
        )
    wanted = [index for index, value in enumerate(node.outputs) if value.name != ""]

    def run(*arrays: Any) -> list[Any]:
        results = plan.call({}, [*arrays, *[None] * missing])
        return [results[index] for index in wanted]

    return run


def _bind(node: ir.Node, function: ir.Function) -> ir.Graph:
    """Return a copy of the body in which attribute references are replaced by values."""
    body = function.clone().graph
    attributes = {
        **{name: a for name, a in function.attributes.items() if a.value is not None},
        **node.attributes,
    }
    for inner in nodes_of(body):
        for name, attribute in list(inner.attributes.items()):
            if attribute.is_ref():
                source = attributes.get(str(attribute.ref_attr_name))
                del inner.attributes[name]
                if source is not None:
                    inner.attributes[name] = ir.Attr(name, source.type, source.value)
    return body


def _no_kernel(*arrays: Any) -> list[Any]:
    raise NotImplementedError


def _if(node: ir.Node, planner: Planner) -> Control:
    branches = {
        flag: planner(node.attributes[name].as_graph())
        for flag, name in ((True, "then_branch"), (False, "else_branch"))
    }
    return lambda environment, condition: branches[bool(condition.item())].call(environment, ())


def _loop(node: ir.Node, planner: Planner) -> Control:
    body = node.attributes["body"].as_graph()
    plan = planner(body)
    carried = len(body.inputs) - 2

    def run(
        environment: Environment, trips: Any = None, condition: Any = None, *state: Any
    ) -> list[Any]:
        values = list(state)
        collected: list[list[Any]] = []
        going, count = condition is None or bool(condition.item()), 0
        while going and (trips is None or count < trips.item()):
            step = [np.asarray(count, np.int64), np.asarray(going), *values]
            again, *results = plan.call(environment, step)
            going, count = bool(again.item()), count + 1
            values = results[:carried]
            collected.append(results[carried:])
        outer = enumerate(body.outputs[1 + carried :])
        return [*values, *(_stack([each[i] for each in collected], y, 0) for i, y in outer)]

    return run


def _scan(node: ir.Node, planner: Planner) -> Control:
    body = node.attributes["body"].as_graph()
    plan = planner(body)
    scanned = node.attributes["num_scan_inputs"].as_int()
    carried = len(body.inputs) - scanned
    produced = body.outputs[carried:]
    get = node.attributes.get_ints
    in_axes, in_back = (
        get(name, [0] * scanned) for name in ("scan_input_axes", "scan_input_directions")
    )
    out_axes, out_back = (
        get(name, [0] * len(produced)) for name in ("scan_output_axes", "scan_output_directions")
    )

    def run(environment: Environment, *arrays: Any) -> list[Any]:
        values = list(arrays[:carried])
        sequences = [
            np.moveaxis(x, axis, 0)[:: -1 if back else 1]
            for x, axis, back in zip(arrays[carried:], in_axes, in_back, strict=True)
        ]
        if len({len(x) for x in sequences}) > 1:
            raise OperatorError(
                f"{where(node)}: the scanned inputs have {[len(x) for x in sequences]} elements "
                "along their axes, expected one length. Check the shapes that are fed."
            )
        collected: list[list[Any]] = []
        for slices in zip(*sequences, strict=True):
            parts = (np.asarray(part, order="C") for part in slices)
            results = plan.call(environment, [*values, *parts])
            values = results[:carried]
            collected.append(results[carried:])
        outer = enumerate(zip(produced, out_axes, out_back, strict=True))
        return [
            *values,
            *(
                _stack([each[i] for each in collected][:: -1 if back else 1], y, axis)
                for i, (y, axis, back) in outer
            ),
        ]

    return run


def _sequence_map(node: ir.Node, planner: Planner) -> Control:
    body = node.attributes["body"].as_graph()
    plan = planner(body)

    def run(environment: Environment, *inputs: Any) -> list[Any]:
        results = [
            plan.call(environment, [x[index] if isinstance(x, list) else x for x in inputs])
            for index in range(len(inputs[0]))
        ]
        return [[each[i] for each in results] for i in range(len(body.outputs))]

    return run


def _stack(rows: list[Any], value: ir.Value, axis: int) -> Any:
    if rows:
        return np.stack(rows, axis)
    # No iteration: the declared shape is all that is known of the elements.
    dims = [] if value.shape is None else [d if isinstance(d, int) else 0 for d in value.shape.dims]
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, 0)
    return np.empty(dims, numpy_type(value) or np.float32)


_CONTROL: dict[str, Callable[[ir.Node, Planner], Control]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}

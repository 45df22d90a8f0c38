"""If, Loop, Scan, SequenceMap and calls of the model's functions: nodes that run plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ModelError, OperatorError, UnsupportedError, where
from qgraph.execution.plan import Environment, NodeStep, Plan
from qgraph.kernels.standard import Kernel

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

    def _compute(self, known: Environment, arrays: Sequence[Any]) -> list[Any]:
        return self._control(known, *arrays)


def is_control(node: ir.Node) -> bool:
    """Return whether ``node`` runs subgraphs that this module knows how to run."""
    return node.domain == "" and node.op_type in _CONTROL


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in the attributes of ``node``, and those nested in them."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        graphs: Sequence[ir.Graph] = ()
        if attribute.type is ir.AttributeType.GRAPH:
            graphs = [attribute.as_graph()]
        elif attribute.type is ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        for graph in graphs:
            yield graph
            for inner in graph:
                yield from subgraphs(inner)


def captured(node: ir.Node) -> list[ir.Value]:
    """Return the outer values that the subgraphs of ``node`` use, each once."""
    graphs = list(subgraphs(node))
    used = [value for graph in graphs for inner in graph for value in inner.inputs]
    used += [value for graph in graphs for value in graph.outputs]
    own = set(graphs)
    return [value for value in dict.fromkeys(used) if value is not None and value.graph not in own]


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
    wanted = [place for place, value in enumerate(node.outputs) if value.name != ""]

    def run(*arrays: Any) -> list[Any]:
        results = plan.call({}, [*arrays, *[None] * missing])
        return [results[place] for place in wanted]

    return run


def _bind(node: ir.Node, function: ir.Function) -> ir.Graph:
    """Return a copy of the body in which attribute references are replaced by values."""
    body = function.clone().graph
    given = {
        **{name: a for name, a in function.attributes.items() if a.value is not None},
        **node.attributes,
    }
    for inner in ir.traversal.RecursiveGraphIterator(body):
        for name, attribute in list(inner.attributes.items()):
            if attribute.is_ref():
                source = given.get(str(attribute.ref_attr_name))
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
    return lambda known, condition: branches[bool(condition.item())].call(known, ())


def _loop(node: ir.Node, planner: Planner) -> Control:
    body = node.attributes["body"].as_graph()
    plan = planner(body)
    carried = len(body.inputs) - 2

    def run(known: Environment, trips: Any = None, condition: Any = None, *state: Any) -> list[Any]:
        values = list(state)
        collected: list[list[Any]] = [[] for _ in body.outputs[1 + carried :]]
        going, count = condition is None or bool(condition.item()), 0
        while going and (trips is None or count < trips.item()):
            step = [np.asarray(count, np.int64), np.asarray(going), *values]
            again, *results = plan.call(known, step)
            going, count = bool(again.item()), count + 1
            values = results[:carried]
            for rows, result in zip(collected, results[carried:], strict=True):
                rows.append(result)
        outer = body.outputs[1 + carried :]
        stacks = (_stack(rows, value, 0) for rows, value in zip(collected, outer, strict=True))
        return [*values, *stacks]

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

    def run(known: Environment, *arrays: Any) -> list[Any]:
        values, sequences = list(arrays[:carried]), []
        for x, axis, back in zip(arrays[carried:], in_axes, in_back, strict=True):
            sequences.append(np.moveaxis(x, axis, 0)[:: -1 if back else 1])
        if len({len(x) for x in sequences}) > 1:
            raise OperatorError(
                f"{where(node)}: the scanned inputs have {[len(x) for x in sequences]} elements "
                "along their axes, expected one length. Check the shapes that are fed."
            )
        collected: list[list[Any]] = [[] for _ in produced]
        for slices in zip(*sequences, strict=True):
            parts = (np.asarray(part, order="C") for part in slices)
            results = plan.call(known, [*values, *parts])
            values = results[:carried]
            for rows, result in zip(collected, results[carried:], strict=True):
                rows.append(result)
        for rows, back in zip(collected, out_back, strict=True):
            rows.reverse() if back else None
        outer = zip(collected, produced, out_axes, strict=True)
        return [*values, *(_stack(rows, value, axis) for rows, value, axis in outer)]

    return run


def _sequence_map(node: ir.Node, planner: Planner) -> Control:
    body = node.attributes["body"].as_graph()
    plan = planner(body)

    def run(known: Environment, *inputs: Any) -> list[Any]:
        results: list[list[Any]] = [[] for _ in body.outputs]
        for place in range(len(inputs[0])):
            parts = [x[place] if isinstance(x, list) else x for x in inputs]
            for sequence, result in zip(results, plan.call(known, parts), strict=True):
                sequence.append(result)
        return results

    return run


def _stack(rows: list[Any], value: ir.Value, axis: int) -> Any:
    if rows:
        return np.stack(rows, axis)
    # No iteration: the declared shape is all that is known of the elements.
    dims = [] if value.shape is None else [d if isinstance(d, int) else 0 for d in value.shape.dims]
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, 0)
    return np.empty(dims, np.float32 if value.dtype is None else value.dtype.numpy())


_CONTROL: dict[str, Callable[[ir.Node, Planner], Control]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}

"""A part of a model as a model of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from qgraph.execution.control import captured
from qgraph.model import Model
from qgraph.opsets.versions import declare_domains, minimum_ir_version


def frontier(graph: ir.Graph, output: ir.Value, ends: Collection[ir.Value]) -> list[ir.Value]:
    """Return where the way back from ``output`` ends: at ``ends`` and at inputs of the graph.

    ``output`` itself is no end.
    """
    pending = list(_operands(output))
    seen = set(pending)
    found = []
    inputs = set(graph.inputs)
    while pending:
        value = pending.pop()
        if value in ends or value in inputs:
            found.append(value)
            continue
        for operand in _operands(value):
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    order = {value: place for place, value in enumerate(_values(graph))}
    return sorted(found, key=lambda value: order[value])


def excerpt(
    model: Model, inputs: Sequence[tuple[str, str]], output: tuple[str, str], absent: Sequence[str]
) -> ir.Model:
    """Return the part of a model's main graph that computes a value from others.

    Shapes are left out: the part may be run on less than the model.

    Args:
        model: must not have initializers that are inputs too.
        inputs: names of values, and their names in the part.
        output: the same of what is computed; a constant is handed on.
        absent: names of inputs that the part has besides, and does not use.
    """
    source = model.ir
    values = {str(value.name): value for value in _values(source.graph) if value.name}
    wanted = values[output[0]]
    if wanted.producer() is None:
        graph = _handing_on(wanted, source)
    else:
        graph = ir.convenience.extract(source.graph, [values[name] for name, _ in inputs], [wanted])
    own = {str(value.name): value for value in graph.inputs}
    renamed = [(own[name], new) for name, new in inputs]
    if wanted.producer() is not None:
        renamed.append((graph.outputs[0], output[1]))
    taken = {str(value.name) for value in _values(graph)} - {str(v.name) for v, _ in renamed}
    for value in _values(graph):
        if value.name in taken and value.name in {new for _, new in renamed}:
            value.name = f"{value.name}_inside"
    for value, new in renamed:
        value.name = new
    for value in _values(graph):
        if not value.is_initializer():
            value.shape = None
    for name in absent:
        graph.inputs.append(ir.Value(name=name))
    part = ir.Model(
        graph,
        ir_version=source.ir_version,
        functions=[function.clone() for function in source.functions.values()],
    )
    declare_domains(part)
    part.ir_version = max(part.ir_version or 0, minimum_ir_version(part))
    return part


def _handing_on(constant: ir.Value, source: ir.Model) -> ir.Graph:
    """Return a graph without inputs whose output is a constant of another graph."""
    tensor = constant.const_value
    name = str(constant.name)
    kept = ir.Value(
        name=f"{name}_stored", type=constant.type, shape=constant.shape, const_value=tensor
    )
    node = ir.Node("", "Identity", [kept], outputs=[ir.Value(name=name, type=constant.type)])
    return ir.Graph(
        [],
        node.outputs,
        nodes=[node],
        initializers=[kept],
        opset_imports=source.graph.opset_imports,
        name=source.graph.name,
    )


def _operands(value: ir.Value) -> Iterator[ir.Value]:
    node = value.producer()
    for operand in () if node is None else (*node.inputs, *captured(node)):
        if operand is not None:
            yield operand


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for value in graph.initializers.values():
        if not value.is_graph_input():
            yield value
    for node in graph:
        yield from node.outputs

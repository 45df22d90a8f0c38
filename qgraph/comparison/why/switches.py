"""Build a model in which each quantizer can be replaced by the part of another model in its place.

The model gets one more input. If its value is the number of a quantizer, the consumers of this
quantizer read the result of the other model's part on the same data::

    data --+--[own quantizer]--------------------+
           +--[what the other model has there]---+--Where(selected == number)--> consumers
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.comparison.why.pairing import Place
from qgraph.graph.opset.versions import raise_ir_version

SELECTED = "selected_quantizer"
"""Name of the input that selects a quantizer; -1 selects none."""


def with_switches(
    model: ir.Model, places: Sequence[tuple[Place, Place]], other: ir.Model
) -> ir.Model:
    """Return a copy of a model with one switch for each place.

    Args:
        model: the model, without functions.
        places: places in it, and their counterparts in the other model.
        other: the other model, of the same opset.
    """
    copy = model.clone()
    graph = copy.graph
    twins = dict(zip(model.graph, graph, strict=True))
    values = dict(zip(model.graph.inputs, graph.inputs, strict=True))
    for name, value in model.graph.initializers.items():
        values.setdefault(value, graph.initializers[name])
    for node, twin in twins.items():
        values |= zip(node.outputs, twin.outputs, strict=True)
    for domain, version in other.graph.opset_imports.items():
        graph.opset_imports.setdefault(domain, version)
    selected = ir.Value(name=SELECTED, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    graph.inputs.append(selected)
    for number, (own, theirs) in enumerate(places):
        copies: dict[ir.Value, ir.Value] = {}
        if own.start is not None and theirs.start is not None:
            copies[theirs.start] = values[own.start]
        prefix = f"switch_{number}_"
        exchanged = _copied(graph, theirs.end, copies, prefix)
        tensor = ir.tensor(np.int64(number), name=f"{prefix}number")
        constant = ir.Value(
            name=tensor.name, type=selected.type, shape=ir.Shape([]), const_value=tensor
        )
        graph.register_initializer(constant)
        equal = ir.node("Equal", [selected, constant], name=f"{prefix}equal")
        mine = values[own.end]
        where = ir.node("Where", [equal.outputs[0], exchanged, mine], name=f"{prefix}where")
        equal.outputs[0].name, chosen = f"{prefix}is_selected", where.outputs[0]
        chosen.name, chosen.type, chosen.shape = f"{prefix}chosen", mine.type, mine.shape
        graph.extend([equal, where])
        for node, number_of_input in own.uses:
            twins[node].replace_input_with(number_of_input, chosen)
        for index, output in enumerate(graph.outputs):
            if own.is_output and output is mine:
                graph.outputs[index] = chosen
    graph.sort()
    raise_ir_version(copy)
    return copy


def _copied(
    graph: ir.Graph, end: ir.Value, known: dict[ir.Value, ir.Value], prefix: str
) -> ir.Value:
    """Return a value of another model, computed in a graph by copies of its nodes."""
    pending = [end]
    while pending:
        value = pending[-1]
        node = value.producer()
        missing = [] if node is None else [v for v in node.inputs if v and v not in known]
        if value in known:
            pending.pop()
        elif missing:
            pending += missing
        elif node is None:
            known[value] = _twin(value, prefix)
            known[value].const_value = value.const_value
            graph.register_initializer(known[value])
        else:
            twins = [_twin(output, prefix) for output in node.outputs]
            operands = [None if v is None else known[v] for v in node.inputs]
            graph.append(
                ir.Node(
                    node.domain,
                    node.op_type,
                    operands,
                    list(node.attributes.values()),
                    overload=node.overload,
                    outputs=twins,
                    name=f"{prefix}{node.name}",
                )
            )
            known |= zip(node.outputs, twins, strict=True)
    return known[end]


def _twin(value: ir.Value, prefix: str) -> ir.Value:
    return ir.Value(name=f"{prefix}{value.name}", type=value.type, shape=value.shape)

"""Variants of a model: excerpts, without quantizers, in standard operators.

A model without some of its quantizers of data, as runtimes that leave them out compute it.

A model in standard operators, for runtimes that do not know its quantizers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qgraph.graph.constants import constant, constant_expression, overridable
from qgraph.graph.opset.versions import declare_domains, minimum_ir_version
from qgraph.graph.scopes import bodies
from qgraph.graph.slices import ancestors, sources
from qgraph.model import Model
from qgraph.ops.operator import operator_of
from qgraph.quantizers.standardize import standardize


def frontier(graph: ir.Graph, output: ir.Value, ends: Collection[ir.Value]) -> list[ir.Value]:
    """Return the values where the search back from ``output`` stops: ``ends`` and graph inputs.

    ``output`` itself is no end.
    """
    last = {*ends, *graph.inputs}
    _, *inner = ancestors([output], lambda v: () if v in last and v is not output else sources(v))
    found = last.intersection(inner)
    return [value for value in _values(graph) if value in found]


def excerpt(
    model: Model, inputs: Sequence[tuple[str, str]], output: tuple[str, str], absent: Sequence[str]
) -> ir.Model:
    """Return the part of a model's main graph that computes a value from others, as a model.

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


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for value in graph.initializers.values():
        if not value.is_graph_input():
            yield value
    for node in graph:
        yield from node.outputs


def without_quantizers(model: Model, bits: int | None) -> tuple[Model, int]:
    """Return a copy without Q/DQ pairs of data, and the number of removed quantizers.

    Args:
        model: the model.
        bits: the width of codes that are left out; None for all.
    """
    copy = model.clone()
    number = 0
    for node in list(copy.ir.graph):
        data = node.inputs[0] if node.inputs else None
        if node.domain != "" or node.op_type != "QuantizeLinear" or data is None:
            continue
        if constant_expression(data) is not None or bits not in (None, _width(node)):
            continue
        for pair in _readers(node.outputs[0]):
            if pair.outputs[0].is_graph_output():
                # an output keeps its name; other readers skip the quantizer
                uses = list(pair.outputs[0].uses())
                for reader, place in uses:
                    reader.replace_input_with(place, data)
                number += bool(uses)
                continue
            pair.outputs[0].replace_all_uses_with(data)
            number += 1
    return copy, number


def _readers(codes: ir.Value) -> Iterator[ir.Node]:
    for node in codes.consumers():
        if node.op_type == "DequantizeLinear" and node.inputs[0] is codes:
            yield node
        elif node.op_type in ("Clip", "Identity") and node.inputs[0] is codes:
            yield from _readers(node.outputs[0])


def _width(node: ir.Node) -> int | None:
    codes = node.outputs[0].dtype
    if codes is not None:
        return codes.bitwidth
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if zero is not None:
        return ir.DataType.from_numpy(zero.dtype).bitwidth
    kind = node.attributes.get_int("output_dtype", ir.DataType.UINT8.value)
    return ir.DataType(kind or ir.DataType.UINT8.value).bitwidth


_THEIRS = frozenset({"", "ai.onnx", "com.microsoft"})


@dataclass(frozen=True)
class Standardized:
    """A model whose quantizers are written in standard operators.

    Attributes:
        model: with the inputs and outputs of the model it was made from.
        respelled: number of rewritten quantizers.
        left: names of the operators of those that are not.
    """

    model: Model
    respelled: int
    left: Sequence[str]


def in_standard_operators(
    model: Model, batches: Sequence[Mapping[str, Any]]
) -> Standardized | None:
    """Return ``model`` with each quantizer in standard operators that are equal in every bit.

    None if there is nothing to rewrite, or if inputs are given for initializers, which
    are constants in the form.

    Args:
        model: is not changed.
        batches: inputs that the form has to take.
    """
    fixed = {value.name for value in overridable(model.ir.graph)}
    if any(not fixed.isdisjoint(batch) for batch in batches):
        return None
    made = standardize(model.ir)
    if made is model.ir:
        return None
    before, left = _quantizers(model.ir), _quantizers(made)
    return Standardized(Model(made), len(before) - len(left), left)


def _quantizers(model: ir.Model) -> list[str]:
    """Return the operators of quantizers that ONNX does not define; FakeQuantize has any domain."""
    found = []
    for node in (node for body in bodies(model) for node in body):
        own = node.domain not in _THEIRS or node.op_type == "FakeQuantize"
        if own and operator_of(node) is not None and node.op_identifier() not in model.functions:
            found.append(node.op_type)
    return found

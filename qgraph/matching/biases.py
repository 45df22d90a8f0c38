"""Sums of products with a bias, written in one way: the operator without bias, then Add.

A Conv or ConvTranspose with a bias is replaced where the other model has an Add for it. ONNX does
not say when a bias is added, and with how many roundings. So all conclusions from this form have a
condition: the bias is added last, with one rounding. Only float32 is written like this. In narrower
types hardly any runtime rounds the finished sum before it adds the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.scopes import subgraphs
from qgraph.matching.known_values import KnownValues

_WITH_BIAS = frozenset({"Conv", "ConvTranspose"})

_OPSET = 7
"""Add broadcasts as NumPy does since then."""


def split_biases(models: Sequence[ir.Model]) -> frozenset[str]:
    """Write biases in one form in two models, in place; return the names of the sums they make.

    Nothing is done unless one model adds to a sum what the other one has as its bias.
    """
    found = [list(_sums(model.graph)) for model in models]
    forms = [[_has_bias(node) for node in nodes] for nodes in found]
    mixed = any(map(any, forms)) and any(map(_is_added_to, (n for nodes in found for n in nodes)))
    if forms[0] == forms[1] or not mixed:
        return frozenset()
    if any(model.opset_imports.get("", 0) < _OPSET for model in models):
        return frozenset()
    names = set()
    for model, nodes in zip(models, found, strict=True):
        known = KnownValues(model.opset_imports)
        known.enter(ir.traversal.RecursiveGraphIterator(model.graph))
        for node in nodes:
            if _can_split(node):
                names.add(_split(node, known))
            elif not _has_bias(node):
                _align(node, known)
    return frozenset(names)


def _sums(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph, and of those inside it, that may have a bias."""
    for node in graph:
        if node.domain == "" and node.op_type in _WITH_BIAS:
            yield node
        for attribute in node.attributes.values():
            for inner in subgraphs(attribute):
                yield from _sums(inner)


def _bias(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _has_bias(node: ir.Node) -> bool:
    return _bias(node) is not None


def _is_added_to(node: ir.Node) -> bool:
    """Return whether a sum has no bias, and another operator adds to it."""
    users = node.outputs[0].consumers()
    return not _has_bias(node) and any((u.domain, u.op_type) == ("", "Add") for u in users)


def _can_split(node: ir.Node) -> bool:
    return _has_bias(node) and _rank(node) > 2 and node.outputs[0].dtype is ir.DataType.FLOAT


def _split(node: ir.Node, known: KnownValues) -> str:
    """Replace a sum with a bias; return the name of its result."""
    old, graph, bias = node.outputs[0], node.graph, _bias(node)
    if not isinstance(graph, ir.Graph) or bias is None:
        raise AssertionError("only a sum with a bias is split")
    name = str(old.name)
    total = ir.Node("", node.op_type, node.inputs[:2], node.attributes.values(), name=node.name)
    terms = _in_form(bias, node, known) or _reshaped(bias, node)
    added = ir.node("Add", [total.outputs[0], terms[-1].outputs[0]], name=f"{node.name}_bias")
    total.outputs[0].name = f"{name}_sum"
    for step in (total, added):
        step.outputs[0].type, step.outputs[0].shape = old.type, old.shape
    old.name = f"{name}_replaced"
    added.outputs[0].name = name
    graph.insert_before(node, [total, *terms, added])
    old.replace_all_uses_with(added.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return name


def _align(node: ir.Node, known: KnownValues) -> None:
    """Give constants that are added to a sum by channel the form that a bias gets."""
    value = node.outputs[0]
    for user in list(value.consumers()):
        if (user.domain, user.op_type) != ("", "Add") or not isinstance(user.graph, ir.Graph):
            continue
        for place, operand in enumerate(user.inputs):
            terms = None if operand is None or operand is value else _in_form(operand, node, known)
            if terms is not None:
                user.graph.insert_before(user, terms)
                user.replace_input_with(place, terms[-1].outputs[0])


def _in_form(value: ir.Value, node: ir.Node, known: KnownValues) -> list[ir.Node] | None:
    """Return a constant ``[1, channels, 1, ...]`` that adds the same; None if there is none."""
    array, rank, channels = known.array(value), _rank(node), _channels(node)
    if array is None or array.dtype != np.float32 or array.size not in (1, channels):
        return None
    if value is _bias(node):
        is_by_channel = array.ndim == 1
    else:
        is_by_channel = array.ndim in (rank - 1, rank) and array.shape[1 - rank] == channels
    if not channels or array.ndim > rank or not (is_by_channel or array.size == 1):
        return None
    sizes = (1, channels, *(1,) * (rank - 2))
    spread = np.broadcast_to(array.reshape(-1), channels).reshape(sizes)
    made = ir.node("Constant", [], {"value": ir.tensor(np.ascontiguousarray(spread))})
    made.name = made.outputs[0].name = f"{node.outputs[0].name}_{value.name}_terms"
    made.outputs[0].type, made.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(sizes)
    return [made]


def _reshaped(value: ir.Value, node: ir.Node) -> list[ir.Node]:
    """Return nodes that give a bias that is not constant the form of a constant one."""
    sizes = np.array([1, -1, *(1,) * (_rank(node) - 2)], np.int64)
    shape = ir.node("Constant", [], {"value": ir.tensor(sizes)})
    turned = ir.node("Reshape", [value, shape.outputs[0]])
    for made, name in ((shape, "shape"), (turned, "terms")):
        made.name = made.outputs[0].name = f"{node.outputs[0].name}_{name}"
    return [shape, turned]


def _channels(node: ir.Node) -> int:
    """Return the number of channels of a sum; 0 if unknown."""
    weight = node.inputs[1]
    sizes = () if weight is None or weight.shape is None else weight.shape.dims
    turned = node.op_type == "ConvTranspose"
    size = sizes[turned] if len(sizes) > 2 else 0
    return (size if isinstance(size, int) else 0) * (
        node.attributes.get_int("group", 1) if turned else 1
    )


def _rank(node: ir.Node) -> int:
    weight = node.inputs[1]
    return 0 if weight is None or weight.shape is None else len(weight.shape)

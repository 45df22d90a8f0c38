"""The walk over a model that finds all of its quantizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.inference.walk import inferred
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.quantizers.dialects.dialect import DIALECTS, Dialect
from qgraph.quantizers.recognition.matcher import PatternMatcher
from qgraph.quantizers.site import Refusal, Site


def sites(model: ir.Model) -> Iterator[Site | Refusal]:
    """Yield every quantizer of a model, in subgraphs and functions too, in topological order.

    One that is written in several nodes is found as a whole; no node belongs to two that differ.
    The shapes and types of data are inferred, whatever the model states.
    """
    readers = _readers()
    with _inferred(model):
        # The body of a function defines an operator: written in that operator it would call itself.
        functions = (
            function
            for function in model.functions.values()
            if OpKey(function.domain, function.name) not in readers
        )
        graphs = [model.graph, *(function.graph for function in functions)]
        for graph in graphs:
            yield from _of_graph(list(nodes_of(graph)), readers)


def _of_graph(
    nodes: list[ir.Node], readers: dict[OpKey, list[Dialect]]
) -> Iterator[Site | Refusal]:
    matcher = PatternMatcher(nodes)
    for node in nodes:
        if matcher.is_taken(node):
            continue
        site = matcher.around(node) or _site_of(node, readers)
        if isinstance(site, Site):
            matcher.take(site)
        if site is not None:
            yield site


def site_of(node: ir.Node) -> Site | Refusal | None:
    """Return the quantizer that ``node`` is, alone or as the end of a pair.

    The first dialect that reads it has it. Whether it is part of a larger one is not looked at.
    """
    return _site_of(node, _readers())


def parts(site: Site) -> tuple[Site, ...]:
    """Return the quantizers that single dialects' nodes are within a site of more nodes.

    They are smaller than ``site``; the operators around them stay outside.
    """
    readers = _readers()
    found = (_site_of(node, readers) for node in site.nodes if len(site.nodes) > 1)
    own = set(site.nodes)
    return tuple(f for f in found if isinstance(f, Site) and own > set(f.nodes))


def _inferred(model: ir.Model) -> AbstractContextManager[None]:
    """Give the values of the main graph their inferred types and shapes."""
    values = [value for node in nodes_of(model.graph) for value in node.outputs]
    # Where the model has one floating type only, data of no stated type has that one.
    return inferred(model, values, keeps_types=only_float_type(model) is None)


def _readers() -> dict[OpKey, list[Dialect]]:
    readers: dict[OpKey, list[Dialect]] = {}
    for entry in DIALECTS:
        for key in entry.roots:
            readers.setdefault(key, []).append(entry)
    return readers


def _site_of(node: ir.Node, readers: dict[OpKey, list[Dialect]]) -> Site | Refusal | None:
    try:
        sites = (reader.read(node) for reader in readers.get(OpKey.of(node), ()))
        return next((site for site in sites if site is not None), None)
    except OperatorError as error:
        return Refusal(node, str(error))

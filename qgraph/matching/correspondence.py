"""Which tensors of two models belong together, by structure and provenance."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qgraph.errors import ModelError, UnsupportedError
from qgraph.matching.congruence import Class
from qgraph.matching.match import Matching
from qgraph.matching.plain import plain
from qgraph.model import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Match:
    """Two tensors that have to be equal if the models are.

    Attributes:
        node: the node of the reference that makes it.
        reference, candidate: its names in the main graphs.
        is_output: whether it is an output of the reference, and paired for that.
    """

    node: ir.Node
    reference: str
    candidate: str
    is_output: bool


def correspondence(
    reference: Model, candidate: Model, outputs: Mapping[str, str]
) -> tuple[Match, ...]:
    """Return the tensors of the main graphs that belong together, in the order of the reference.

    The graphs are matched as for a proof: values belong together that equal operators make of
    values that do, and where the graphs differ, those that have to be equal all the same. Names
    only choose among several of them.

    Args:
        reference: one model.
        candidate: the other one.
        outputs: its outputs by those of the reference.
    """
    named = _named(candidate.ir.graph)
    try:
        partners = _partners(Matching(*plain(reference, candidate, keep_inputs=False)), named)
    except (ModelError, UnsupportedError) as error:
        logger.info("tensors are matched by name, the graphs cannot be: %s", error)
        partners = {name: name for name in named}
    found = []
    for node in reference.ir.graph:
        for value in node.outputs:
            name = str(value.name)
            if name in outputs:
                found.append(Match(node, name, outputs[name], is_output=True))
            elif value.name and name in partners:
                found.append(Match(node, name, partners[name], is_output=False))
    return tuple(found)


def _named(graph: ir.Graph) -> set[str]:
    """Return the names of what can be looked at while a model runs."""
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    return {str(value.name) for value in values if value.name}


def _partners(matching: Matching, known: set[str]) -> dict[str, str]:
    """Return a value of the candidate for each of the reference that one was found for."""
    there: dict[Class, list[str]] = {}
    for value in _values(matching.candidate.plain.graph):
        if value.name in known:
            place = matching.class_of(matching.candidate, value)
            there.setdefault(place, []).append(str(value.name))
    met: dict[Class, int] = {}
    partners = {}
    for value in _values(matching.reference.plain.graph):
        place = matching.class_of(matching.reference, value)
        equal = there.get(place)
        if not equal or not value.name:
            continue
        # of several equal ones the first goes with the first
        turn = met[place] = met.get(place, -1) + 1
        name = str(value.name)
        partners[name] = name if name in equal else equal[min(turn, len(equal) - 1)]
    return partners


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs

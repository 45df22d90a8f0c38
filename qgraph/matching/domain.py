"""The inputs that both of two models take: one shape for each pair of inputs, with open sizes.

A size that is open in both models is an open size of the pair. One that is fixed in one model is
fixed for the pair: other inputs are not inputs of both. Dimensions that a model gives one name are
one size, as ONNX defines it. For example::

    reference  x: [N, 3, H]   mask: [N]
    candidate  x: [1, 3, ?]   mask: [?]     ->   x: [1, 3, H]   mask: [1]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import onnx_ir as ir

from qgraph.graph.inference.dimensions import Dim, symbol
from qgraph.graph.inference.walk import named

_Place = tuple[int, int, int]
"""Model, input and axis."""


@dataclass(frozen=True)
class Domain:
    """What both models take.

    Attributes:
        interfaces: for each of the two models, the shapes of its inputs by name.
        shared: open sizes that are a dimension of several inputs, each with these dimensions.
        reasons: for each of the two models, where the shape of an input comes from, by name.
    """

    interfaces: tuple[Mapping[str, Sequence[Dim]], Mapping[str, Sequence[Dim]]]
    shared: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})


def common_domain(reference: ir.Model, candidate: ir.Model) -> Domain:
    """Return the inputs that both of two models take.

    Inputs are paired by name, and by position where their names differ. What the models contradict
    each other in stays as each of them states it.
    """
    sides = [[_dims(value) for value in model.graph.inputs] for model in (reference, candidate)]
    inputs = [list(model.graph.inputs) for model in (reference, candidate)]
    pairs = list(_pairs(*inputs))
    reasons: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for pair in pairs:
        for side, other in ((0, 1), (1, 0)):
            name = str(inputs[side][pair[side]].name)
            reasons[side][name] = "stated for the input"
            if sides[side][pair[side]] is None:
                sides[side][pair[side]] = sides[other][pair[other]]
                reasons[side][name] = "stated for the input of the other model"
    classes = _classes(sides, pairs)
    names = _names(classes, sides, inputs)
    shapes: list[dict[str, list[Dim]]] = [{}, {}]
    for side, dims in enumerate(sides):
        for number, sizes in enumerate(dims):
            if sizes is not None:
                name = str(inputs[side][number].name)
                found = [names[side, number, axis] for axis in range(len(sizes))]
                shapes[side][name] = found
                if any(isinstance(a, int) and a != b for a, b in zip(found, sizes, strict=True)):
                    reasons[side][name] = "stated for the inputs of both models"
    return Domain((shapes[0], shapes[1]), _shared(classes, names, inputs), reasons)


def _dims(value: ir.Value) -> list[int | str | None] | None:
    """Return the dimensions that an input states: a size, a name, or None."""
    if value.shape is None:
        return None
    return [
        (size if size >= 0 else None) if isinstance(size, int) else size.value
        for size in value.shape.dims
    ]


def _pairs(ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> Iterator[tuple[int, int]]:
    """Yield the places of inputs that belong together."""
    free = [[k for k, v in enumerate(side) if not v.is_initializer()] for side in (ours, theirs)]
    names = [
        [str(side[k].name) for k in chosen]
        for side, chosen in zip((ours, theirs), free, strict=True)
    ]
    if set(names[0]) == set(names[1]) and len(set(names[0])) == len(names[0]) == len(names[1]):
        places = dict(zip(names[1], free[1], strict=True))
        yield from ((k, places[name]) for k, name in zip(free[0], names[0], strict=True))
    elif len(free[0]) == len(free[1]):
        yield from zip(*free, strict=True)
    defaults = {str(v.name): k for k, v in enumerate(theirs) if v.is_initializer()}
    for k, value in enumerate(ours):
        if value.is_initializer() and str(value.name) in defaults:
            yield k, defaults[str(value.name)]


def _classes(
    sides: Sequence[Sequence[Sequence[int | str | None] | None]], pairs: Sequence[tuple[int, int]]
) -> list[set[_Place]]:
    """Return the sets of dimensions that are one size."""
    stated = {
        (side, number, axis): size
        for side, dims in enumerate(sides)
        for number, sizes in enumerate(dims)
        for axis, size in enumerate(sizes or ())
    }
    wanted: list[tuple[_Place, _Place]] = []
    for a, b in pairs:
        ours, theirs = sides[0][a], sides[1][b]
        if ours is not None and theirs is not None and len(ours) == len(theirs):
            wanted += [((0, a, axis), (1, b, axis)) for axis in range(len(ours))]
    first: dict[tuple[int, str], _Place] = {}
    for place, size in stated.items():
        if isinstance(size, str):
            wanted.append((first.setdefault((place[0], size), place), place))
    graph: nx.Graph[_Place] = nx.Graph()
    graph.add_nodes_from(stated)
    for one, other in wanted:
        graph.add_edge(one, other)
        sizes = {stated[p] for p in nx.node_connected_component(graph, one)}
        if sum(isinstance(size, int) for size in sizes) > 1:
            graph.remove_edge(one, other)
    return [set(part) for part in nx.connected_components(graph)]


def _names(
    classes: Sequence[set[_Place]],
    sides: Sequence[Sequence[Sequence[int | str | None] | None]],
    inputs: Sequence[Sequence[ir.Value]],
) -> dict[_Place, Dim]:
    """Return the size of each dimension: a number, or an open size with a name of its own."""
    found: dict[_Place, Dim] = {}
    used: set[str] = set()
    for places in sorted(classes, key=min):
        stated = [(sides[k][n] or ())[axis] for k, n, axis in sorted(places)]
        size: Dim = next((size for size in stated if isinstance(size, int)), None)
        if size is None:
            side, number, axis = min(places)
            source = re_name(str(inputs[side][number].name))
            name = next(filter(None, map(named, (s for s in stated if isinstance(s, str)))), None)
            stem = name or f"{source}_{axis}"
            label = stem
            while label in used or label == "floor":
                label = f"{stem}_{len(used)}"
            used.add(label)
            size = symbol(label)
        found |= dict.fromkeys(places, size)
    return found


def re_name(name: str) -> str:
    """Return a name with the characters of an identifier."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in f"size_{name}")


def _shared(
    classes: Sequence[set[_Place]],
    names: Mapping[_Place, Dim],
    inputs: Sequence[Sequence[ir.Value]],
) -> dict[str, str]:
    """Return the open sizes of several dimensions of one model, with the first that has several."""
    shared = {}
    for places in classes:
        size = names[min(places)]
        for side in (0, 1):
            own = sorted(place for place in places if place[0] == side)
            if len(own) > 1 and not isinstance(size, int) and str(size) not in shared:
                shared[str(size)] = ", ".join(f"{inputs[k][n].name}[{axis}]" for k, n, axis in own)
    return shared

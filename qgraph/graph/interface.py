"""Pair the inputs and outputs of two models, and find the inputs that both models accept.

``interface`` pairs inputs and outputs. ``common_domain`` returns one shape for each pair of inputs,
with open sizes. A size that is open in both models is an open size of the pair. A size that is
fixed in one model is fixed for the pair, because both models must accept the inputs. Dimensions of
one name in a model have one size, as ONNX defines it. For example::

    reference  x: [N, 3, H]   mask: [N]
    candidate  x: [1, 3, ?]   mask: [?]     ->   x: [1, 3, H]   mask: [1]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.inference.dimensions import Dim, symbol
from qgraph.graph.inference.walk import named
from qgraph.graph.sizes import fits, fixed_sizes, stated_shape
from qgraph.numerics import Array
from qgraph.numerics.values import fingerprint
from qgraph.records import dataclass, field

Pair = tuple[ir.Value, ir.Value]
"""A value of the reference and one of the candidate."""


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of two graphs in pairs.

    ``inputs`` must be fed; ``defaults`` are initializers too, in both graphs.
    """

    inputs: list[Pair]
    defaults: list[Pair]
    outputs: list[Pair]

    @property
    def notes(self) -> list[str]:
        """Remarks on inputs and outputs that are paired by position."""
        named = (
            (role, ", ".join(f"{a.name!r} with {b.name!r}" for a, b in pairs if a.name != b.name))
            for role, pairs in (("inputs", self.inputs), ("outputs", self.outputs))
        )
        return [f"{role} are matched by position: {names}" for role, names in named if names]


def interface(reference: ir.Graph, candidate: ir.Graph) -> Interface:
    """Return the inputs and outputs of two graphs in pairs.

    They are paired by name if both graphs have the same unique names, else by position. Defaults
    are paired by name; those of only one graph are omitted.

    Raises:
        ModelError: the graphs have different numbers of inputs or of outputs.
    """
    return Interface(
        _paired("input", *(_fed(graph) for graph in (reference, candidate))),
        defaults(reference, candidate),
        _paired("output", reference.outputs, candidate.outputs),
    )


def fed_alike(reference: ir.Graph, candidate: ir.Graph) -> Interface:
    """Return the inputs and outputs of two graphs in pairs, see :func:`interface`.

    Raises:
        ModelError: their numbers differ, or no array can be fed to both inputs of a pair.
    """
    pairs = interface(reference, candidate)
    reason = next(filter(None, (conflict(*pair) for pair in pairs.inputs)), None)
    if reason is not None:
        raise ModelError(
            f"No array can be fed to both models: {reason}. Give models that take the same inputs."
        )
    return pairs


def inputs(reference: ir.Graph, candidate: ir.Graph) -> list[Pair]:
    """Return the inputs of two graphs in pairs, defaults last; empty if numbers differ."""
    try:
        fed = _paired("input", *(_fed(graph) for graph in (reference, candidate)))
    except ModelError:
        fed = []
    return fed + defaults(reference, candidate)


def names(pairs: Sequence[Pair]) -> dict[str, str]:
    """Return the names of the candidate's values by those of the reference's."""
    return {str(a.name): str(b.name) for a, b in pairs}


def defaults(reference: ir.Graph, candidate: ir.Graph) -> list[Pair]:
    """Return the inputs of both graphs that are initializers too, paired by name."""
    named = {str(value.name): value for value in candidate.inputs if value.is_initializer()}
    ours = (value for value in reference.inputs if value.is_initializer())
    return [(value, named[str(value.name)]) for value in ours if str(value.name) in named]


def are_equal_defaults(reference: ir.Value, candidate: ir.Value) -> bool:
    """Return whether two initializers have the same bits."""
    if reference.const_value is None or candidate.const_value is None:
        return False
    one, other = reference.const_value.numpy(), candidate.const_value.numpy()
    return fingerprint(one) == fingerprint(other)


def conflict(reference: ir.Value, candidate: ir.Value) -> str | None:
    """Return why no array can be fed to both of two inputs; None if one can."""
    types = reference.type, candidate.type
    if None not in types and type(types[0]) is not type(types[1]):
        return _differ(reference, *map(str, types))
    kinds = reference.dtype, candidate.dtype
    if None not in kinds and kinds[0] != kinds[1]:
        return _differ(reference, *(dtype.name for dtype in kinds if dtype is not None))
    if fits(fixed_sizes(reference), fixed_sizes(candidate)):
        return None
    return _differ(reference, *map(str, (reference.shape, candidate.shape)))


def _differ(value: ir.Value, one: str, other: str) -> str:
    return f"input {value.name!r} is {one} in the reference and {other} in the candidate"


def _fed(graph: ir.Graph) -> list[ir.Value]:
    return [value for value in graph.inputs if not value.is_initializer()]


def _paired(role: str, reference: Sequence[ir.Value], candidate: Sequence[ir.Value]) -> list[Pair]:
    ours, theirs = ([str(value.name) for value in side] for side in (reference, candidate))
    if len(ours) != len(theirs):
        raise ModelError(
            f"The reference has the {role}s {', '.join(ours) or 'none'}, the candidate "
            f"{', '.join(theirs) or 'none'}; "
            "expected as many. Compare models of one interface."
        )
    if len(set(ours)) == len(ours) and set(ours) == set(theirs):
        named = dict(zip(theirs, candidate, strict=True))
        return [(value, named[name]) for name, value in zip(ours, reference, strict=True)]
    return list(zip(reference, candidate, strict=True))


_Axis = tuple[int, int, int]
"""Model (0 or 1), input and axis, as indices."""


@dataclass(frozen=True)
class Domain:
    """The inputs that both models accept.

    Attributes:
        interfaces, reasons: for each model, by name of an input, its shape, and why.
        shared: open sizes that are a dimension of several inputs, each with these dimensions.
    """

    interfaces: tuple[Mapping[str, Sequence[Dim]], Mapping[str, Sequence[Dim]]]
    shared: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})


def common_domain(reference: ir.Model, candidate: ir.Model) -> Domain:
    """Return the inputs that two models accept.

    Inputs are paired by name, and by position where their names differ. Contradictory sizes are
    kept as each model states them.
    """
    values = [list(model.graph.inputs) for model in (reference, candidate)]
    stated = [list(map(stated_shape, side)) for side in values]
    pairs = [
        (values[0].index(ours), values[1].index(theirs))
        for ours, theirs in inputs(reference.graph, candidate.graph)
    ]
    reasons: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for pair in pairs:
        for side, other in ((0, 1), (1, 0)):
            name = str(values[side][pair[side]].name)
            reasons[side][name] = "stated for the input"
            if stated[side][pair[side]] is None:
                stated[side][pair[side]] = stated[other][pair[other]]
                reasons[side][name] = "stated for the input of the other model"
    classes = _classes(stated, pairs)
    sizes = _sizes(classes, stated, values)
    shapes: tuple[dict[str, list[Dim]], dict[str, list[Dim]]] = ({}, {})
    for side, dims in enumerate(stated):
        for index, own in enumerate(dims):
            if own is None:
                continue
            name = str(values[side][index].name)
            shape = shapes[side][name] = [sizes[side, index, axis] for axis in range(len(own))]
            if any(isinstance(a, int) and a != b for a, b in zip(shape, own, strict=True)):
                reasons[side][name] = "stated for the inputs of both models"
    return Domain(shapes, _shared(classes, sizes, values), reasons)


def _classes(
    sides: Sequence[Sequence[Sequence[int | str | None] | None]], pairs: Sequence[tuple[int, int]]
) -> list[set[_Axis]]:
    """Return the sets of dimensions that are one size."""
    import networkx as nx

    stated = {
        (side, number, axis): size
        for side, dims in enumerate(sides)
        for number, sizes in enumerate(dims)
        for axis, size in enumerate(sizes or ())
    }
    wanted: list[tuple[_Axis, _Axis]] = []
    for a, b in pairs:
        ours, theirs = sides[0][a], sides[1][b]
        if ours is not None and theirs is not None and len(ours) == len(theirs):
            wanted += [((0, a, axis), (1, b, axis)) for axis in range(len(ours))]
    first: dict[tuple[int, str], _Axis] = {}
    for dimension, size in stated.items():
        if isinstance(size, str):
            wanted.append((first.setdefault((dimension[0], size), dimension), dimension))
    graph: nx.Graph[_Axis] = nx.Graph()
    graph.add_nodes_from(stated)
    for one, other in wanted:
        graph.add_edge(one, other)
        sizes = {stated[p] for p in nx.node_connected_component(graph, one)}
        if sum(isinstance(size, int) for size in sizes) > 1:
            graph.remove_edge(one, other)
    return [set(part) for part in nx.connected_components(graph)]


def _sizes(
    classes: Sequence[set[_Axis]],
    stated: Sequence[Sequence[Sequence[int | str | None] | None]],
    values: Sequence[Sequence[ir.Value]],
) -> dict[_Axis, Dim]:
    """Return the size of each dimension: a number, or an open size with a name of its own."""
    sizes: dict[_Axis, Dim] = {}
    used: set[str] = set()
    for dimensions in sorted(classes, key=min):
        own = [(stated[side][index] or ())[axis] for side, index, axis in sorted(dimensions)]
        size: Dim = next((size for size in own if isinstance(size, int)), None)
        if size is None:
            side, index, axis = min(dimensions)
            name = next(filter(None, map(named, (s for s in own if isinstance(s, str)))), None)
            stem = name or f"{_identifier(str(values[side][index].name))}_{axis}"
            label = stem
            while label in used or label == "floor":
                label = f"{stem}_{len(used)}"
            used.add(label)
            size = symbol(label)
        sizes |= dict.fromkeys(dimensions, size)
    return sizes


def _identifier(name: str) -> str:
    """Return a name with the characters of an identifier."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in f"size_{name}")


def _shared(
    classes: Sequence[set[_Axis]], sizes: Mapping[_Axis, Dim], values: Sequence[Sequence[ir.Value]]
) -> dict[str, str]:
    """Return the open sizes of several dimensions of one model, with the first that has several."""
    shared = {}
    for dimensions in classes:
        size = sizes[min(dimensions)]
        for side in (0, 1):
            own = sorted(dimension for dimension in dimensions if dimension[0] == side)
            if len(own) > 1 and not isinstance(size, int) and str(size) not in shared:
                shared[str(size)] = ", ".join(f"{values[k][n].name}[{axis}]" for k, n, axis in own)
    return shared


@dataclass(frozen=True, eq=False)
class Difference:
    """Two values that differ between two models which are otherwise the same.

    Attributes:
        entry: the values that both models compute equally; None if the exit is constant.
        constants: the arrays of the exit, if it is constant.
        outputs: outputs of the reference that depend on the exit.
        numbers: numbers of the entry on which the values differ, if it can take them.
        bits: whether NaN and the signs of zeros count.
    """

    entry: Pair | None
    exit: Pair
    constants: tuple[Array, Array] | None
    outputs: Sequence[ir.Value]
    numbers: Sequence[float]
    bits: bool

"""Random changes of whole models, some of which change no value; and runs that tell which do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qgraph.model import load

Array = np.ndarray[Any, Any]
Random = np.random.Generator
Feeds = dict[str, Array]
Change = Callable[[Random, onnx.ModelProto], None]


class NoChange(Exception):  # noqa: N818 - an end, not a fault
    """There is nothing in the model that a mutation could change."""


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs in the attributes of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


T = TypeVar("T")


def _one(random: Random, choices: list[T]) -> T:
    if not choices:
        raise NoChange
    return choices[int(random.integers(len(choices)))]


def _graph(random: Random, made: onnx.ModelProto) -> onnx.GraphProto:
    found = list(graphs(made.graph))
    return found[0] if random.random() < 0.7 else _one(random, found)


def _tensors(made: onnx.ModelProto) -> list[onnx.TensorProto]:
    found = [tensor for graph in graphs(made.graph) for tensor in graph.initializer]
    for graph in graphs(made.graph):
        for node in graph.node:
            found += [a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    return found


def _put(tensor: onnx.TensorProto, array: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


def number(random: Random, made: onnx.ModelProto) -> None:
    """Change one number of a constant a little."""
    tensor = _one(random, [t for t in _tensors(made) if t.dims == [] or np.prod(t.dims)])
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    place = int(random.integers(flat.size))
    if array.dtype in (np.float32, np.float64, np.float16):
        changes = [np.nextafter(flat[place], array.dtype.type(9)), -flat[place], flat[place] * 0]
        flat[place] = _one(random, changes)
    elif array.dtype == np.bool_:
        flat[place] = not flat[place]
    else:
        one = np.asarray(random.choice([1, -1]) if array.dtype.kind != "u" else 1)
        flat[place] = flat[place] + one.astype(array.dtype)
    _put(tensor, array)


def zero(random: Random, made: onnx.ModelProto) -> None:
    """Turn the sign of the zeros in a constant."""
    arrays = [(t, numpy_helper.to_array(t)) for t in _tensors(made)]
    found = [
        (t, a) for t, a in arrays if a.dtype.kind == "f" and a.size and not np.asarray(a).all()
    ]
    tensor, array = _one(random, found)
    _put(tensor, np.where(array == 0, -array, array).astype(array.dtype))


def shape(random: Random, made: onnx.ModelProto) -> None:
    """Give a constant another shape that may broadcast to the same, or spread it out."""
    tensor = _one(random, _tensors(made))
    array = numpy_helper.to_array(tensor)
    one = array[None]
    spread = np.broadcast_to(one, (2, *array.shape))
    flat = [array.reshape(()), array.reshape(1)] if array.size == 1 else [array.reshape(-1)]
    _put(tensor, _one(random, [one, spread, *flat, array[..., None]]))


def attribute(random: Random, made: onnx.ModelProto) -> None:
    """Change one attribute."""
    nodes = [n for g in graphs(made.graph) for n in g.node]
    found = [(n, a) for n in nodes for a in n.attribute if a.type in (1, 2, 3, 6, 7)]
    node, given = _one(random, found)
    match given.type:
        case onnx.AttributeProto.FLOAT:
            given.f = float(np.nextafter(np.float32(given.f), np.float32(9)))
        case onnx.AttributeProto.INT:
            given.i += int(random.choice([-1, 1]))
        case onnx.AttributeProto.STRING:
            given.s = _one(random, [b"ROUND", b"FLOOR", b"CEIL", b"HALF_UP", b"UP", b"DOWN"])
        case onnx.AttributeProto.INTS:
            given.ints[int(random.integers(len(given.ints)))] += int(random.choice([-1, 1]))
    if random.random() < 0.2:
        node.attribute.remove(given)


def operands(random: Random, made: onnx.ModelProto) -> None:
    """Swap two operands of a node, or two results."""
    nodes = [n for n in _graph(random, made).node if max(len(n.input), len(n.output)) > 1]
    node = _one(random, nodes)
    names = node.output if len(node.output) > 1 and random.random() < 0.5 else node.input
    if len(names) < 2:
        raise NoChange
    a, b = (int(i) for i in random.choice(len(names), 2, replace=False))
    names[a], names[b] = names[b], names[a]


OTHERS = [
    ["Min", "Max"],
    ["Floor", "Round", "Ceil"],
    ["Less", "LessOrEqual"],
    ["Greater", "GreaterOrEqual"],
    ["Add", "Sub", "Mul", "Div"],
    ["Relu", "Abs", "Neg", "Identity", "Sign"],
    ["MaxPool", "AveragePool"],
    ["Softmax", "Hardmax"],
    ["F0", "F1"],
]


def operator(random: Random, made: onnx.ModelProto) -> None:
    """Make another operator of a node."""
    nodes = [n for n in _graph(random, made).node if any(n.op_type in some for some in OTHERS)]
    node = _one(random, nodes)
    node.op_type = _one(random, next(some for some in OTHERS if node.op_type in some))


def bypass(random: Random, made: onnx.ModelProto) -> None:
    """Leave a node out."""
    graph = _graph(random, made)
    node = _one(random, [n for n in graph.node if n.op_type != "Constant" and n.input])
    node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1]))


Wires = list[tuple[str, list[Any], dict[str, Any]]]


def _inserted(random: Random, kind: type[np.generic], rank: int) -> Wires:
    """Return what may be put behind a value: operators, further operands, attributes."""
    c = lambda v: np.asarray(v).astype(kind)  # noqa: E731 - short as a table needs it
    turn = random.permutation(rank).tolist()
    back = np.argsort(turn).tolist()
    return _one(
        random,
        [
            [("Identity", [], {})],
            [("Mul", [c(1)], {})],
            [("Mul", [c(2)], {}), ("Mul", [c(0.5)], {})],
            [("Add", [c(0)], {})],
            [("Add", [c(-0.0)], {})],
            [("Sub", [c([0.0])], {})],
            [("Div", [c(1)], {})],
            [("Neg", [], {}), ("Neg", [], {})],
            [("Relu", [], {})],
            [("Max", [c(0)], {})],
            [("Clip", [c(-128), c(127)], {})],
            [("Add", [c(3)], {}), ("Sub", [c(3)], {})],
            [("Transpose", [], {"perm": turn}), ("Transpose", [], {"perm": back})],
            [("Unsqueeze", [np.asarray([0])], {}), ("Squeeze", [np.asarray([0])], {})],
            [("Reshape", [np.asarray([-1])], {})],
            [("Reshape", [np.asarray([0] * rank)], {})],
            [("Cast", [], {"to": 1})],
            [("Cast", [], {"to": 10}), ("Cast", [], {"to": 1})],
            [("Cast", [], {"to": 11}), ("Cast", [], {"to": 1})],
            [("Cast", [], {"to": 7}), ("Cast", [], {"to": 1})],
            [("Round", [], {})],
            [("Abs", [], {})],
        ],
    )


def insert(random: Random, made: onnx.ModelProto) -> None:
    """Put operators behind a value that mostly change nothing."""
    graph = made.graph
    kinds = {
        v.name: (v.type.tensor_type.elem_type, len(v.type.tensor_type.shape.dim))
        for v in [*graph.input, *_inferred(made)]
    }
    place = int(random.integers(len(graph.node)))
    node = graph.node[place]
    spots = [i for i, name in enumerate(node.input) if name in kinds]
    spot = _one(random, spots)
    code, rank = kinds[node.input[spot]]
    if code in (0, 8):
        raise NoChange
    last = node.input[spot]
    fresh = f"m{len(graph.node)}_{place}"
    added = []
    for step, (op, others, given) in enumerate(
        _inserted(random, helper.tensor_dtype_to_np_dtype(code).type, rank)
    ):
        names = []
        for array in others:
            names.append(f"{fresh}_{step}_{len(names)}")
            graph.initializer.append(numpy_helper.from_array(array, names[-1]))
        added.append(helper.make_node(op, [last, *names], [f"{fresh}_{step}"], **given))
        last = f"{fresh}_{step}"
    graph.node[place].input[spot] = last
    rest = [*graph.node[:place], *added, *graph.node[place:]]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in rest]
    del graph.node[:]
    graph.node.extend(copies)


def _inferred(made: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    try:
        return list(onnx.shape_inference.infer_shapes(made).graph.value_info)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return []


def names(random: Random, made: onnx.ModelProto) -> None:
    """Exchange the names of values inside, so that names mislead."""
    graph = made.graph
    kept = {v.name for v in [*graph.input, *graph.output]}
    found = [n for node in graph.node for n in node.output if n and n not in kept]
    if len(found) < 2:
        raise NoChange
    new = dict(zip(found, random.permutation(found).tolist(), strict=True))
    for inner in graphs(graph):
        for node in inner.node:
            for some in (node.input, node.output):
                some[:] = [new.get(n, n) for n in some]
        for value in inner.output:
            value.name = new.get(value.name, value.name)


def outputs(random: Random, made: onnx.ModelProto) -> None:
    """Exchange what two outputs are, or make one of them another value."""
    graph = made.graph
    results = [n for node in graph.node for n in node.output if n]
    first, second = _one(random, list(graph.output)).name, _one(random, results)
    swap = {first: second, second: first}
    for node in graph.node:
        node.output[:] = [swap.get(n, n) for n in node.output]


def branches(random: Random, made: onnx.ModelProto) -> None:
    """Exchange the branches of an If."""
    node = _one(random, [n for n in made.graph.node if n.op_type == "If"])
    node.attribute[0].name, node.attribute[1].name = (
        node.attribute[1].name,
        node.attribute[0].name,
    )


def version(random: Random, made: onnx.ModelProto) -> None:
    """Say another opset, whatever the operators were."""
    entry = next(entry for entry in made.opset_import if not entry.domain)
    entry.version = int(random.choice([13, 17, 18, 19, 20, 21, 22, 23, 24, 25]))
    for function in made.functions:
        function.opset_import[0].version = entry.version


def value_info(random: Random, made: onnx.ModelProto) -> None:
    """State a wrong shape or type of a value inside."""
    node = _one(random, [n for n in made.graph.node if n.op_type != "Constant"])
    code = int(random.choice([1, 1, 1, 10, 3, 11]))
    sizes = _one(random, [[], [1], [4], [2, 4], [4, 2], [8], [1, 4], ["N", 4]])
    made.graph.value_info.append(helper.make_tensor_value_info(node.output[0], code, sizes))


MUTATIONS: list[Change] = [
    *[number, shape, insert, operands, bypass] * 2,
    *[zero, attribute, operator, names, outputs, branches, version, value_info],
]


def mutate(
    random: Random, made: onnx.ModelProto, changes: Sequence[Change] = ()
) -> tuple[onnx.ModelProto, str]:
    """Return a copy of a model after one or two random changes, and what was done.

    Raises:
        NoChange: after many tries none of the changes is possible.
    """
    choices = changes or MUTATIONS
    for _ in range(64):
        copy = onnx.ModelProto.FromString(made.SerializeToString())
        done = []
        try:
            for _ in range(1 + int(random.random() < 0.3)):
                change = choices[int(random.integers(len(choices)))]
                change(random, copy)
                done.append(change.__name__)
        except (NoChange, ValueError, TypeError, OverflowError):
            continue
        return copy, " ".join(done)
    raise NoChange


def feeds(random: Random, made: onnx.ModelProto, *, hard: bool) -> Feeds:
    """Return inputs: neighbours of halves of all scales if ``hard``, else small numbers."""
    pool = [np.float64(v) for v in (0, -0.0, 0.5, -0.5, 1, 2.5, -3.5, 7, 100, -100)]
    floats = [numpy_helper.to_array(t) for t in _tensors(made)]
    for array in floats:
        if array.dtype == np.float32 and array.size:
            pool += list(random.choice(array.reshape(-1), 6) * random.integers(-9, 9, 6) / 2)
    if hard:
        pool += [1e38, -1e38, 1e-40, np.inf, -np.inf, 16777216.0, 3e9]
    found = {}
    batch = int(random.integers(1, 4))
    for value in made.graph.input:
        kind = value.type.tensor_type
        sizes = [d.dim_value or batch for d in kind.shape.dim]
        drawn = random.choice(np.asarray(pool, np.float64), sizes)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind in "iub":
            drawn = np.clip(np.nan_to_num(drawn), -100, 100)
            drawn = np.abs(drawn) if dtype.kind == "u" else drawn
        with np.errstate(all="ignore"):
            array = np.asarray(drawn.astype(dtype))
        if dtype == np.float32:
            steps = random.integers(-2, 3, sizes)
            near = (array.view(np.int32) + steps).astype(np.int32).view(np.float32)
            array = np.where(np.isfinite(array) & (array != 0), near, array).astype(np.float32)
        found[value.name] = array
    return found


def difference(
    random: Random, reference: onnx.ModelProto, candidate: onnx.ModelProto, *, runs: int
) -> Feeds | None:
    """Return inputs on which the models have other outputs, zero signs and NaN apart.

    Raises:
        QGraphError: one of the models does not run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sides = [load(made) for made in (reference, candidate)]
        inside = [n for node in reference.graph.node for n in node.output if n]
        for turn in range(runs):
            given = feeds(random, reference, hard=turn % 2 == 1)
            with np.errstate(all="ignore"):
                ours = sides[0].run(given, backend="numpy", taps=inside)
                theirs = sides[1].run(given, backend="numpy")
            if any(has_nan(array) for array in ours.values()):
                continue
            pairs = zip(reference.graph.output, candidate.graph.output, strict=True)
            if any(differ(ours[a.name], theirs[b.name]) for a, b in pairs):
                return given
    return None


def has_nan(array: Any) -> bool:
    """Return whether an array of floats contains a NaN."""
    floats = isinstance(array, np.ndarray) and array.dtype.kind in "fV"
    return floats and bool((array != array).any())


def differ(a: Any, b: Any) -> bool:
    """Return whether two results differ in type, shape or value."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return True
    return bool((~((a == b) | ((a != a) & (b != b)))).any())

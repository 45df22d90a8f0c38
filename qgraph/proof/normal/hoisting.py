"""Move data movement before elementwise operators: ``M(f(a, b)) -> f(M(a), M(b))``.

Equal bit for bit, including NaN and signs of zeros, except for the undefined sign of a zero of
Clip, Max, Min or Relu; see :mod:`qgraph.proof.normal.elementwise`. Consecutive movements become
one:

    Transpose(Transpose(x, p), q)  -> Transpose(x, p[q])       the identity is removed
    Reshape(Reshape(x, s), t)      -> Reshape(x, t)
    Gather(Gather(x, i), j)        -> Gather(x, i[j])           along one axis
    Transpose(Gather(x, i))        -> Gather(Transpose(x), i)   also of Concat

A Reshape to a shape that is computed is moved before functions with single numbers as parameters.

Every movement is written in one form; a Split becomes one Gather for each part. Concat and Pad are
exchanged with elementwise functions:

    Concat(f(a), f(b))   -> f(Concat(a, b))        the same parameters, constant along the axis;
                                                   also of Where
    f(M(Pad(x, v)))      -> M(Pad(f(x), f(v)))     f with single numbers as parameters, movements M
    f(Gather(c, i))      -> Gather(f(c), i)        the same, of a constant c
    f(M(Gather(c, i)))   -> M(Gather(f(c), i))     the same, with movements M

Equal bit for bit: on both sides, ``f`` is applied once to each element of the data or the padding.
The kernel of ``f`` computes ``f(v)``, and IEEE 754 determines all its bits. Only values are kept if
the sign of a zero of Clip, Max, Min or Relu is not defined.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.scopes import producer_of
from qgraph.graph.sizes import stated_shape
from qgraph.numerics import Array
from qgraph.proof.matching.operators import is_elementwise
from qgraph.proof.normal.elementwise import (
    data_of,
    is_along_axis,
    is_on_elements,
    keeps_sizes,
    may_move,
    moved,
    parameters_of,
    reads_table,
)
from qgraph.proof.normal.maxima import are_equal_constants, common_function
from qgraph.proof.normal.movements import (
    Movement,
    Permutation,
    Reshaping,
    Selection,
    moved_parameter,
    read,
    result_of,
    write,
)
from qgraph.proof.normal.rewriter import Rewriter
from qgraph.proof.regions import run_nodes
from qgraph.reasons import Undecidable


def write_movements(graph: Rewriter, node: ir.Node) -> None:
    """Write a node that moves elements in the canonical form of its movements."""
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    require(used and node not in graph.movements and not any(map(graph.known.has, used)))
    moves = [given(read(graph, value)) for value in used]
    for value, move in zip(used, moves, strict=True):
        graph.replace(value, write(graph, move.data, node, *move.steps))


def join_movements(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Join two consecutive movements, or sort them."""
    require(node in graph.movements)
    last: Movement = graph.movements[node]
    before = read(graph, given(node.inputs[0]))
    if before is None or len(before.steps) != 1:
        return _permute_concat(graph, node, last)
    (first,) = before.steps
    steps: list[Movement]
    match first, last:
        case Permutation(), Permutation():
            steps = [Permutation(tuple(first.order[axis] for axis in last.order))]
        case Reshaping(), Reshaping():
            steps = [joined := Reshaping(first.source, last.target)]
            given(joined.shape)
        case Selection(), Selection() if first.axis == last.axis:
            steps = [Selection(last.axis, tuple(first.chosen[index] for index in last.chosen))]
        case Selection(), Selection() if last.axis < first.axis:
            steps = [last, first]
        case Selection(), Permutation():
            steps = [last, Selection(last.order.index(first.axis), first.chosen)]
        case _:
            raise Unknown
    return write(graph, before.data, node, *steps)


def hoist(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Move the operands instead of the result of an elementwise operator."""
    require(node in graph.movements)
    movement: Movement = graph.movements[node]
    value = given(node.inputs[0])
    inner = given(value.producer())
    require(not graph.known.has(value) and (is_on_elements(inner) or reads_table(graph, inner)))
    require(may_move(graph, inner, node.outputs[0]))
    sizes, data = stated_shape(value), data_of(graph, inner)
    require(data)
    if isinstance(movement, Permutation):
        rank, shapes = len(movement.order), [stated_shape(x) for x in data]
        arrays = [graph.array(v) for v in inner.inputs if v is not None and graph.known.has(v)]
        # a constant with dimensions might enlarge the data
        if len(data) == 1 and all(array is not None and array.ndim == 0 for array in arrays):
            sizes = (None,) * rank if sizes is None else sizes
        require(len(given(sizes)) == rank and (len(data) == 1 or None not in shapes))
        require(all(shape is None or len(shape) == rank for shape in shapes))
    else:
        require(sizes is not None and all(keeps_sizes(graph, inner, x) for x in data))
    return moved(
        graph,
        inner,
        node,
        lambda x: write(graph, x, node, movement),
        lambda array: moved_parameter(movement, array),
        sizes,
        stated_shape(node.outputs[0]) or result_of(movement, given(sizes)),
    )


def hoist_open_reshape(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Reshape the data of a function instead of its result; the shape may be unknown.

    The operands of the function that are not constant have one shape, and the others are single
    numbers. So the function is the same for each element, whatever its index.
    """
    value = given(node.inputs[0])
    inner = given(value.producer())
    require(node not in graph.movements and not graph.known.has(value))
    data = list(dict.fromkeys(x for x in inner.inputs if x is not None and not graph.known.has(x)))
    require(is_on_elements(inner) and data and all(x.dtype is not None for x in data))
    require(len(data) == 1 or len({_source_of_shape(graph, x) for x in data}) == 1)
    inputs, rank = list(inner.inputs), len(stated_shape(data[0]) or ())
    for index, operand in enumerate(inputs):
        if operand is not None and operand not in data:
            array = given(graph.array(operand))
            require(array.size == 1 and array.ndim <= rank)
            inputs[index] = graph.constant(array.reshape(()), str(operand.name))
    require(may_move(graph, inner, node.outputs[0]))
    turned = {x: _reshaped(graph, node, x) for x in data}
    moved_inputs = [x if x is None else turned.get(x, x) for x in inputs]
    return graph.copy(inner, node, moved_inputs, stated_shape(node.outputs[0]))


def _reshaped(graph: Rewriter, node: ir.Node, data: ir.Value) -> ir.Value:
    """Return data after a Reshape to the shape of a node, from an existing or a new Reshape."""
    form = tuple(f"{each.name}={each.value}" for each in node.attributes.values())
    key = "open reshape", form, data, *node.inputs[1:], graph.is_delicate(node)
    shared = graph.shared(key)
    if shared is not None:
        return shared
    turned = graph.copy(node, node, [data, *node.inputs[1:]], stated_shape(node.outputs[0]))
    turned.type = data.type
    return graph.share(key, turned)


def _source_of_shape(graph: Rewriter, value: ir.Value) -> ir.Value:
    """Return the farthest value from which elementwise functions of equal shape lead to a value."""
    while (maker := value.producer()) is not None and is_on_elements(maker):
        data = data_of(graph, maker)
        if len(data) != 1 or not keeps_sizes(graph, maker, data[0]):
            break
        value = data[0]
    return value


def _permute_concat(graph: Rewriter, node: ir.Node, last: Movement) -> ir.Value:
    inner = given(producer_of(node.inputs[0], "Concat"))
    if not isinstance(last, Permutation):
        raise Unknown
    require("axis" in inner.attributes and not graph.known.has(inner.outputs[0]))
    rank, axis = len(last.order), inner.attributes["axis"].as_int()
    require(-rank <= axis < rank)
    parts = [write(graph, part, node, last) for part in inner.inputs if part is not None]
    along = ir.AttrInt64("axis", last.order.index(axis % rank))
    return graph.copy(inner, node, parts, stated_shape(node.outputs[0]), [along])


def hoist_concat(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Concatenate the data of one function instead of its results."""
    parts = [value for value in node.inputs if value is not None]
    require("axis" in node.attributes and len(parts) > 1)
    makers = [given(part.producer()) for part in parts]
    require(not any(graph.known.has(maker.outputs[0]) for maker in makers))
    sizes = given(stated_shape(node.outputs[0]))
    require(sizes)
    try:
        data = common_function(graph, makers)
    except Unknown:
        return _join_choices(graph, node, makers)
    axis, first = node.attributes["axis"].as_int() % len(sizes), makers[0]
    parameters = parameters_of(graph, first, len(sizes))
    require(all(array.shape[axis] == 1 for array in parameters.values()))
    require(all(value is None or graph.known.has(value) for value in first.inputs[1:]))
    require(may_move(graph, first, node.outputs[0]))
    return graph.copy(first, node, [_joined(graph, node, data), *first.inputs[1:]], sizes)


def _join_choices(graph: Rewriter, node: ir.Node, makers: list[ir.Node]) -> ir.Value:
    """Concatenate the operands of Where, of the size of their results or equal numbers."""
    require(all(maker.op_type == "Where" and not maker.domain for maker in makers))
    chosen: list[ir.Value] = []
    for operands in zip(*(maker.inputs for maker in makers), strict=True):
        data, filler = [given(value) for value in operands], graph.array(operands[0])
        if filler is not None and filler.ndim == 0:
            require(all(are_equal_constants(graph, data[0], other) for other in data))
            chosen.append(data[0])
        else:
            require(all(keeps_sizes(graph, *pair) for pair in zip(makers, data, strict=True)))
            chosen.append(_joined(graph, node, data))
    return graph.copy(makers[0], node, chosen, stated_shape(node.outputs[0]))


def _joined(graph: Rewriter, node: ir.Node, data: list[ir.Value]) -> ir.Value:
    """Return other data after a Concat, from an existing node or a new one before it."""
    axis, sizes = node.attributes["axis"].as_int(), stated_shape(node.outputs[0])
    key = "Concat", axis, tuple(data), graph.is_delicate(node)
    whole = graph.shared(key)
    if whole is None:
        whole = graph.node(node, "Concat", data, {"axis": axis}, dtype=data[0].dtype, sizes=sizes)
    return graph.share(key, whole)


def sink_pad(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Pad the results of a function instead of its data, and move them afterwards."""
    start, steps = _unmoved(graph, _only_data(graph, node))
    pad = given(producer_of(start, "Pad"))
    x = given(pad.inputs[0])
    require(pad.attributes.get_string("mode", "constant") == "constant")
    require("pads" not in pad.attributes)
    operands = [*pad.inputs[1:], None, None, None][:3]
    constants = [graph.array(value) for value in operands]
    require(all((a is None) == (v is None) for a, v in zip(constants, operands, strict=True)))
    require(constants[0] is not None)
    value = np.zeros((), given(x.dtype).numpy()) if constants[1] is None else constants[1]
    require(value.size == 1 and _has_single_numbers(graph, node, len(stated_shape(x) or ())))
    result = _computed(graph, node, value.reshape(()))
    require(result.size == 1 and may_move(graph, node, node.outputs[0]))
    inner = graph.copy(node, node, [x, *node.inputs[1:]], stated_shape(x))
    filler = graph.constant(result.reshape(()), "pad_value")
    return _again(graph, node, pad, [inner, operands[0], filler, *operands[2:]], steps)


def look_up(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Apply a function to a constant table before the lookup, and movements between after it."""
    value = _only_data(graph, node)
    rank = len(stated_shape(value) or ())
    start, steps = _unmoved(graph, value)
    table, indices = given(producer_of(start, "Gather")).inputs
    sizes = stated_shape(given(table))
    require(sizes and graph.known.has(given(table)))
    require(
        _has_single_numbers(graph, node, min(rank, 1)) and may_move(graph, node, node.outputs[0])
    )
    results = graph.copy(node, node, [table, *node.inputs[1:]], sizes)
    return _again(graph, node, given(producer_of(start)), [results, indices], steps)


def _unmoved(graph: Rewriter, value: ir.Value) -> tuple[ir.Value | None, list[Movement]]:
    """Return the value before the movements that lead to a value, and these in their order."""
    steps: list[Movement] = []
    start: ir.Value | None = value
    while start is not None and (maker := start.producer()) and maker in graph.movements:
        steps.insert(0, graph.movements[maker])
        start = maker.inputs[0]
    return start, steps


def _again(
    graph: Rewriter,
    node: ir.Node,
    source: ir.Node,
    inputs: list[ir.Value | None],
    steps: list[Movement],
) -> ir.Value:
    """Return the result of ``source`` on new operands, and movements after it, for ``node``."""
    sizes, dtype = stated_shape(source.outputs[0]), node.outputs[0].dtype
    return write(graph, graph.copy(source, node, inputs, sizes, dtype=dtype), node, *steps)


def _has_single_numbers(graph: Rewriter, node: ir.Node, rank: int) -> bool:
    """Return whether all parameters are single numbers, of a rank or along an axis."""
    most = 1 if is_along_axis(node) else rank
    arrays = [graph.array(value) for value in node.inputs[1:]]
    return all(a is not None and a.size == 1 and a.ndim <= most for a in arrays)


def _only_data(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Return the first operand of an elementwise function whose others are all constant."""
    require(is_on_elements(node) and is_elementwise(node))
    data = data_of(graph, node)
    require(len(data) == 1 and node.inputs[0] is data[0] and node.inputs.count(data[0]) == 1)
    return data[0]


def _computed(graph: Rewriter, node: ir.Node, value: Array) -> Array:
    """Return the result of a node for one number, if it is defined and not NaN."""
    require(node.op_type not in ("Cast", "Pow") and not np.isnan(value.astype(np.float64)).any())
    data = given(node.inputs[0])
    # parameters along an axis are single numbers, so that one dimension is enough
    number = value.reshape((1,) * max(len(stated_shape(data) or ()), 2))
    try:
        result = run_nodes(graph.known, [node], {data: number}, node.outputs[0])
    except (Undecidable, ValueError) as error:
        raise Unknown from error
    require(not np.isnan(result.astype(np.float64)).any())
    return result

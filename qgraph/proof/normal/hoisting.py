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

    Concat(f(a), f(b))   -> f(Concat(a, b))        the same parameters, constant along the axis
    f(M(Pad(x, v)))      -> M(Pad(f(x), f(v)))     f with single numbers as parameters, movements M
    f(Gather(c, i))      -> Gather(f(c), i)        the same, of a constant c
    f(M(Gather(c, i)))   -> M(Gather(f(c), i))     the same, with movements M

Equal bit for bit: on both sides, ``f`` is applied once to each element of the data or the padding.
The kernel of ``f`` computes ``f(v)``, and IEEE 754 determines all its bits. Only values are kept if
the sign of a zero of Clip, Max, Min or Relu is not defined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, OperatorError, UnsupportedError
from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import producer_of
from qgraph.numerics import Array
from qgraph.ops.dispatch import compute
from qgraph.proof.matching.operators import is_elementwise
from qgraph.proof.normal.elementwise import (
    aligned_parameter,
    data_of,
    is_along_axis,
    is_on_elements,
    keeps_sizes,
    leaves_zero_open,
    moved,
    reads_table,
)
from qgraph.proof.normal.maxima import are_equal_constants, common_function
from qgraph.proof.normal.movements import (
    Movement,
    Permutation,
    Reshaping,
    Selection,
    is_written,
    write,
)
from qgraph.proof.normal.reading import read
from qgraph.proof.normal.rewriter import Rewriter


def write_movements(graph: Rewriter, node: ir.Node) -> bool:
    """Write a node that moves elements in the canonical form of its movements."""
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    if not used or is_written(graph, node) or any(map(graph.known.has, used)):
        return False
    moves = [read(graph, value) for value in used]
    if any(move is None for move in moves):
        return False
    for value, move in zip(used, moves, strict=True):
        if move is None:
            continue
        result = move.data
        for step in move.steps:
            result = write(graph, step, result, node)
        graph.replace(value, result)
    return True


def join_movements(graph: Rewriter, node: ir.Node) -> bool:
    """Join two consecutive movements, or sort them."""
    if not is_written(graph, node) or node.inputs[0] is None:
        return False
    last: Movement = graph.movements[node]
    before = read(graph, node.inputs[0])
    if before is None or len(before.steps) != 1:
        return _permute_concat(graph, node, last)
    (first,) = before.steps
    steps: list[Movement]
    match first, last:
        case Permutation(), Permutation():
            steps = [last.after(first)]
        case Reshaping(), Reshaping():
            steps = [Reshaping(first.source, last.target)]
            if Reshaping(first.source, last.target).shape is None:
                return False
        case Selection(), Selection() if first.axis == last.axis:
            steps = [last.after(first)]
        case Selection(), Selection() if last.axis < first.axis:
            steps = [last, first]
        case Selection(), Permutation():
            steps = [last, Selection(last.order.index(first.axis), first.chosen)]
        case _:
            return False
    result = before.data
    for step in steps:
        result = write(graph, step, result, node)
    return graph.replace(node.outputs[0], result)


def hoist(graph: Rewriter, node: ir.Node) -> bool:
    """Move the operands instead of the result of an elementwise operator."""
    if not is_written(graph, node) or node.inputs[0] is None:
        return False
    movement: Movement = graph.movements[node]
    value = node.inputs[0]
    inner = value.producer()
    if inner is None or graph.known.has(value):
        return False
    if not (is_on_elements(inner) or reads_table(graph, inner)):
        return False
    if leaves_zero_open(graph, inner) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    sizes = stated_shape(value)
    data = data_of(graph, inner)
    if not data:
        return False
    if isinstance(movement, Permutation):
        rank = len(movement.order)
        if sizes is None and len(data) == 1 and not _has_ranks(graph, inner):
            sizes = (None,) * rank
        ranks = {rank if stated_shape(x) is None else len(stated_shape(x) or ()) for x in data}
        if sizes is None or len(sizes) != rank or ranks != {rank}:
            return False
        if len(data) > 1 and any(stated_shape(x) is None for x in data):
            return False
    elif sizes is None or not all(keeps_sizes(graph, inner, x) for x in data):
        return False
    new = moved(
        graph,
        inner,
        node,
        lambda x: write(graph, movement, x, node),
        lambda array: movement.parameter(array, sizes),
        sizes,
        stated_shape(node.outputs[0]) or movement.result(sizes),
    )
    return new is not None and graph.replace(node.outputs[0], new)


def hoist_open_reshape(graph: Rewriter, node: ir.Node) -> bool:
    """Reshape the data of a function instead of its result; the shape may be unknown.

    The operands of the function that are not constant have one shape, and the others are single
    numbers. So the function is the same for each element, whatever its index.
    """
    value = node.inputs[0]
    inner = producer_of(value)
    if is_written(graph, node) or value is None or inner is None or graph.known.has(value):
        return False
    data = list(dict.fromkeys(x for x in inner.inputs if x is not None and not graph.known.has(x)))
    if not is_on_elements(inner) or not data or any(x.dtype is None for x in data):
        return False
    if len(data) > 1 and len({_source_of_shape(graph, x) for x in data}) > 1:
        return False
    inputs = list(inner.inputs)
    for index, operand in enumerate(inputs):
        array = None if operand in data else graph.array(operand)
        if operand is None or operand in data:
            continue
        if array is None or array.size != 1 or array.ndim > len(stated_shape(data[0]) or ()):
            return False
        inputs[index] = graph.constant(array.reshape(()), str(operand.name))
    if leaves_zero_open(graph, inner) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    sizes = stated_shape(node.outputs[0])
    turned = {x: _reshaped(graph, node, x) for x in data}
    moved_inputs = [x if x is None else turned.get(x, x) for x in inputs]
    return graph.replace(node.outputs[0], graph.copy(inner, node, moved_inputs, sizes))


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


def _has_ranks(graph: Rewriter, node: ir.Node) -> bool:
    """Return whether a constant of a node has dimensions, so that it might enlarge the data."""
    arrays = [graph.array(v) for v in node.inputs if v is not None and graph.known.has(v)]
    return any(array is None or array.ndim > 0 for array in arrays)


def _permute_concat(graph: Rewriter, node: ir.Node, last: Movement) -> bool:
    value = node.inputs[0]
    inner = producer_of(value, "Concat")
    if not isinstance(last, Permutation) or inner is None or graph.known.has(inner.outputs[0]):
        return False
    if "axis" not in inner.attributes:
        return False
    rank, axis = len(last.order), inner.attributes["axis"].as_int()
    if not -rank <= axis < rank:
        return False
    parts = [write(graph, last, part, node) for part in inner.inputs if part is not None]
    along, y = ir.AttrInt64("axis", last.order.index(axis % rank)), node.outputs[0]
    return graph.replace(y, graph.copy(inner, node, parts, stated_shape(y), [along]))


def hoist_concat(graph: Rewriter, node: ir.Node) -> bool:
    """Concatenate the data of one function instead of its results."""
    parts = [value for value in node.inputs if value is not None]
    inner = [part.producer() for part in parts]
    if "axis" not in node.attributes or len(parts) < 2:
        return False
    if any(n is None or graph.known.has(n.outputs[0]) for n in inner):
        return False
    makers = [maker for maker in inner if maker is not None]
    data = common_function(graph, makers)
    sizes = stated_shape(node.outputs[0])
    if data is None and _join_guards(graph, node, makers):
        return True
    if data is None or not sizes:
        return False
    axis = node.attributes["axis"].as_int() % len(sizes)
    for value in makers[0].inputs[1:]:
        array = graph.array(value)
        if value is None:
            continue
        aligned = None if array is None else aligned_parameter(makers[0], array, len(sizes))
        if aligned is None or aligned.shape[axis] != 1:
            return False
    first = makers[0]
    if leaves_zero_open(graph, first) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    joined = graph.node(node, "Concat", data, {"axis": axis}, dtype=data[0].dtype, sizes=sizes)
    result = graph.copy(first, node, [joined, *first.inputs[1:]], sizes)
    return graph.replace(node.outputs[0], result)


def _join_guards(graph: Rewriter, node: ir.Node, makers: list[ir.Node]) -> bool:
    """Concatenate the data of ``Where(IsNaN(x), c, x)`` for one number c, not its results."""
    guards = [producer_of(m.inputs[0], "IsNaN") if m.op_type == "Where" else None for m in makers]
    first, sizes = guards[0], stated_shape(node.outputs[0])
    if first is None or any(
        guard is None
        or guard.inputs[0] is not maker.inputs[2]
        or not are_equal_constants(graph, maker.inputs[1], makers[0].inputs[1])
        for guard, maker in zip(guards, makers, strict=True)
    ):
        return False
    filler, data = graph.array(makers[0].inputs[1]), [maker.inputs[2] for maker in makers]
    if filler is None or filler.ndim > 0 or not sizes:
        return False
    axis, dtype = {"axis": node.attributes["axis"].as_int()}, node.outputs[0].dtype
    x = graph.node(node, "Concat", data, axis, dtype=dtype, sizes=sizes)
    is_nan = graph.copy(first, node, [x], sizes)
    result = graph.copy(makers[0], node, [is_nan, makers[0].inputs[1], x], sizes)
    return graph.replace(node.outputs[0], result)


def sink_pad(graph: Rewriter, node: ir.Node) -> bool:
    """Pad the results of a function instead of its data, and move them afterwards."""
    start, steps = _unmoved(graph, _only_data(graph, node))
    pad = producer_of(start, "Pad")
    if pad is None or pad.inputs[0] is None:
        return False
    if pad.attributes.get_string("mode", "constant") != "constant" or "pads" in pad.attributes:
        return False
    x = pad.inputs[0]
    operands = [*pad.inputs[1:], None, None, None][:3]
    constants = [graph.array(value) for value in operands]
    known = all((a is None) == (v is None) for a, v in zip(constants, operands, strict=True))
    if not known or x.dtype is None or constants[0] is None:
        return False
    value = constants[1] if constants[1] is not None else np.zeros((), x.dtype.numpy())
    if value.size != 1 or not _has_single_numbers(graph, node, len(stated_shape(x) or ())):
        return False
    result = _computed(graph, node, value.reshape(()))
    if result is None or result.size != 1:
        return False
    if leaves_zero_open(graph, node) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    inner = graph.copy(node, node, [x, *node.inputs[1:]], stated_shape(x))
    filler = graph.constant(result.reshape(()), "pad_value")
    padded, y = [inner, operands[0], filler, *operands[2:]], node.outputs[0]
    after = graph.copy(pad, node, padded, stated_shape(pad.outputs[0]), dtype=y.dtype)
    for step in steps:
        after = write(graph, step, after, node)
    return graph.replace(y, after)


def _unmoved(graph: Rewriter, value: ir.Value | None) -> tuple[ir.Value | None, list[Movement]]:
    """Return the value before the movements that lead to a value, and these in their order."""
    steps: list[Movement] = []
    while value is not None and (maker := value.producer()) and is_written(graph, maker):
        steps.insert(0, graph.movements[maker])
        value = maker.inputs[0]
    return value, steps


def look_up(graph: Rewriter, node: ir.Node) -> bool:
    """Apply a function to a constant table before the lookup, and movements between after it."""
    value = _only_data(graph, node)
    rank = len(stated_shape(value) or ()) if value is not None else 0
    value, steps = _unmoved(graph, value)
    gather = producer_of(value, "Gather")
    if gather is None:
        return False
    table, indices = gather.inputs
    sizes = None if table is None else stated_shape(table)
    if table is None or not sizes or not graph.known.has(table):
        return False
    if not _has_single_numbers(graph, node, min(rank, 1)):
        return False
    if leaves_zero_open(graph, node) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    results = graph.copy(node, node, [table, *node.inputs[1:]], sizes)
    sizes, dtype = stated_shape(gather.outputs[0]), node.outputs[0].dtype
    chosen = graph.copy(gather, node, [results, indices], sizes, dtype=dtype)
    for step in steps:
        chosen = write(graph, step, chosen, node)
    return graph.replace(node.outputs[0], chosen)


def _has_single_numbers(graph: Rewriter, node: ir.Node, rank: int) -> bool:
    """Return whether all parameters are single numbers, of a rank or along an axis."""
    most = 1 if is_along_axis(node) else rank
    arrays = [graph.array(value) for value in node.inputs[1:]]
    return all(a is not None and a.size == 1 and a.ndim <= most for a in arrays)


def _only_data(graph: Rewriter, node: ir.Node) -> ir.Value | None:
    """Return the first operand of an elementwise function if all others are constant."""
    if not is_on_elements(node) or not is_elementwise(node):
        return None
    data = data_of(graph, node)
    is_first = len(data) == 1 and node.inputs[0] is data[0] and node.inputs.count(data[0]) == 1
    return data[0] if is_first else None


def _computed(graph: Rewriter, node: ir.Node, value: Array) -> Array | None:
    """Return the result of a node for one number; None if it may be NaN or undefined."""
    if node.op_type in ("Cast", "Pow") or np.isnan(value.astype(np.float64)).any():
        return None
    data = node.inputs[0]
    if data is None:
        return None
    # parameters along an axis are single numbers, so that one dimension is enough
    values: dict[ir.Value, Any] = {
        data: value.reshape((1,) * max(len(stated_shape(data) or ()), 2))
    }
    for other in node.inputs[1:]:
        if other is not None:
            values[other] = graph.array(other)
    try:
        result = np.asarray(compute(node, graph.imports, values))
    except (ExecutionError, OperatorError, UnsupportedError, ValueError):
        return None
    return None if np.isnan(result.astype(np.float64)).any() else result

"""Move maxima before functions that never decrease: ``max(f(x)) -> f(max(x))``.

    MaxPool, GlobalMaxPool, ReduceMax, ReduceMin of f(x)     -> f of it
    Max(f(a), f(b)), Min(f(a), f(b))                         -> f(Max(a, b)), f(Min(a, b))

``f`` is one node or several, with parameters that do not vary within a window. The results are
equal in values: ONNX does not define whether -0 or +0 is larger, nor the maximum of NaN, which the
condition on NaN excludes. For functions from codes to numbers without -0 the results are equal bit
for bit.

The padding of a MaxPool is not data, so every window must contain an element of the data. A
reduction must not be empty either: its result is the smallest number, to which ``f`` does not
apply.

Of codes, all values are tried. For a function of float32, there are two proofs that it never
decreases on any input but NaN, where -0 equals +0. By operations: each operation rounds the result
of a real function that does not decrease, and rounding to nearest does not decrease either. By
steps: the search with exact intervals divides all finite inputs into intervals with one value each,
which must be in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, OperatorError, UnsupportedError
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.sizes import are_equal, has_elements, stated_shape
from qgraph.graph.slices import between, dominators
from qgraph.numerics.formats import all_values
from qgraph.numerics.values import is_nan
from qgraph.ops.sums_of_products import is_never_empty
from qgraph.proof.functions.divisions import plateaus
from qgraph.proof.functions.enumeration import NARROW_BITS, along_axis
from qgraph.proof.functions.expression import (
    CONSTANT,
    INPUT,
    Builder,
    Expr,
    evaluate,
    fold,
    known,
    text,
)
from qgraph.proof.functions.lowering import lower
from qgraph.proof.matching.operators import check_parameters, operands
from qgraph.proof.normal.elementwise import data_of, is_on_elements, keeps_sizes, parameters_of
from qgraph.proof.normal.forms import reduced_axes
from qgraph.proof.normal.rewriter import Rewriter, Sizes
from qgraph.proof.regions import run_nodes
from qgraph.reasons import Undecidable

_MOST_CHANNELS = 1 << 12


def exchanges(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    axes: Sequence[int],
    rank: int,
) -> bool | None:
    """Return whether exchanging ``y`` as a function of ``x`` with a maximum changes no bit.

    Then results that are equal numbers have equal bits, and NaN cannot occur. None if the function
    may decrease. The nodes compute ``y`` from ``x`` and constants, in topological order. Parameters
    must not vary along ``axes`` of the data.
    """
    try:
        kind, channels = given(x.dtype), _channels(graph, nodes, axes, rank)
        require(kind not in (ir.DataType.BOOL, ir.DataType.STRING))
        for node in nodes:
            check_parameters(node, graph.known.array)
        if kind is not ir.DataType.FLOAT:
            return _by_values(graph, nodes, (x, y), kind, channels, axes)
        root = lower(nodes, x, y, channels, Builder(), constants=graph.known.array)
        key = text([root])
        if key not in graph.monotone:
            graph.monotone[key] = never_decreases(root)
    except _FAILURES:
        return None
    # data may be NaN, and results may be -0 or +0
    return False if graph.monotone[key] else None


_FAILURES = (
    Unknown,
    ExecutionError,
    OperatorError,
    Undecidable,
    UnsupportedError,
    ValueError,
)


def _channels(
    graph: Rewriter, nodes: Sequence[ir.Node], axes: Sequence[int], rank: int
) -> tuple[int, ...]:
    """Return the shape to which all parameters broadcast, if they do not vary along ``axes``."""
    arrays = [a for node in nodes for a in parameters_of(graph, node, rank).values()]
    require(all(array.shape[axis] == 1 for array in arrays for axis in axes))
    shape = np.broadcast_shapes((1,) * rank, *(array.shape for array in arrays))
    require(np.prod(shape) <= _MOST_CHANNELS)
    return shape


def _by_values(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    ends: tuple[ir.Value, ir.Value],
    kind: ir.DataType,
    channels: tuple[int, ...],
    axes: Sequence[int],
) -> bool:
    """Return the same from the results for all values of a type of up to 16 bits."""
    require(kind.bitwidth <= NARROW_BITS)
    values = all_values(kind.name)
    numbers = values[~is_nan(values)]
    data = numbers[np.argsort(numbers.astype(np.float64), kind="stable")]
    axes = axes or [axis for axis, size in enumerate(channels) if size == 1]
    require(axes)
    every = np.array(along_axis(data, channels, axes[0]))
    results = run_nodes(graph.known, nodes, {ends[0]: every}, ends[1])
    require(results.shape == every.shape and not is_nan(results).any())
    rows = np.moveaxis(results.astype(np.float64), axes[0], 0)
    wide = data.astype(np.float64)
    rises = rows[1:] >= rows[:-1]
    ties = (wide[1:] == wide[:-1]).reshape(-1, *[1] * (rows.ndim - 1))
    require((rises & (~ties | (rows[1:] == rows[:-1]))).all())
    minus_zero = (rows == 0) & np.signbit(rows)
    return kind.is_integer() and not bool(minus_zero.any())


_MOST_NODES = 32
_MOST_GATES = 12


def hoist_maximum(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Take the maximum of the data of a function instead of its results."""
    axes, value = _axes(graph, node), given(node.inputs[0])
    rank = len(given(stated_shape(value)))
    require(not graph.known.has(value))
    for start in dominators(value, lambda v: operands(v, graph.known.has))[1:_MOST_GATES]:
        nodes = _between(graph, start, value)
        if not _may_exchange(graph, node, exchanges(graph, nodes, start, value, axes, rank)):
            continue
        sizes, inputs = stated_shape(node.outputs[0]), [start, *node.inputs[1:]]
        maximum = graph.copy(node, node, inputs, sizes, dtype=start.dtype)
        return _copied(graph, nodes, {start: maximum}, value, node, sizes)
    raise Unknown


def join_maximum(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Take the maximum of two inputs of one function instead of its results."""
    pair = [value for value in node.inputs if value is not None and not graph.known.has(value)]
    require(len(node.inputs) == 2 and len(set(pair)) == 2)
    inner = [given(value.producer()) for value in pair]
    function, sizes = common_function(graph, inner), given(stated_shape(pair[0]))
    require(are_equal(sizes, stated_shape(pair[1]) or (None,)))
    first = inner[:1]
    keeps_bits = exchanges(graph, first, function[0], pair[0], (), len(sizes))
    require(_may_exchange(graph, node, keeps_bits))
    maximum = graph.node(node, node.op_type, function, dtype=function[0].dtype, sizes=sizes)
    return _copied(graph, first, {function[0]: maximum}, pair[0], node, sizes)


def common_function(graph: Rewriter, nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the data of nodes, which must have the same operator and parameters."""
    first = nodes[0]
    attributes = {name: attribute.value for name, attribute in first.attributes.items()}
    data: list[ir.Value] = []
    for node in nodes:
        data += (own := data_of(graph, node))
        require(is_on_elements(node) and len(own) == 1 and node.inputs[0] is own[0])
        require(node.op_identifier() == first.op_identifier())
        require({name: a.value for name, a in node.attributes.items()} == attributes)
        require(len(node.inputs) == len(first.inputs))
        for one, other in zip(node.inputs[1:], first.inputs[1:], strict=True):
            require(one is other or are_equal_constants(graph, one, other))
        require(own[0].dtype is not None and own[0].dtype is data[0].dtype)
        require(keeps_sizes(graph, node, own[0]))
    return data


def are_equal_constants(graph: Rewriter, a: ir.Value | None, b: ir.Value | None) -> bool:
    """Return whether two values are constants of the same type, shape and bits."""
    one, other = graph.array(a), graph.array(b)
    if one is None or other is None:
        return False
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _may_exchange(graph: Rewriter, node: ir.Node, keeps_bits: bool | None) -> bool:
    """Return whether an exchange is allowed and keeps the required level; record its conditions."""
    if keeps_bits is None or not (keeps_bits or graph.gives_up_zero_sign(node.outputs[0])):
        return False
    graph.exchanged += not keeps_bits
    return True


def _axes(graph: Rewriter, node: ir.Node) -> list[int]:
    """Return the axes along which a node takes maxima."""
    require(not node.domain and node.inputs)
    sizes = given(stated_shape(given(node.inputs[0])))
    require(not any(output.uses() for output in node.outputs[1:]))
    axes = list(range(2, len(sizes)))
    match node.op_type:
        case "GlobalMaxPool":
            require(has_elements(sizes, axes))
        case "MaxPool":
            require(not any(output.name for output in node.outputs[1:]))
            require(is_never_empty(node, sizes))
        case "ReduceMax" | "ReduceMin":
            axes = reduced_axes(graph, node, len(sizes))
            require(node.attributes.get_int("keepdims", 1))
            require(axes and has_elements(sizes, axes))
        case _:
            raise Unknown
    return axes


def _between(graph: Rewriter, start: ir.Value, end: ir.Value) -> list[ir.Node]:
    """Return the nodes that compute ``end`` from ``start``, if none enlarges the data."""
    step, known = operands, graph.known.has
    nodes = given(between(end, [start], lambda v: step(v, known), most=_MOST_NODES))
    one, other = given(stated_shape(start)), given(stated_shape(end))
    require(all(map(is_on_elements, nodes)) and len(one) == len(other))
    if not are_equal(one, other):
        require(all(keeps_sizes(graph, node, x) for node in nodes for x in data_of(graph, node)))
    return nodes


def _copied(
    graph: Rewriter,
    nodes: Sequence[ir.Node],
    values: dict[ir.Value, ir.Value],
    end: ir.Value,
    before: ir.Node,
    sizes: Sizes | None,
) -> ir.Value:
    """Return ``end`` recomputed from other values by copies of the nodes."""
    for node in nodes:
        inputs = [value if value is None else values.get(value, value) for value in node.inputs]
        values[node.outputs[0]] = graph.copy(node, before, inputs, sizes)
    return values[end]


_KEEP_ORDER = frozenset({"Round", "Floor", "Ceil", "Relu", "Identity"})

_BOXES = 1 << 20

_FREE, _UP, _DOWN = 0, 1, -1
"""Directions: constant, not decreasing, not increasing."""


def never_decreases(root: Expr) -> bool:
    """Return whether a function never decreases, and is NaN only for NaN.

    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    return direction(root) in (_FREE, _UP) or _has_steps_in_order(root)


def direction(root: Expr) -> int | None:
    """Return whether a function does not decrease (1), does not increase (-1) or is constant (0).

    Rules, for finite constants ``c``:

        x + c, x - c, round(x), floor(x), ceil(x), relu(x), min(x, c), max(x, c)     as x
        x * c, x / c                                    as x, the other way for c < 0; not for 0
        c - x, -x                                       the other way
        min(u, v), max(u, v)                            if u and v go the same way

    Returns: None if the rules do not decide it.
    """
    return fold([root], _direction_of_leaf, _direction)[0]


def _direction_of_leaf(e: Expr) -> int | None:
    if e.op != CONSTANT:
        return _UP if e.op == INPUT else None
    value = known(e)
    return _FREE if value.dtype != np.bool_ and np.isfinite(value).all() else None


def _direction(e: Expr, ways: list[int | None]) -> int | None:
    if None in ways:
        return None
    first, second = (*ways, _FREE, _FREE)[:2]
    match e.op:
        case "Min" | "Max":
            moving = set(ways) - {_FREE}
            return moving.pop() if len(moving) == 1 else None if moving else _FREE
        case "Neg":
            return -(first or 0)
        case "Add" if _FREE in (first, second):
            return (first or 0) + (second or 0)
        case "Sub" if _FREE in (first, second):
            return (first or 0) - (second or 0)
        case "Mul" | "Div" if second == _FREE and e.inputs[1].op == CONSTANT:
            return (first or 0) * _sign(e.inputs[1]) if _sign(e.inputs[1]) else None
        case "Mul" if first == _FREE and e.inputs[0].op == CONSTANT:
            return (second or 0) * _sign(e.inputs[0]) if _sign(e.inputs[0]) else None
    return first if e.op in _KEEP_ORDER else None


def _sign(constant: Expr) -> int:
    """Return the sign of all elements of a constant; 0 if they differ or are zero."""
    value = known(constant)
    return int((value > 0).all()) - int((value < 0).all())


def _has_steps_in_order(root: Expr) -> bool:
    try:
        steps = plateaus(root, max_boxes=_BOXES)
    except Undecidable:
        return False
    if np.isnan(steps.value).any():
        return False
    same = steps.channel[1:] == steps.channel[:-1]
    if (same & (steps.value[1:] < steps.value[:-1])).any():
        return False
    if (same & (steps.hi[:-1] == -1) & (steps.value[1:] != steps.value[:-1])).any():
        return False  # -0 and +0 are one number, so they must have one value
    return _ends_are_in_order(root)


def _ends_are_in_order(root: Expr) -> bool:
    """Return whether the values at the infinities are in order with those at the largest floats."""
    largest = np.finfo(np.float32).max
    shape = root.shape or (1,)
    values = [
        np.asarray(evaluate(root, np.full(shape, x, np.float32)), np.float64)
        for x in (-np.inf, -largest, largest, np.inf)
    ]
    if any(np.isnan(value).any() for value in values):
        return False
    return bool((values[0] <= values[1]).all() and (values[2] <= values[3]).all())

"""Write operators in one form: arithmetic, bounds, definitions, comparisons, and axes.

Differences, negations and factors:

    a - b            -> a + (-b)          IEEE 754 defines the difference so
    x * -1, x / -1   -> -x
    -(-x)            -> x
    x * 1, x / 1     -> x
    x / c            -> x * (1 / c)       c a power of two whose reciprocal is a float32
    Sum(a, b)        -> a + b

These are equal bit for bit for every input; all NaN count as one.

    Relu(x)                   -> Max(x, 0)
    Clip(x, low, high)        -> Min(Max(x, low), high)         a bound that is absent is left out
    Max(Max(x, a), b)         -> Max(x, max(a, b))              likewise Min
    Max(Min(x, b), a)         -> Min(Max(x, a), b)              for a <= b
    Max(x, -inf), Min(x, inf) -> x
    Abs(Max(x, a))            -> Max(x, a)                for a >= 0, also below a Min with b >= 0

The values are equal for every input. If a bound is zero, ONNX does not define the sign of a zero
result, and the rules keep values only. NaN stays NaN in all forms.

    HardSwish(x)            -> x * HardSigmoid(x, 1/6, 1/2)
    HardSigmoid(x, a, b)    -> Max(Min(x * a + b, 1), 0)
    LeakyRelu(x, a)         -> Where(x < 0, x * a, x)      x if a is 1
    PRelu(x, s)             -> Where(x < 0, x * s, x)
    ThresholdedRelu(x, a)   -> Where(a < x, x, 0)
    Greater(a, b)           -> Less(b, a)              likewise GreaterOrEqual

These are the function bodies of the ONNX standard, one float32 operation each: equal bit for bit.
HardSigmoid keeps values only, because the sign of a zero result is not defined.

Axes are numbers from 0, and operators along axes have one form:

    axis, axes below zero             -> counted from the first axis
    axes that are absent              -> all axes of a reduction
    ReduceX(x, axes, keepdims = 0)    -> Reshape(ReduceX(x, axes, keepdims = 1))
    Softmax along an axis after which all sizes are 1, likewise LogSoftmax, Hardmax
                                      -> Reshape(Softmax(Reshape(x, [rows, columns]), 1))
    axis of a QuantizeLinear or DequantizeLinear with one scale   -> left out
    GlobalMaxPool(x)                  -> ReduceMax(x, all axes from 2 on)

Equal bit for bit, because the same elements are combined in the same order. Only GlobalMaxPool
keeps values alone, as ONNX does not define whether -0 or +0 is larger, and the maximum of NaN.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.rules import given, require
from qgraph.graph.scopes import input_of, producer_of
from qgraph.graph.sizes import has_elements, stated_shape, static_count
from qgraph.proof.normal.elementwise import is_along_axis
from qgraph.proof.normal.movements import Reshaping, write
from qgraph.proof.normal.rewriter import Rewriter, Sizes

_ZERO, _ONE = np.float32(0), np.float32(1)


def write_difference(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a difference of floating-point numbers as a sum."""
    a, b = map(given, node.inputs)
    dtype, array = node.outputs[0].dtype, graph.array(b)
    require(dtype is ir.DataType.FLOAT)
    if array is not None:
        other = graph.constant(np.negative(array), f"{b.name}_negated")
    else:
        other = graph.node(node, "Neg", [b], dtype=dtype, sizes=stated_shape(b))
    return graph.like(node, "Add", [a, other])


def write_factor(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write products with, and quotients by, 1, -1 or a power of two in one form."""
    x, factor = map(given, node.inputs)
    number = graph.single(factor)
    if number is None and node.op_type == "Mul":
        x, factor = factor, x
        number = graph.single(factor)
    require(number is not None and factor.shape is not None)
    require(given(factor.shape).rank() <= len(stated_shape(x) or ()))
    if number == 1:
        return x
    if number == -1:
        return graph.like(node, "Neg", [x])
    with np.errstate(all="ignore"):
        mantissa, reciprocal = np.frexp(number)[0], np.asarray(np.float32(1) / number)
    require(node.op_type == "Div" and abs(mantissa) == 0.5)
    require(np.isfinite(reciprocal) and reciprocal != 0)
    return graph.like(node, "Mul", [x, graph.constant(reciprocal.reshape(()), "reciprocal")])


def join_negations(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Remove two negations that follow each other."""
    inner = given(producer_of(input_of(node, 0), "Neg"))
    x = given(inner.inputs[0])
    if x.dtype is not None:
        # Neg accepts real numbers, and signed integers of at least 8 bits
        require(x.dtype.is_signed())
        require(x.dtype.bitwidth >= (16 if x.dtype.is_floating_point() else 8))
    return x


def write_sum(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Sum of two numbers as an Add."""
    require(len(node.inputs) == 2)
    return graph.like(node, "Add", node.inputs)


def hand_on(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Remove an operator that returns its only operand."""
    is_last = node.op_type == "Identity" and node.outputs[0].is_graph_output()
    require(len(node.inputs) == 1 and not is_last)
    return given(node.inputs[0])


def write_relu(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Relu as a Max with zero."""
    x = given(node.inputs[0])
    dtype = given(x.dtype)
    require(dtype.is_floating_point() and graph.gives_up_zero_sign(node.outputs[0]))
    return graph.like(node, "Max", [x, dtype.numpy().type(0)])


def write_clip(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Clip with constant bounds as a Max and a Min."""
    x = given(node.inputs[0])
    require(not node.attributes)
    steps: list[tuple[str, Any]] = []
    for name, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound is not None:
            array = given(graph.array(bound))
            require(array.size == 1 and array.dtype.kind in "fiu")
            steps.append((name, array.reshape(())[()]))
    require(not any(np.isnan(bound.astype(np.float64)) for _, bound in steps))
    require(all(bound != 0 for _, bound in steps) or graph.gives_up_zero_sign(node.outputs[0]))
    for name, bound in steps:
        x = graph.like(node, name, [x, bound])
    return x


def write_magnitude(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Leave out the Abs of numbers that a bound keeps from being negative."""
    x = value = given(node.inputs[0])
    while True:
        inner = given(value.producer())
        value, bound = given(_bounded(graph, inner))
        require(bound >= 0)
        require(bound > 0 or graph.gives_up_zero_sign(node.outputs[0]))
        if inner.op_type == "Max":
            return x


def join_bounds(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Join a bound with the bounds before it, or put them in order."""
    x, bound = given(_bounded(graph, node))
    if bound == (-np.inf if node.op_type == "Max" else np.inf):
        return x
    inner = x.producer()
    before = None if inner is None or graph.known.has(x) else _bounded(graph, inner)
    if inner is not None and before is not None:
        data, first = before
        require(bound.dtype == first.dtype)
        require(0 not in (bound, first) or graph.gives_up_zero_sign(node.outputs[0]))
        if inner.op_type == node.op_type:
            chosen = max(bound, first) if node.op_type == "Max" else min(bound, first)
            return graph.like(node, node.op_type, [data, chosen])
        if node.op_type == "Max" and bound <= first:
            return graph.like(node, "Min", [graph.like(node, "Max", [data, bound]), first])
    last = node.inputs[1]  # the bound, as a scalar, comes after the data
    require(last is None or last is x or last.shape is None or last.shape.rank())
    return graph.like(node, node.op_type, [x, bound])


def _bounded(graph: Rewriter, node: ir.Node) -> tuple[ir.Value, Any] | None:
    """Return the data and the bound of a Max or Min with one constant number; None for others."""
    if node.domain or node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        if x is None or graph.known.has(x):
            continue
        array = graph.array(other)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        if array.ndim > len(stated_shape(x) or ()) or np.isnan(array.astype(np.float64)).any():
            return None
        return x, array.reshape(())[()]
    return None


ACTIVATIONS = frozenset({"HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "ThresholdedRelu"})


def write_activation(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write an activation function as its definition."""
    require(node.inputs)
    x = given(node.inputs[0])
    require(x.dtype is ir.DataType.FLOAT)
    like, bool_ = partial(graph.like, node), ir.DataType.BOOL
    default = {"HardSigmoid": 0.2, "LeakyRelu": 0.01}.get(node.op_type, 1.0)
    factor: Any = np.float32(node.attributes.get_float("alpha", default))
    if node.op_type in ("HardSigmoid", "HardSwish"):
        require(graph.gives_up_zero_sign(node.outputs[0]))
        line = [factor, np.float32(node.attributes.get_float("beta", 0.5))]
        if node.op_type == "HardSwish":
            line = [np.float32(1 / 6), np.float32(0.5)]
        result = x
        for name, number in zip(("Mul", "Add", "Min", "Max"), (*line, _ONE, _ZERO), strict=True):
            result = like(name, [result, number])
        return result if node.op_type == "HardSigmoid" else like("Mul", [x, result])
    if node.op_type == "ThresholdedRelu":
        return like("Where", [like("Less", [factor, x], bool_), x, _ZERO])
    if node.op_type == "LeakyRelu" and factor == 1:
        return x
    if node.op_type == "PRelu":
        slope = given(node.inputs[1])
        number = graph.single(slope)
        factor = slope if number is None else number
    return like("Where", [like("Less", [x, _ZERO], bool_), like("Mul", [x, factor]), x])


SWAPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def write_comparison(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Greater as a Less with its operands swapped."""
    return graph.like(node, SWAPPED[node.op_type], node.inputs[::-1], ir.DataType.BOOL)


ONE_AXIS = frozenset(
    {"ArgMax", "ArgMin", "Concat", "Gather", "GatherElements", "TopK", "Hardmax", "Softmax"}
    | {"LayerNormalization", "LogSoftmax", "LpNormalization", "ScatterElements"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
_DEFAULT = {"Concat": None, "Hardmax": -1, "LogSoftmax": -1, "Softmax": -1, "TopK": -1}
_DEFAULT |= {"LayerNormalization": -1, "LpNormalization": -1}
_DEFAULT |= {"QuantizeLinear": 1, "DequantizeLinear": 1}
ROWS = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
_SINCE = 13
"""Opset since which Softmax, LogSoftmax and Hardmax work along one axis, and the axes of ReduceSum
are an input."""

_AXES_AS_INPUT = 18


def count_axis(graph: Rewriter, node: ir.Node) -> None:
    """Count the axis of a node from the front."""
    require(node.inputs)
    x = given(node.inputs[0])
    require(node.op_type not in ROWS or graph.imports.get("", 1) >= _SINCE)
    scale = graph.array(node.inputs[1]) if is_along_axis(node) else None
    if scale is not None and scale.size == 1:
        require("axis" in node.attributes and node.attributes.get_int("block_size", 0) <= 0)
        node.attributes.pop("axis")
        return
    rank = len(given(stated_shape(x)))
    axis = node.attributes.get_int("axis", _DEFAULT.get(node.op_type, 0) or 0)
    require(-rank <= axis < 0)
    node.attributes["axis"] = ir.AttrInt64("axis", axis + rank)


def write_reduction(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a reduction with a list of all its axes and ``keepdims = 1``."""
    require(not node.domain and node.op_type.startswith("Reduce"))
    sizes = given(stated_shape(given(node.inputs[0])))
    axes = reduced_axes(graph, node, len(sizes))
    kept = node.attributes.get_int("keepdims", 1)
    require(axes and not (kept and _states(graph, node, axes)))
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    target = tuple(size for axis, size in enumerate(sizes) if axis not in axes)
    reshaping = Reshaping(result, result if kept else target)
    given(reshaping.shape)
    return write(graph, _reduction(graph, node, node.op_type, axes, result), node, reshaping)


def _reduction(
    graph: Rewriter, node: ir.Node, op_type: str, axes: list[int], sizes: Sizes
) -> ir.Value:
    """Return the reduction of the data of a node along axes, which keep size 1."""
    inputs, attributes = [node.inputs[0]], {"keepdims": 1, "axes": axes}
    opset = graph.imports.get("", 1)
    since = _SINCE if node.op_type == "ReduceSum" else _AXES_AS_INPUT
    if "axes" not in node.attributes and (len(node.inputs) > 1 or opset >= since):
        inputs.append(graph.constant(np.asarray(attributes.pop("axes"), np.int64), "axes"))
    return graph.node(node, op_type, inputs, attributes, dtype=node.outputs[0].dtype, sizes=sizes)


def reduced_axes(graph: Rewriter, node: ir.Node, rank: int) -> list[int]:
    """Return the axes of a reduction in ascending order; they must be known."""
    attribute, operand = node.attributes.get("axes"), input_of(node, 1)
    axes: list[int] = []
    if attribute is not None:
        axes = [int(axis) for axis in attribute.as_ints()]
    elif operand is not None:
        axes = [int(axis) for axis in given(graph.array(operand)).reshape(-1)]
    require(axes or node.attributes.get_int("noop_with_empty_axes", 0) == 0)
    require(all(-rank <= axis < rank for axis in axes))
    return sorted({axis % rank for axis in axes}) or list(range(rank))


def write_rows(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Softmax as a Softmax over rows, if all later dimensions have size 1."""
    x = given(node.inputs[0])
    sizes = given(stated_shape(x))
    require(sizes and None not in sizes and graph.imports.get("", 1) >= _SINCE)
    axis = node.attributes.get_int("axis", -1) % len(sizes)
    require(all(size == 1 for size in sizes[axis + 1 :]) and (len(sizes), axis) != (2, 1))
    # the product of the sizes before, as a number or one symbolic dimension
    names = [size for size in sizes[:axis] if isinstance(size, str)]
    count = static_count(sizes[:axis])
    require(not names or (len(names), count) == (1, 1))
    rows = (names[0] if names else count, sizes[axis])
    flat, back = Reshaping(sizes, rows), Reshaping(rows, sizes)
    require(flat.shape is not None and back.shape is not None)
    data, dtype = write(graph, x, node, flat), node.outputs[0].dtype
    moved = graph.node(node, node.op_type, [data], {"axis": 1}, dtype=dtype, sizes=rows)
    return write(graph, moved, node, back)


def write_global_maximum(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a GlobalMaxPool as a ReduceMax."""
    sizes = given(stated_shape(given(node.inputs[0])))
    axes = list(range(2, len(sizes)))
    # of no elements, ReduceMax has a result and GlobalMaxPool has none
    require(axes and has_elements(sizes, axes) and graph.gives_up_zero_sign(node.outputs[0]))
    graph.exchanged += 1
    return _reduction(graph, node, "ReduceMax", axes, (*sizes[:2], *[1] * len(axes)))


def _states(graph: Rewriter, node: ir.Node, axes: list[int]) -> bool:
    """Return whether a reduction lists exactly these axes, and states no default attribute."""
    if node.attributes.get_int("noop_with_empty_axes", 0) or "keepdims" not in node.attributes:
        return False
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints()) == axes
    array = graph.array(input_of(node, 1))
    return array is not None and array.tolist() == axes

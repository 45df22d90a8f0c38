"""Write differences, negations, factors and bounds in one form, and operators as definitions.

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

The values are equal for every input. If a bound is zero, ONNX does not define the sign of a zero
result, and the rules keep values only. NaN stays NaN in all forms.

    HardSwish(x)            -> x * HardSigmoid(x, 1/6, 1/2)
    HardSigmoid(x, a, b)    -> Max(Min(x * a + b, 1), 0)
    LeakyRelu(x, a)         -> Where(x < 0, x * a, x)
    PRelu(x, s)             -> Where(x < 0, x * s, x)
    ThresholdedRelu(x, a)   -> Where(a < x, x, 0)
    Greater(a, b)           -> Less(b, a)              likewise GreaterOrEqual

These are the function bodies of the ONNX standard, one float32 operation each: equal bit for bit.
HardSigmoid keeps values only, because the sign of a zero result is not defined.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import input_of, producer_of
from qgraph.proof.matching.operators import expect, needed
from qgraph.proof.normal.rewriter import Rewriter

_ZERO, _ONE = np.float32(0), np.float32(1)


def write_difference(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a difference of floating-point numbers as a sum."""
    a, b = map(needed, node.inputs)
    dtype, array = node.outputs[0].dtype, graph.array(b)
    expect(dtype is ir.DataType.FLOAT)
    if array is not None:
        other = graph.constant(np.negative(array), f"{b.name}_negated")
    else:
        other = graph.node(node, "Neg", [b], dtype=dtype, sizes=stated_shape(b))
    return graph.like(node, "Add", [a, other])


def write_factor(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write products with, and quotients by, 1, -1 or a power of two in one form."""
    x, factor = map(needed, node.inputs)
    number = graph.single(factor)
    if number is None and node.op_type == "Mul":
        x, factor = factor, x
        number = graph.single(factor)
    expect(number is not None and factor.shape is not None)
    expect(needed(factor.shape).rank() <= len(stated_shape(x) or ()))
    if number == 1:
        return x
    if number == -1:
        return graph.like(node, "Neg", [x])
    with np.errstate(all="ignore"):
        mantissa, reciprocal = np.frexp(number)[0], np.asarray(np.float32(1) / number)
    expect(node.op_type == "Div" and abs(mantissa) == 0.5)
    expect(np.isfinite(reciprocal) and reciprocal != 0)
    return graph.like(node, "Mul", [x, graph.constant(reciprocal.reshape(()), "reciprocal")])


def join_negations(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Remove two negations that follow each other."""
    inner = needed(producer_of(input_of(node, 0), "Neg"))
    x = needed(inner.inputs[0])
    if x.dtype is not None:
        # Neg accepts real numbers, and signed integers of at least 8 bits
        expect(x.dtype.is_signed())
        expect(x.dtype.bitwidth >= (16 if x.dtype.is_floating_point() else 8))
    return x


def write_sum(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Sum of two numbers as an Add."""
    expect(len(node.inputs) == 2)
    return graph.like(node, "Add", node.inputs)


def hand_on(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Remove an operator that returns its only operand."""
    is_last = node.op_type == "Identity" and node.outputs[0].is_graph_output()
    expect(len(node.inputs) == 1 and not is_last)
    return needed(node.inputs[0])


def write_relu(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Relu as a Max with zero."""
    x = needed(node.inputs[0])
    dtype = needed(x.dtype)
    expect(dtype.is_floating_point() and graph.gives_up_zero_sign(node.outputs[0]))
    return graph.like(node, "Max", [x, dtype.numpy().type(0)])


def write_clip(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Clip with constant bounds as a Max and a Min."""
    x = needed(node.inputs[0])
    expect(not node.attributes)
    steps: list[tuple[str, Any]] = []
    for name, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound is not None:
            array = needed(graph.array(bound))
            expect(array.size == 1 and array.dtype.kind in "fiu")
            steps.append((name, array.reshape(())[()]))
    expect(not any(np.isnan(bound.astype(np.float64)) for _, bound in steps))
    expect(all(bound != 0 for _, bound in steps) or graph.gives_up_zero_sign(node.outputs[0]))
    for name, bound in steps:
        x = graph.like(node, name, [x, bound])
    return x


def join_bounds(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Join a bound with the bounds before it, or put them in order."""
    x, bound = needed(_bounded(graph, node))
    if bound == (-np.inf if node.op_type == "Max" else np.inf):
        return x
    inner = x.producer()
    before = None if inner is None or graph.known.has(x) else _bounded(graph, inner)
    if inner is not None and before is not None:
        data, first = before
        expect(bound.dtype == first.dtype)
        expect(0 not in (bound, first) or graph.gives_up_zero_sign(node.outputs[0]))
        if inner.op_type == node.op_type:
            chosen = max(bound, first) if node.op_type == "Max" else min(bound, first)
            return graph.like(node, node.op_type, [data, chosen])
        if node.op_type == "Max" and bound <= first:
            return graph.like(node, "Min", [graph.like(node, "Max", [data, bound]), first])
    last = node.inputs[1]  # the bound, as a scalar, comes after the data
    expect(last is None or last is x or last.shape is None or last.shape.rank())
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
    expect(node.inputs)
    x = needed(node.inputs[0])
    expect(x.dtype is ir.DataType.FLOAT)
    like, bool_ = partial(graph.like, node), ir.DataType.BOOL
    default = {"HardSigmoid": 0.2, "LeakyRelu": 0.01}.get(node.op_type, 1.0)
    factor: Any = np.float32(node.attributes.get_float("alpha", default))
    if node.op_type in ("HardSigmoid", "HardSwish"):
        expect(graph.gives_up_zero_sign(node.outputs[0]))
        line = [factor, np.float32(node.attributes.get_float("beta", 0.5))]
        if node.op_type == "HardSwish":
            line = [np.float32(1 / 6), np.float32(0.5)]
        result = x
        for name, number in zip(("Mul", "Add", "Min", "Max"), (*line, _ONE, _ZERO), strict=True):
            result = like(name, [result, number])
        return result if node.op_type == "HardSigmoid" else like("Mul", [x, result])
    if node.op_type == "ThresholdedRelu":
        return like("Where", [like("Less", [factor, x], bool_), x, _ZERO])
    if node.op_type == "PRelu":
        slope = needed(node.inputs[1])
        number = graph.single(slope)
        factor = slope if number is None else number
    return like("Where", [like("Less", [x, _ZERO], bool_), like("Mul", [x, factor]), x])


SWAPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def write_comparison(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Greater as a Less with its operands swapped."""
    return graph.like(node, SWAPPED[node.op_type], node.inputs[::-1], ir.DataType.BOOL)

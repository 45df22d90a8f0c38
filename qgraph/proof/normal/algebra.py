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

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import input_of, producer_of
from qgraph.proof.normal.rewriter import Rewriter

_ZERO, _ONE = np.float32(0), np.float32(1)


def write_difference(graph: Rewriter, node: ir.Node) -> bool:
    """Write a difference of floating-point numbers as a sum."""
    a, b = node.inputs
    dtype = node.outputs[0].dtype
    if a is None or b is None or dtype is not ir.DataType.FLOAT:
        return False
    array = graph.array(b)
    if array is not None:
        other = graph.constant(np.negative(array), f"{b.name}_negated")
    else:
        other = graph.node(node, "Neg", [b], dtype=dtype, sizes=stated_shape(b))
    return _replace(graph, node, "Add", a, other)


def write_factor(graph: Rewriter, node: ir.Node) -> bool:
    """Write products with, and quotients by, 1, -1 or a power of two in one form."""
    x, factor = node.inputs
    number = graph.single(factor)
    if number is None and node.op_type == "Mul":
        x, factor = factor, x
        number = graph.single(factor)
    if x is None or factor is None or number is None:
        return False
    rank = len(stated_shape(x) or ())
    if factor.shape is None or factor.shape.rank() > rank:
        return False
    if number == 1:
        return graph.replace(node.outputs[0], x)
    if number == -1:
        return _replace(graph, node, "Neg", x)
    if node.op_type == "Div" and _has_exact_reciprocal(number):
        reciprocal = np.asarray(np.float32(1) / number).reshape(())
        return _replace(graph, node, "Mul", x, graph.constant(reciprocal, "reciprocal"))
    return False


def join_negations(graph: Rewriter, node: ir.Node) -> bool:
    """Remove two negations that follow each other."""
    inner = producer_of(input_of(node, 0), "Neg")
    if inner is None:
        return False
    x = inner.inputs[0]
    if x is None or (x.dtype is not None and not _is_negated(x.dtype)):
        return False
    return graph.replace(node.outputs[0], x)


def _is_negated(dtype: ir.DataType) -> bool:
    """Return whether Neg accepts a type: real numbers, and signed integers of at least 8 bits."""
    return dtype.is_signed() and dtype.bitwidth >= (16 if dtype.is_floating_point() else 8)


def write_sum(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Sum of two numbers as an Add."""
    return len(node.inputs) == 2 and _replace(graph, node, "Add", *node.inputs)


def hand_on(graph: Rewriter, node: ir.Node) -> bool:
    """Remove an operator that returns its only operand."""
    x, output = node.inputs[0], node.outputs[0]
    if len(node.inputs) > 1 or x is None:
        return False
    is_last = node.op_type == "Identity" and output.is_graph_output()
    return not is_last and graph.replace(output, x)


def _has_exact_reciprocal(number: np.float32) -> bool:
    with np.errstate(all="ignore"):
        mantissa, _ = np.frexp(number)
        reciprocal = np.float32(1) / number
    return abs(mantissa) == 0.5 and bool(np.isfinite(reciprocal)) and reciprocal != 0


def _replace(
    graph: Rewriter, node: ir.Node, name: str, *inputs: ir.Value | np.generic | None
) -> bool:
    return graph.replace(node.outputs[0], graph.like(node, name, inputs))


def write_relu(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Relu as a Max with zero."""
    x = node.inputs[0]
    if x is None or x.dtype is None or not x.dtype.is_floating_point():
        return False
    if not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    return _bound(graph, node, [("Max", x.dtype.numpy().type(0))], x)


def write_clip(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Clip with constant bounds as a Max and a Min."""
    x = node.inputs[0]
    if x is None or node.attributes:
        return False
    steps: list[tuple[str, Any]] = []
    for name, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound is None:
            continue
        array = graph.array(bound)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return False
        steps.append((name, array.reshape(())[()]))
    if any(np.isnan(bound.astype(np.float64)) for _, bound in steps):
        return False
    if any(bound == 0 for _, bound in steps) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    return _bound(graph, node, steps, x)


def join_bounds(graph: Rewriter, node: ir.Node) -> bool:
    """Join a bound with the bounds before it, or put them in order."""
    now = _bounded(graph, node)
    if now is None:
        return False
    x, bound = now
    if bound == (-np.inf if node.op_type == "Max" else np.inf):
        return graph.replace(node.outputs[0], x)
    inner = x.producer()
    before = None if inner is None or graph.known.has(x) else _bounded(graph, inner)
    if inner is None or before is None:
        return _bound_last(graph, node, x, bound)
    data, first = before
    if bound.dtype != first.dtype:
        return False
    if 0 in (bound, first) and not graph.gives_up_zero_sign(node.outputs[0]):
        return False
    if inner.op_type == node.op_type:
        chosen = max(bound, first) if node.op_type == "Max" else min(bound, first)
        return _bound(graph, node, [(node.op_type, chosen)], data)
    if node.op_type == "Max" and bound <= first:
        return _bound(graph, node, [("Max", bound), ("Min", first)], data)
    return _bound_last(graph, node, x, bound)


def _bound_last(graph: Rewriter, node: ir.Node, x: ir.Value, bound: Any) -> bool:
    """Write the bound as a scalar after the data."""
    last = node.inputs[1]
    if last is not None and last is not x and last.shape is not None and not last.shape.rank():
        return False
    return _bound(graph, node, [(node.op_type, bound)], x)


def _bounded(graph: Rewriter, node: ir.Node) -> tuple[ir.Value, Any] | None:
    """Return the data and the bound of a Max or Min with one constant number; None for others."""
    if node.domain or node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        if x is None or graph.known.has(x):
            continue
        array = graph.array(other)
        sizes = stated_shape(x)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        if array.ndim > len(sizes or ()) or np.isnan(array.astype(np.float64)).any():
            return None
        return x, array.reshape(())[()]
    return None


def _bound(graph: Rewriter, node: ir.Node, steps: list[tuple[str, Any]], x: ir.Value) -> bool:
    for name, bound in steps:
        x = graph.like(node, name, [x, bound])
    return graph.replace(node.outputs[0], x)


def write_activation(graph: Rewriter, node: ir.Node) -> bool:
    """Write an activation function as its definition."""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.dtype is not ir.DataType.FLOAT:
        return False
    result = ACTIVATIONS[node.op_type](graph, node, x)
    return result is not None and graph.replace(node.outputs[0], result)


def write_comparison(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Greater as a Less with its operands swapped."""
    swapped = graph.like(node, SWAPPED[node.op_type], node.inputs[::-1], ir.DataType.BOOL)
    return graph.replace(node.outputs[0], swapped)


def _number(node: ir.Node, name: str, default: float) -> np.float32:
    return np.float32(node.attributes.get_float(name, default))


def _hard_swish(graph: Rewriter, node: ir.Node, x: ir.Value) -> ir.Value | None:
    gate = _bounded_line(graph, node, x, np.float32(1 / 6), np.float32(0.5))
    return None if gate is None else graph.like(node, "Mul", [x, gate])


def _bounded_line(
    graph: Rewriter, node: ir.Node, x: ir.Value, alpha: np.float32, beta: np.float32
) -> ir.Value | None:
    if not graph.gives_up_zero_sign(node.outputs[0]):
        return None
    for name, number in (("Mul", alpha), ("Add", beta), ("Min", _ONE), ("Max", _ZERO)):
        x = graph.like(node, name, [x, number])
    return x


def _p_relu(graph: Rewriter, node: ir.Node, x: ir.Value) -> ir.Value | None:
    slope = node.inputs[1]
    number = graph.single(slope)
    return _scaled_below_zero(graph, node, x, slope if number is None else number)


def _scaled_below_zero(
    graph: Rewriter, node: ir.Node, x: ir.Value, factor: ir.Value | np.float32 | None
) -> ir.Value | None:
    if factor is None:
        return None
    is_negative = graph.like(node, "Less", [x, _ZERO], ir.DataType.BOOL)
    return graph.like(node, "Where", [is_negative, graph.like(node, "Mul", [x, factor]), x])


def _thresholded_relu(graph: Rewriter, node: ir.Node, x: ir.Value) -> ir.Value | None:
    is_above = graph.like(node, "Less", [_number(node, "alpha", 1.0), x], ir.DataType.BOOL)
    return graph.like(node, "Where", [is_above, x, _ZERO])


ACTIVATIONS: dict[str, Callable[[Rewriter, ir.Node, ir.Value], ir.Value | None]] = {
    "HardSigmoid": lambda graph, node, x: _bounded_line(
        graph, node, x, _number(node, "alpha", 0.2), _number(node, "beta", 0.5)
    ),
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda graph, node, x: _scaled_below_zero(
        graph, node, x, _number(node, "alpha", 0.01)
    ),
    "PRelu": _p_relu,
    "ThresholdedRelu": _thresholded_relu,
}
SWAPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}

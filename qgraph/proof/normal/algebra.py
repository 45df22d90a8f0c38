"""Differences, negations, factors, bounds and constants, written in one way.

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

The numbers are the same for every input. Where a bound is zero, ONNX leaves the sign of a zero
result open, and the rules keep values only. NaN stays NaN in all forms.

    f(x, c)  with c of shape [1, ..., 1, n, ...]       -> c of shape [n, ...]
    f(x, c)  with c constant along an axis of the data -> c of size 1 along that axis

Exact to the bit, as long as the data has the dimensions, and the sizes, that ``c`` loses. So have
QuantizeLinear and DequantizeLinear one scale where all scales and zero points are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.proof.normal.elementwise import data_of, is_along_axis, is_on_elements
from qgraph.proof.normal.movements import is_constant_along
from qgraph.proof.normal.rewriter import Rewriter, Sizes, sizes_of


def write_difference(graph: Rewriter, node: ir.Node) -> bool:
    """Write a difference of floating-point numbers as a sum."""
    if node.domain or node.op_type != "Sub" or graph.known.has(node.outputs[0]):
        return False
    a, b = node.inputs
    dtype = node.outputs[0].dtype
    if a is None or b is None or dtype is not ir.DataType.FLOAT:
        return False
    array = graph.array(b)
    if array is not None:
        other = graph.constant(np.negative(array), f"{b.name}_negated")
    else:
        other = graph.node(node, "Neg", [b], dtype=dtype, sizes=sizes_of(b))
    return _replace(graph, node, "Add", [a, other])


def write_factor(graph: Rewriter, node: ir.Node) -> bool:
    """Write a product with, or a quotient by, one or a power of two in one way."""
    if node.domain or node.op_type not in ("Mul", "Div") or graph.known.has(node.outputs[0]):
        return False
    x, factor = node.inputs
    number = graph.single(factor)
    if number is None and node.op_type == "Mul":
        x, factor = factor, x
        number = graph.single(factor)
    if x is None or factor is None or number is None:
        return False
    rank = len(sizes_of(x) or ())
    if factor.shape is None or factor.shape.rank() > rank:
        return False
    if number == 1:
        return graph.replace(node.outputs[0], x)
    if number == -1:
        return _replace(graph, node, "Neg", [x])
    if node.op_type == "Div" and _has_exact_reciprocal(number):
        reciprocal = np.asarray(np.float32(1) / number).reshape(())
        return _replace(graph, node, "Mul", [x, graph.constant(reciprocal, "reciprocal")])
    return False


def join_negations(graph: Rewriter, node: ir.Node) -> bool:
    """Remove two negations that follow each other."""
    inner = None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
    if inner is None or any((n.domain, n.op_type) != ("", "Neg") for n in (node, inner)):
        return False
    x = inner.inputs[0]
    return x is not None and graph.replace(node.outputs[0], x)


def write_sum(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Sum of two numbers as an Add."""
    if node.domain or node.op_type != "Sum" or len(node.inputs) != 2:
        return False
    return _replace(graph, node, "Add", list(node.inputs))


def hand_on(graph: Rewriter, node: ir.Node) -> bool:
    """Remove an Identity."""
    if node.domain or node.op_type != "Identity" or node.outputs[0].is_graph_output():
        return False
    x = node.inputs[0]
    return x is not None and graph.replace(node.outputs[0], x)


def _has_exact_reciprocal(number: np.float32) -> bool:
    with np.errstate(all="ignore"):
        mantissa, _ = np.frexp(number)
        reciprocal = np.float32(1) / number
    return abs(mantissa) == 0.5 and bool(np.isfinite(reciprocal)) and reciprocal != 0


def _replace(graph: Rewriter, node: ir.Node, name: str, inputs: list[ir.Value | None]) -> bool:
    output = node.outputs[0]
    return graph.replace(
        output, graph.node(node, name, inputs, dtype=output.dtype, sizes=sizes_of(output))
    )


def write_relu(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Relu as a Max with zero."""
    x = _data(graph, node, "Relu")
    if x is None or x.dtype is None or not x.dtype.is_floating_point():
        return False
    if not _allows_zero(graph, node):
        return False
    zero = np.zeros((), x.dtype.numpy())
    return _bound(graph, node, [("Max", zero)], x)


def write_clip(graph: Rewriter, node: ir.Node) -> bool:
    """Write a Clip with constant bounds as a Max and a Min."""
    x = _data(graph, node, "Clip")
    if x is None or node.attributes:
        return False
    steps: list[tuple[str, Any]] = []
    for name, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound is None:
            continue
        array = graph.array(bound)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return False
        steps.append((name, array.reshape(())))
    if any(np.isnan(bound.astype(np.float64)) for _, bound in steps):
        return False
    if any(bound == 0 for _, bound in steps) and not _allows_zero(graph, node):
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
    if 0 in (bound, first) and not _allows_zero(graph, node):
        return False
    if inner.op_type == node.op_type:
        chosen = max(bound, first) if node.op_type == "Max" else min(bound, first)
        return _bound(graph, node, [(node.op_type, chosen)], data)
    if node.op_type == "Max" and bound <= first:
        return _bound(graph, node, [("Max", bound), ("Min", first)], data)
    return _bound_last(graph, node, x, bound)


def _bound_last(graph: Rewriter, node: ir.Node, x: ir.Value, bound: Any) -> bool:
    """Write the bound as a single number after the data."""
    last = node.inputs[1]
    if last is not None and last is not x and last.shape is not None and not last.shape.rank():
        return False
    return _bound(graph, node, [(node.op_type, bound)], x)


def _bounded(graph: Rewriter, node: ir.Node) -> tuple[ir.Value, Any] | None:
    """Return what a Max or Min with one constant number bounds, and the bound."""
    if node.domain or node.op_type not in ("Max", "Min") or len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        if x is None or graph.known.has(x):
            continue
        array = graph.array(other)
        sizes = sizes_of(x)
        if array is None or array.size != 1 or array.dtype.kind not in "fiu":
            return None
        if array.ndim > len(sizes or ()) or np.isnan(array.astype(np.float64)).any():
            return None
        return x, array.reshape(())[()]
    return None


def _data(graph: Rewriter, node: ir.Node, name: str) -> ir.Value | None:
    if node.domain or node.op_type != name or graph.known.has(node.outputs[0]):
        return None
    return node.inputs[0]


def _allows_zero(graph: Rewriter, node: ir.Node) -> bool:
    if not graph.may_lose_zero_sign(node.outputs[0]):
        return False
    graph.lose_zero_sign()
    return True


def _bound(graph: Rewriter, node: ir.Node, steps: list[tuple[str, Any]], x: ir.Value) -> bool:
    dtype, sizes = node.outputs[0].dtype, sizes_of(node.outputs[0])
    for name, bound in steps:
        constant = graph.constant(np.asarray(bound).reshape(()), f"{name}_bound")
        x = graph.node(node, name, [x, constant], dtype=dtype, sizes=sizes)
    return graph.replace(node.outputs[0], x)


def trim_constants(graph: Rewriter, node: ir.Node) -> bool:
    """Shrink the constants of a node that works on single elements, in place."""
    if not is_on_elements(node) or node.domain not in ("", "com.microsoft"):
        return False
    data = data_of(graph, node)
    sizes = sizes_of(data[0]) if data else None
    if graph.known.has(node.outputs[0]) or sizes is None:
        return False
    constants = {
        place: array
        for place, value in enumerate(node.inputs)
        if (array := graph.array(value)) is not None and array.size and 0 < array.ndim <= len(sizes)
    }
    if is_along_axis(node):
        trimmed = _one_parameter(node, constants, sizes)
    else:
        trimmed = {place: _trimmed(array, sizes) for place, array in constants.items()}
    changed = {p: a for p, a in trimmed.items() if a.shape != constants[p].shape}
    for place, array in changed.items():
        name = str(getattr(node.inputs[place], "name", ""))
        node.replace_input_with(place, graph.constant(array, name))
    return bool(changed)


def _trimmed(array: Array, sizes: Sizes) -> Array:
    for axis, size in enumerate(array.shape):
        if size > 1 and size == sizes[len(sizes) - array.ndim + axis]:
            array = array.take([0], axis=axis) if is_constant_along(array, axis) else array
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return np.asarray(array)


def _one_parameter(node: ir.Node, constants: dict[int, Array], sizes: Sizes) -> dict[int, Array]:
    """Return the scale and the zero point as single numbers where they do not vary."""
    axis = node.attributes.get_int("axis", 1)
    if node.attributes.get_int("block_size", 0) or len(constants) < len(node.inputs) - 1:
        return {}
    if not -len(sizes) <= axis < len(sizes):
        return {}
    for array in constants.values():
        along = array.ndim == 1 and array.size in (1, sizes[axis])
        if not along or not is_constant_along(array, 0):
            return {}
    return {place: np.asarray(array[0]) for place, array in constants.items()}

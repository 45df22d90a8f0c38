"""Write axes as numbers from 0, and operators along axes in one form.

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

import numpy as np
import onnx_ir as ir

from qgraph.graph.interface import stated_shape
from qgraph.graph.scopes import input_of
from qgraph.proof.matching.operators import expect, needed
from qgraph.proof.normal.elementwise import is_along_axis
from qgraph.proof.normal.movements import Reshaping, has_elements, static_count, write
from qgraph.proof.normal.rewriter import Rewriter, Sizes

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
    expect(node.inputs)
    x = needed(node.inputs[0])
    expect(node.op_type not in ROWS or graph.imports.get("", 1) >= _SINCE)
    scale = graph.array(node.inputs[1]) if is_along_axis(node) else None
    if scale is not None and scale.size == 1:
        expect("axis" in node.attributes and node.attributes.get_int("block_size", 0) <= 0)
        node.attributes.pop("axis")
        return
    rank = len(needed(stated_shape(x)))
    axis = node.attributes.get_int("axis", _DEFAULT.get(node.op_type, 0) or 0)
    expect(-rank <= axis < 0)
    node.attributes["axis"] = ir.AttrInt64("axis", axis + rank)


def write_reduction(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a reduction with a list of all its axes and ``keepdims = 1``."""
    expect(not node.domain and node.op_type.startswith("Reduce"))
    sizes = needed(stated_shape(needed(node.inputs[0])))
    axes = reduced_axes(graph, node, len(sizes))
    kept = node.attributes.get_int("keepdims", 1)
    expect(axes and not (kept and _states(graph, node, axes)))
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    target = tuple(size for axis, size in enumerate(sizes) if axis not in axes)
    reshaping = Reshaping(result, result if kept else target)
    needed(reshaping.shape)
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
    dtype = node.outputs[0].dtype
    return graph.node(node, op_type, inputs, attributes, dtype=dtype, sizes=sizes)


def reduced_axes(graph: Rewriter, node: ir.Node, rank: int) -> list[int]:
    """Return the axes of a reduction in ascending order; they must be known."""
    attribute, operand = node.attributes.get("axes"), input_of(node, 1)
    axes: list[int] = []
    if attribute is not None:
        axes = [int(axis) for axis in attribute.as_ints()]
    elif operand is not None:
        axes = [int(axis) for axis in needed(graph.array(operand)).reshape(-1)]
    expect(axes or node.attributes.get_int("noop_with_empty_axes", 0) == 0)
    expect(all(-rank <= axis < rank for axis in axes))
    return sorted({axis % rank for axis in axes}) or list(range(rank))


def write_rows(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a Softmax as a Softmax over rows, if all later dimensions have size 1."""
    x = needed(node.inputs[0])
    sizes = needed(stated_shape(x))
    expect(sizes and None not in sizes and graph.imports.get("", 1) >= _SINCE)
    axis = node.attributes.get_int("axis", -1) % len(sizes)
    expect(all(size == 1 for size in sizes[axis + 1 :]) and (len(sizes), axis) != (2, 1))
    # the product of the sizes before, as a number or one symbolic dimension
    names = [size for size in sizes[:axis] if isinstance(size, str)]
    count = static_count(sizes[:axis])
    expect(not names or (len(names), count) == (1, 1))
    rows = (names[0] if names else count, sizes[axis])
    flat, back = Reshaping(sizes, rows), Reshaping(rows, sizes)
    expect(flat.shape is not None and back.shape is not None)
    data, dtype = write(graph, x, node, flat), node.outputs[0].dtype
    moved = graph.node(node, node.op_type, [data], {"axis": 1}, dtype=dtype, sizes=rows)
    return write(graph, moved, node, back)


def write_global_maximum(graph: Rewriter, node: ir.Node) -> ir.Value:
    """Write a GlobalMaxPool as a ReduceMax."""
    sizes = needed(stated_shape(needed(node.inputs[0])))
    axes = list(range(2, len(sizes)))
    # of no elements, ReduceMax has a result and GlobalMaxPool has none
    expect(axes and has_elements(sizes, axes) and graph.gives_up_zero_sign(node.outputs[0]))
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
